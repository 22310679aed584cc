"""Batches: what they look like, which sizes they have, how they are fed, and how large they may be.

- `spec.py`: the structure, types and shapes of a batch;
- `declared.py`: integers cast to the types that a plan was made for;
- `apart.py`: inputs whose first axis is not the batch;
- `samples.py`: how many samples a batch has;
- `sizes.py`: inputs whose sizes differ from batch to batch;
- `ragged.py`: ragged and sparse inputs;
- `pipelines.py`: what a tf.data pipeline tells of its batches without being read;
- `feeding.py`: how far ahead batches of arrays are made;
- `limit.py`: the check in the step that a batch is no larger than planned.
"""
