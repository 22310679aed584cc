"""What Keras users call, and what stands in for their model's training step.

api            compile, restore, gradient_function, op_graph
controller     plans when data arrives, watches the peak, plans again
first_batch    plans at the first batch, where no batch size was given
feeding        has `fit` on arrays make no batch ahead
spec           what a batch looks like: from data, from a spec, or from the model
frameworks     Keras 3, or Keras 2 as tf_keras keeps it
distribution   how a model is spread over devices
jit            whether XLA compiles the planned step
progress       bars in a terminal
sources        models by name, from a file, or from a function
"""
