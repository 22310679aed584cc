"""Moccasin: retention intervals in CP-SAT (Bartan et al., ICML 2023).

- `retention.py`: the constraint program, and what its solutions mean as sequences;
- `phases.py`: the two phases in which it is solved;
- `cpsat_process.py`: the process that solves it, and how it is started;
- `moccasin.py`: the strategies, and how the default strategy uses it.
"""
