"""Measured times of a model, over batch sizes, in files that can be shared."""
