"""Changes who reads what, in place: TensorFlow has no public way to change a graph."""

from __future__ import annotations

import tensorflow as tf

__all__ = ["put_in_place"]


def put_in_place(op: tf.Operation, other: tf.Operation) -> None:
    """Let all that reads `op`, or waits for it, do so of `other`, which has as many outputs, of the same types."""
    for t, replacement in zip(op.outputs, other.outputs, strict=True):
        for reader in t.consumers():
            for k, read in enumerate(reader.inputs):
                if read is t:
                    reader._update_input(k, replacement)  # noqa: SLF001
    for waiting in list(op._control_outputs):  # noqa: SLF001
        controls = [other if c is op else c for c in waiting.control_inputs]
        waiting._remove_all_control_inputs()  # noqa: SLF001
        waiting._add_control_inputs(controls)  # noqa: SLF001
