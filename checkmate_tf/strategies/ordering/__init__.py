"""Orders of first computations: what they must keep, what they need in memory, and those of least peak."""
