"""Paging and recomputation in one search.

- `windows.py`: where copies are waited for, and where values are brought back, so that computations wait little;
- `paging.py`: the strategy, which searches at several prices of a copy;
- `bound.py`: what no schedule can do.
"""
