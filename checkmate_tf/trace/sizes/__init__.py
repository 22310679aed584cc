"""True sizes of what a step computes, where TensorFlow leaves them open."""
