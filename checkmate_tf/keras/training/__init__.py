"""What stands in for a model's training step.

- `plans.py`: the plans of a model, one for each structure of data;
- `peaks.py`: the most that its device allocates, in steps and between them;
- `controller.py`: puts the planned step in the model's place, watches the peak, plans again;
- `first_batch.py`: plans at the first batch, where no batch size was given;
- `by_python.py`: runs steps that Python calls.
"""
