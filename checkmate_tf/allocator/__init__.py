"""Where an allocator puts values: TensorFlow's BFC as a model, without TensorFlow.

`bfc` has the values: settings, state, events, placement. `kernel` is the compiled part.
"""
