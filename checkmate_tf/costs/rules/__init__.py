"""FLOPs of operations for which it takes more than to count elements: rules by type (`RULES`).

- `rule.py`: what a rule is;
- `networks.py`: products, normalizations, poolings, means and sums;
- `linear_algebra.py`: factorizations, eigenvalues, Fourier transforms.
"""

from __future__ import annotations

from .linear_algebra import LINEAR_ALGEBRA
from .networks import NETWORKS

__all__ = ["RULES"]

RULES = NETWORKS | LINEAR_ALGEBRA
