"""The largest batch that fits a memory at a bounded cost: by search and bound, and by exact programs.

`max_batch` brackets it for networks of any size. `max_batch_linear` and `max_batch_quadratic` (as published) solve
problem (9) to the end, for small graphs.
"""

from .max_batch import max_batch
from .programs import max_batch_linear, max_batch_quadratic
from .scaling import cost_limit
from .values import MaxBatch, Probe, Verified

__all__ = ["MaxBatch", "Probe", "Verified", "cost_limit", "max_batch", "max_batch_linear", "max_batch_quadratic"]
