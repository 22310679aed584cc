"""What layers compute, in multiply-adds and other floating-point operations (`Work`).

- `shared.py`: `Work`, and the counts that several rules share;
- `operations.py`: rules of operations of keras.ops;
- `layers.py`: rules of Keras's layers; `layer_work` asks either.
"""
