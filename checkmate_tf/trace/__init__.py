"""From a Python training step to a graph of operations with true sizes."""
