"""A max-pooling of oneDNN's keeps places for its gradient, and the gradient then takes no memory of its own."""

from __future__ import annotations

import pytest
import tensorflow as tf

from checkmate_tf.allocator.workspace import NOTHING, Workspace
from checkmate_tf.costs.signature import Signer
from checkmate_tf.costs.workspace import op_workspaces
from checkmate_tf.device.measure import find_device
from checkmate_tf.device.record import record
from checkmate_tf.fit.job import Ledger
from checkmate_tf.fit.options import PlanOptions
from checkmate_tf.fit.subjects.tracing import Tracing
from checkmate_tf.trace.kernels import kernels_of
from checkmate_tf.trace.program import build_program
from checkmate_tf.trace.sizes.static import with_static_batch
from checkmate_tf.trace.sizes.tapes import places_bytes, pooling_of
from checkmate_tf.trace.step import trace_step
from checkmate_tf.units import parse_budget

SHAPE = (16, 64, 64, 16)
RESULT = 16 * 32 * 32 * 16  # elements
WINDOW = {"ksize": [1, 2, 2, 1], "strides": [1, 2, 2, 1], "padding": "VALID"}


def _step(x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = tf.reduce_sum(tf.sin(tf.nn.max_pool2d(tf.exp(x), 2, 2, "VALID")))
    return tape.gradient(loss, x)


@pytest.fixture(scope="module")
def traced():
    return trace_step(_step, tf.TensorSpec([None, *SHAPE[1:]]))


def _of(operations, kind):
    (op,) = [op for op in operations if op.type == kind]
    return op


def _program(traced, scratch):
    return build_program(traced, with_static_batch(traced, [tf.TensorShape(SHAPE)]), "step", 1024, scratch)


def _graph_of(step):
    return tf.function(step, autograph=False).get_concrete_function(tf.TensorSpec(SHAPE)).graph.get_operations()


def test_a_gradient_knows_its_pooling(traced):
    gradient = _of(traced.operations, "MaxPoolGrad")
    assert pooling_of(gradient) is _of(traced.operations, "MaxPool")
    assert pooling_of(_of(traced.operations, "Exp")) is None


def test_a_result_that_is_given_has_no_pooling():
    def gradient(x):
        given = tf.zeros([16, 32, 32, 16])
        return tf.raw_ops.MaxPoolGrad(orig_input=x, orig_output=given, grad=given, **WINDOW)

    (alone,) = [op for op in _graph_of(gradient) if op.type == "MaxPoolGrad"]
    assert pooling_of(alone) is None
    together = _of(_graph_of(_step), "MaxPoolGrad")
    assert Signer()(alone) != Signer()(together)


@pytest.mark.parametrize(("size", "each"), [(2, 1), (15, 1), (16, 4)])
def test_a_place_is_a_byte_or_four(size, each):
    pool = _of(_graph_of(lambda x: tf.nn.max_pool2d(x, size, size, "SAME")), "MaxPool")
    places = each * pool.outputs[0].shape.num_elements()
    assert [places_bytes(pool, taken) for taken in (0, places - 1, places, 3 * places)] == [0, 0, places, places]


def test_places_are_a_part_of_the_value_and_read_by_the_gradient(traced):
    pool, gradient = (_of(traced.operations, kind) for kind in ("MaxPool", "MaxPoolGrad"))
    plain, program = _program(traced, {}), _program(traced, {pool: Workspace(kept=RESULT)})
    assert not plain.tapes and program.tapes == {gradient: pool}
    k, later = program.node_of[pool], program.node_of[gradient]
    assert program.graph.sizes[k] == plain.graph.sizes[plain.node_of[pool]] + RESULT == 5 * RESULT
    assert k in program.graph.inputs[later]
    kernels, operations = kernels_of(program), [op for node in program.nodes for op in node]
    made, at = operations.index(pool), operations.index(gradient)
    mine = range(kernels.outputs[made], kernels.outputs[made + 1])
    assert [int(kernels.bytes[b]) for b in mine] == [4 * RESULT, RESULT]
    assert set(mine) <= set(kernels.read[kernels.reads[at] : kernels.reads[at + 1]].tolist())
    assert kernels.workspaces[made + 1] == kernels.workspaces[made]


def _keeps_places() -> bool:
    (pool,) = [op for op in _graph_of(_step) if op.type == "MaxPool"]
    return op_workspaces([pool], device="/CPU:0", cache=False)[0] >= RESULT


def test_on_a_cpu_what_a_pooling_takes_is_kept_and_its_gradient_takes_nothing(traced):
    if not _keeps_places():
        pytest.skip("this TensorFlow computes poolings without oneDNN")
    options = PlanOptions(budget=parse_budget(1.0), costs="flops", cache=False)
    program = Tracing(SHAPE[0], options, "step", find_device("CPU:0"), Ledger()).subject(traced).program
    pool, gradient = (_of(traced.operations, kind) for kind in ("MaxPool", "MaxPoolGrad"))
    assert program.scratch.get(pool) == Workspace(kept=RESULT)
    assert program.scratch.get(gradient, NOTHING) == NOTHING
    assert program.taped_bytes(pool) == RESULT


def test_the_allocator_has_the_places_until_the_gradient_has_run():
    if not _keeps_places():
        pytest.skip("this TensorFlow computes poolings without oneDNN")
    run = tf.function(_step, autograph=False)
    x = tf.random.normal(SHAPE)
    run(x)
    recorded = record(find_device("CPU:0"), lambda: run(x))
    mine = [
        (bool(allocates), recorded.operation[k].rpartition("/")[2], int(size))
        for k, (allocates, size) in enumerate(zip(recorded.allocates, recorded.requested_bytes, strict=True))
        if "MaxPool" in recorded.operation[k]
    ]
    assert (True, "MaxPool2d", RESULT) in mine
    begins, ends = mine.index((True, "MaxPoolGrad", 16 * RESULT)), mine.index((False, "MaxPool2d", RESULT))
    assert begins < ends
    assert [size for allocates, name, size in mine if allocates and name == "MaxPoolGrad"] == [16 * RESULT]
