"""Sequences themselves: some computations go, others come, and the best is kept."""
