"""What Keras users call, and what stands in for their model's training step.

api            compile, restore, gradient_function, op_graph
training       plans when data arrives, puts the planned step in the model's place, watches the peak
batches        what a batch looks like, and how it is fed
built          losses, metrics and slots, built before their data comes
frameworks     Keras 3, or Keras 2 as tf_keras keeps it
distribution   how a model is spread over devices
jit            whether XLA compiles the planned step
garbage        Python's garbage collector, kept from old objects
progress       bars in a terminal
sources        models by name, from a file, or from a function
"""
