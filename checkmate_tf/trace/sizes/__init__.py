"""True sizes of what a step computes, where TensorFlow leaves them open.

- `static.py`: emits the step again with a known batch (`StaticStep`), with the help of the others;
- `shapes.py`: shapes that TensorFlow's shape functions do not conclude;
- `seen.py`: shapes that data decides, from a batch;
- `learned.py`: shapes that only the device knows;
- `loops.py`: how often loops run, and what the lists that they fill hold;
- `variants.py`: what tensor lists and optionals hold;
- `folded.py`: constants, and what TensorFlow would compute of them once and keep;
- `tapes.py`: what Python functions and max-poolings keep for their gradients.
"""
