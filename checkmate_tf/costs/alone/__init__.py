"""One operation of a graph, run by itself.

- `eager.py`: runs it eagerly on given inputs, with the attributes that it has in the graph;
- `values.py`: what its small inputs are (shapes, axes), where static shapes say;
- `fabricate.py`: makes all its inputs, and says whether it may run at all.
"""
