"""Measured times of a model's nodes over batch sizes: tables, files, and what measures them.

Only commands and the search for the largest batch import this room. Its files:

- `table.py`: a table of times, and the fit for batch sizes that were not run (`ProfileTable`);
- `file.py`: tables in files that people can read and share;
- `artifact.py`: the profiles of Checkmate's own artifact;
- `journal.py`: what a long run has measured so far, on disk;
- `layers.py`: times the nodes of a layer-level graph;
- `steps.py`: times the operations of a training step;
- `identity.py`: which model a profile is of;
- `run.py`: times a model at several batch sizes into a file, and goes on where an earlier run was stopped.
"""
