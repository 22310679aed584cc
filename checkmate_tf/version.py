"""The version, which schedules in the cache are kept for."""

__version__ = "0.1.0"
