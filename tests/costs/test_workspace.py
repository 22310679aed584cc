"""What kernels take for themselves is measured, remembered, and never invented."""

import numpy as np
import pytest
import tensorflow as tf

from checkmate_tf.costs import cache, workspace
from checkmate_tf.costs.workspace import op_workspaces
from checkmate_tf.errors import CostError


def loop_and_sum():
    """A loop with 4 MB inside and one number outside, and a product without anything of its own."""

    @tf.function(autograph=False)
    def step(x):
        body = lambda i, y: (i + 1, y + tf.reduce_sum(tf.sin(tf.ones([1 << 20]) * y)))  # noqa: E731
        _, y = tf.while_loop(lambda i, _: i < 3, body, (0, x), maximum_iterations=3)
        return y * 2.0

    graph = step.get_concrete_function(tf.TensorSpec([])).graph
    return graph.get_operations()


def test_the_inside_of_a_loop_is_its_workspace():
    ops = loop_and_sum()
    found = dict(zip([op.type for op in ops], op_workspaces(ops), strict=True))
    assert max(found.values()) >= 4 << 20
    assert found["Mul"] == 0


@pytest.mark.parametrize("large", [True, False])
def test_of_branches_that_data_chooses_from_the_largest_counts(large):
    def step(x, chosen):
        inside = lambda: tf.reduce_sum(tf.sin(tf.ones([1 << 20]) * x))  # noqa: E731
        return tf.cond(chosen, *((inside, lambda: x) if large else (lambda: x, inside)))

    traced = tf.function(step, autograph=False)
    ops = traced.get_concrete_function(tf.TensorSpec([]), tf.TensorSpec([], tf.bool)).graph.get_operations()
    assert op_workspaces(ops, cache=False).max() >= 4 << 20


def test_it_is_remembered_but_a_failure_is_not(monkeypatch, tmp_path):
    monkeypatch.setenv("CHECKMATE_TF_CACHE", str(tmp_path))
    ops, real = loop_and_sum(), workspace.runner

    def fails(op, inputs):
        raise tf.errors.ResourceExhaustedError(None, None, "out of memory")

    monkeypatch.setattr(workspace, "runner", fails)
    assert not op_workspaces(ops).any()
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(workspace, "runner", real)
    first = op_workspaces(ops)
    (path,) = tmp_path.iterdir()
    assert max(cache.load(path, "bytes").values()) == first.max() > 0
    monkeypatch.setattr(workspace, "runner", fails)
    assert np.array_equal(op_workspaces(ops), first)


@pytest.mark.parametrize("name", ["cpu:0", "/CPU:0", "/device:cpu:0"])
def test_the_device_may_be_called_in_any_way(name):
    assert op_workspaces(loop_and_sum(), device=name, cache=False).max() >= 4 << 20


def test_an_allocator_without_statistics_is_refused(monkeypatch):
    def none(device):
        raise ValueError("no statistics")

    monkeypatch.setattr(tf.config.experimental, "get_memory_info", none)
    with pytest.raises(CostError, match="CPU:0 keeps no statistics"):
        op_workspaces(loop_and_sum(), device="CPU:0", cache=False)
