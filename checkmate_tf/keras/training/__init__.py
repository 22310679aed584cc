"""What stands in for a model's training step.

- `plans.py`: the plans of a model, one for each structure of data;
- `peaks.py`: the most that its device allocates, in steps and between them;
- `watched.py`: watches the device while they train, and plans again;
- `controller.py`: puts the planned step in the model's place;
- `arriving.py`: plans for batches that no plan serves, where no batch size was given;
- `serving.py`: which plan serves a batch;
- `first_batch.py`: looks at batches before they train, for that;
- `by_python.py`: runs steps that Python calls.
"""
