"""One command that tells whether everything holds on a machine: `checkmate-tf check`.

- `networks`: the six networks that are trained, in sizes that fill a given memory.
- `training`: what their steps are measured by.
- `child`: what each process measures. Limits, determinism and XLA are settings of a process, so each has its own.
- `judge`: from what was measured to lines: passed, failed with why, or could not be run with why. Pure functions.
- `run`: which processes there are, and what to leave out when time is short.
"""
