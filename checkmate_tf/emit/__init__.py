"""The static rematerialized graph: a traced step emitted again in the order of a plan.

ordering   how much order a plan needs: one strict order, or any within so many bytes
emit       the step for TensorFlow, ordered by control edges
xla        the step for XLA, ordered by data
"""
