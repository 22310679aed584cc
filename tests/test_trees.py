"""What Grappler rewrites together comes together, unless somebody else reads it too."""

import pytest
import tensorflow as tf

from checkmate_tf.trace.trees import gather_trees, within_trees


@pytest.mark.parametrize("read_twice", [False, True])
def test_partial_sums_come_right_before_their_sum(read_twice):
    with tf.Graph().as_default():
        x, y, z = (tf.compat.v1.placeholder(tf.float32, (8, 8)) for _ in range(3))
        product = tf.raw_ops.Mul(x=x, y=y)
        part = tf.raw_ops.AddV2(x=product, y=y)
        other = tf.raw_ops.MatMul(a=z, b=z)
        total = tf.raw_ops.AddV2(x=part, y=other)
        operations = [t.op for t in (x, y, z, product, part, other, total)]
        outputs = [total, part] if read_twice else [total]
        anything = lambda op: True  # noqa: E731 - a short callback
        found = gather_trees(operations, outputs, anything, anything)
        assert within_trees(operations, outputs, anything) == (set() if read_twice else {part.op})
    late = [t.op for t in (x, y, z, other, product, part, total)]
    assert found == (operations if read_twice else late)


def test_chains_of_constants_come_together_past_control_edges():
    """As in the gradient of a variance: 2 (x / 288), where a difference waits for the quotient."""
    with tf.Graph().as_default():
        x, y = (tf.compat.v1.placeholder(tf.float32, (8, 8)) for _ in range(2))
        count, two = tf.constant(288.0), tf.constant(2.0)
        quotient = tf.raw_ops.RealDiv(x=x, y=count)
        with tf.control_dependencies([quotient]):
            difference = tf.raw_ops.Sub(x=x, y=y)
        elsewhere = tf.raw_ops.Relu(features=y)
        doubled = tf.raw_ops.Mul(x=two, y=quotient)
        product = tf.raw_ops.Mul(x=doubled, y=difference)
        sources = [t.op for t in (x, y, count, two)]
        operations = [*sources, *(t.op for t in (quotient, difference, elsewhere, doubled, product))]
        large = lambda op: op not in sources  # noqa: E731 - a short callback
        found = gather_trees(operations, [product, elsewhere], lambda op: True, large)
        partial = within_trees(operations, [product, elsewhere], lambda op: True)
    assert partial == {quotient.op, doubled.op}
    assert found == [*sources, *(t.op for t in (elsewhere, quotient, doubled, difference, product))]
