"""The eviction search, and what it starts from."""
