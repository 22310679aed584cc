"""What a training step needs built: losses, metrics and the optimizer's slots.

- `building.py`: builds them before a step is traced;
- `unbuilt.py`: takes back what was built until its data comes.
"""
