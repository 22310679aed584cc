"""Partial sums come right before the sum that reads them, unless somebody else reads them too."""

import pytest
import tensorflow as tf

from checkmate_tf.trace.partition.trees import gather_trees, within_trees


@pytest.mark.parametrize("read_twice", [False, True])
def test_partial_sums_come_right_before_their_sum(read_twice):
    with tf.Graph().as_default():
        x, y, z = (tf.compat.v1.placeholder(tf.float32, (8, 8)) for _ in range(3))
        product = tf.raw_ops.Mul(x=x, y=y)
        part = tf.raw_ops.AddV2(x=product, y=y)
        other = tf.raw_ops.Relu(features=z)
        total = tf.raw_ops.AddV2(x=part, y=other)
        operations = [t.op for t in (x, y, z, product, part, other, total)]
        outputs = [total, part] if read_twice else [total]
        anything = lambda op: True  # noqa: E731 - a short callback
        found = gather_trees(operations, outputs, anything, anything)
        assert within_trees(operations, outputs, anything) == (set() if read_twice else {part.op})
    late = [t.op for t in (x, y, z, other, product, part, total)]
    assert found == (operations if read_twice else late)
