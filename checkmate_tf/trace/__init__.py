"""The op level: from a Python training step to a graph of operations with true sizes.

The room reads TensorFlow's graphs and makes a `Program`. It knows no costs and no Keras. In the order in which a step
goes through it:

- `ops.py`: types of operations: sources, views, elementwise ones, those with effects;
- `step.py`: traces the step and puts the next two together (`TracedStep`);
- `rewrites/`: replaces calls of functions by the operations of the functions, splits sums of many terms into sums of
  two, leaves transposes out that Grappler would, and joins equal operations;
- `order.py`: keeps the operations that are needed, in an order that frees memory early;
- `replicas.py`: tells the replicas of a distributed step apart, so that one is planned for all;
- `sizes/`: the bytes of every value, for a known batch (`StaticStep`);
- `partition/`: puts operations together, among them trees of sums and products, which Grappler rewrites;
- `program.py`: makes them the nodes of a `Graph` (`Program`);
- `kernels.py`: what the operations of each node allocate and read, for the allocator's model;
- `assigned.py`, `ungated.py`: which nodes assign what others read, and which run as soon as they can;
- `encodings.py`: makes the same step with gradients that read small codes of forward values.
"""
