"""Codes instead of values: each gives the kernel's own bits, and models train with the plain model's numbers."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from allocators import crowd, says, steady
from budgets import peaks_of, peaks_of_graph
from cases import CASES, DENSE, Case, assert_same_state, compile_quickly, images, make, program_of, train
from keras import layers
from tensorflow.python.ops import gen_nn_ops

import checkmate_tf
from checkmate_tf.emit.emit import Emission
from checkmate_tf.errors import InfeasibleBudgetError, OperatorsError
from checkmate_tf.fit.policy import POLICY
from checkmate_tf.fit.subjects import encodings, fitted
from checkmate_tf.schedule import keep_all
from checkmate_tf.trace.encodings import encoded, find_encodings, pack_bits, place_in_window, to_place, unpack_bits
from checkmate_tf.trace.ops import inputs_of
from checkmate_tf.trace.partition.classes import LARGE
from checkmate_tf.trace.program import build_program
from checkmate_tf.trace.sizes.static import with_static_batch
from checkmate_tf.trace.step import trace_step

pytestmark = pytest.mark.usefixtures("fresh_keras")

TYPES = (tf.float32, tf.bfloat16, tf.float16)
SMALLEST = 1e-41  # below the normal range of float32


def _values(shape, dtype, seed=0):
    """Zeros of both signs, ties, infinities and the smallest numbers among others."""
    rng = np.random.default_rng(seed)
    x = np.round(2 * rng.standard_normal(shape)).astype(np.float32)
    for value, share in ((0.0, 0.2), (-0.0, 0.2), (np.inf, 0.02), (-np.inf, 0.05), (SMALLEST, 0.02), (-SMALLEST, 0.02)):
        x[rng.random(shape) < share] = value
    return tf.cast(x, dtype)


def _gradients(shape, dtype):
    g = np.array(tf.cast(_values(shape, tf.float32, seed=1), tf.float32))
    g[np.random.default_rng(2).random(shape) < 0.02] = np.nan
    return tf.cast(g, dtype)


def _bits(t):
    return t.numpy().tobytes()


@pytest.mark.parametrize("shape", [(1, 8), (3, 16, 4), (0, 24)])
def test_bits_come_back(shape):
    mask = np.random.default_rng(0).random(shape) < 0.5
    packed = pack_bits(tf.constant(mask))
    assert packed.dtype == tf.uint8 and packed.shape == [mask.size // 8]
    np.testing.assert_array_equal(packed.numpy(), np.packbits(mask.reshape(-1), bitorder="little"))
    np.testing.assert_array_equal(unpack_bits(packed, shape[1:]).numpy(), mask)


def _run(traced, tensors):
    """The results of a traced step, as its kernels compute them."""
    config = tf.compat.v1.ConfigProto()
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    with tf.compat.v1.Session(graph=traced.graph, config=config) as session:
        used = [(t.name, v.numpy()) for t, v in zip(traced.inputs, tensors, strict=True) if t.op in traced.operations]
        return session.run([t.name for t in traced.outputs], dict(used))


def _assert_same(gradient, *tensors, kind):
    """A gradient gives the same bits with codes, of which it then reads no values."""

    def step(batch):
        values = [tf.identity(t) for t in batch[:-1]]
        with tf.name_scope("gradient_tape/"):
            return gradient(*values, batch[-1])

    step = trace_step(step, tuple(tf.TensorSpec([None, *t.shape[1:]], t.dtype) for t in tensors))
    found = find_encodings(step)
    assert [e.kind for e in found] == [kind]
    coded = encoded(step, found).step
    assert found[0].gradient.type not in {op.type for op in coded.operations}
    (plain,), (ours,) = _run(step, tensors), _run(coded, tensors)
    assert plain.shape == ours.shape and plain.tobytes() == ours.tobytes()


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", [(4, 7, 8, 32), (4, 7, 7, 33)])  # the latter has no whole bytes
def test_signs_are_exact(dtype, shape):
    y, g = _values(shape, dtype), _gradients(shape, dtype)
    _assert_same(lambda y, g: gen_nn_ops.relu_grad(g, y), tf.nn.relu(y), g, kind="relu")
    _assert_same(lambda y, g: gen_nn_ops.relu6_grad(g, y), tf.nn.relu6(4 * y), g, kind="relu6")


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    ("size", "stride", "height", "width"),
    [((2, 2), (2, 2), 16, 12), ((2, 2), (2, 2), 17, 13), ((3, 3), (3, 3), 15, 17)]
    + [((3, 2), (3, 2), 12, 12), ((2, 2), (3, 3), 14, 14), ((4, 4), (4, 4), 16, 17)],
)
def test_places_are_exact(dtype, size, stride, height, width):
    x = _values((3, height, width, 128), dtype)
    windows = [1, *size, 1], [1, *stride, 1], "VALID"
    y = tf.nn.max_pool2d(x, size, stride, "VALID")
    g = _gradients(y.shape, dtype)
    _assert_same(lambda x, y, g: gen_nn_ops.max_pool_grad(x, y, g, *windows), x, y, g, kind="pool")


def test_a_window_of_minus_infinities_has_its_first_place():
    x = tf.fill([1, 4, 4, 8], -np.inf)
    y = tf.nn.max_pool2d(x, 2, 2, "VALID")
    assert np.isfinite(y.numpy()).all()  # the least number: none is equal
    assert not place_in_window(x, y, [2, 2], [2, 2]).numpy().any()


def test_places_follow_each_other_row_by_row():
    x = tf.reshape(tf.constant([0, 1, 2, 3], tf.float32), [1, 2, 2, 1])
    for k, flipped in enumerate((x[:, ::-1, ::-1], x[:, ::-1], x[:, :, ::-1], x)):
        place = place_in_window(flipped, tf.nn.max_pool2d(flipped, 2, 2, "VALID"), [2, 2], [2, 2])
        assert place.numpy().item() == k
        spread = to_place(place, tf.ones([1, 1, 1, 1]), [2, 2], [2, 2], [2, 2])
        np.testing.assert_array_equal(spread.numpy() > 0, flipped.numpy() == 3)


@pytest.mark.parametrize("dtype", (tf.float32, tf.bfloat16))
@pytest.mark.parametrize(("size", "stride"), [(2, 2), (3, 3), (2, 3)])
def test_places_are_those_of_the_kernel_that_training_runs(dtype, size, stride):
    """Behind a pooling of the same step another kernel may compute the gradient than behind an input (oneDNN)."""
    x = _values((3, 21, 21, 64), dtype)
    g = tf.cast(np.random.default_rng(3).standard_normal(tf.nn.max_pool2d(x, size, stride, "VALID").shape), dtype)

    def gradient(x, g):
        y = tf.nn.max_pool2d(x, size, stride, "VALID")
        return gen_nn_ops.max_pool_grad(x, y, g, [1, size, size, 1], [1, stride, stride, 1], "VALID")

    _assert_same(gradient, x, g, kind="pool")


def _pools(shape, size, stride, padding):
    """Kinds of the encodings of a max-pooling's gradient."""
    y = tf.nn.max_pool2d(tf.zeros(shape), size, stride, padding)
    named, explicit = ("EXPLICIT", np.ravel(padding).tolist()) if isinstance(padding, list) else (padding, [])
    windows = [1, size, size, 1], [1, stride, stride, 1], named, explicit

    def step(batch):
        x, y, g = batch
        with tf.name_scope("gradient_tape/"):
            return gen_nn_ops.max_pool_grad(tf.identity(x), tf.identity(y), g, *windows)

    specs = [tf.TensorSpec([None, *t[1:]]) for t in (shape, y.shape, y.shape)]
    return [e.kind for e in find_encodings(trace_step(step, tuple(specs)))]


def test_windows_that_reach_into_padding_are_left_alone():
    assert _pools((2, 16, 16, 16), 2, 2, "SAME") == ["pool"]  # whose windows fit
    assert _pools((2, 15, 15, 16), 2, 2, "SAME") == []
    assert _pools((2, 15, 15, 16), 2, 2, [[0, 0], [1, 0], [1, 0], [0, 0]]) == []
    # As many windows as without padding, which begin elsewhere.
    assert _pools((2, 8, 8, 64), 2, 2, [[0, 0], [1, 0], [1, 0], [0, 0]]) == []


def test_windows_that_overlap_are_left_alone():
    assert _pools((2, 15, 15, 64), 3, 2, "VALID") == _pools((2, 15, 15, 64), 3, 1, "VALID") == []


def test_a_pooling_of_single_elements_is_left_alone():
    assert _pools((2, 16, 16, 16), 1, 1, "VALID") == _pools((2, 32, 32, 16), 1, 2, "VALID") == []


def _vgg():
    """Convolutions, poolings of both kinds, ReLU6 and dropout."""
    x = inputs = keras.Input((64, 64, 3))
    for filters in (8, 16):
        for _ in range(2):
            x = layers.Conv2D(filters, 3, padding="same", activation="relu")(x)
        x = layers.MaxPooling2D(2)(x)
    x = layers.Dropout(0.3, seed=5)(layers.ReLU(6.0)(layers.Conv2D(32, 3, padding="same")(x)))
    x = layers.GlobalAveragePooling2D()(layers.MaxPooling2D(3, 2)(x))
    model = keras.Model(inputs, layers.Dense(4, activation="softmax")(x), name="vgg")
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


VGG = Case(_vgg, images(64), budget=0.6)


def _infeasible_plainly(model, case):
    """The least budget without codes, in bytes."""
    with pytest.raises(InfeasibleBudgetError) as caught:
        compile_quickly(model, case, budget=1000)
    return caught.value.minimum_bytes


@pytest.mark.feature("Training", 'gradients that read codes: `operators="choose"`')
def test_choice_needs_less_memory_with_the_same_numbers(no_grappler):
    model, plain = make(VGG), make(VGG)
    least = _infeasible_plainly(model, VGG)
    compile_quickly(model, VGG, budget=int(0.97 * least), operators="choose")
    report = model.checkmate
    assert set(report.encodings) <= {"relu", "relu6", "pool", "mask"} and report.encodings["pool"] >= 1
    assert report.predicted_peak_bytes <= report.budget_bytes < least
    assert report.overhead == pytest.approx(report.schedule.cost / report.base_cost - 1)
    assert report.base_cost < report.schedule.graph.base_cost
    assert "gradients read codes" in report.table() and report.to_dict()["encodings"] == dict(report.encodings)
    assert train(model, VGG) == train(plain, VGG)
    assert_same_state(model, plain)


def test_choosing_ends_when_little_is_gained(monkeypatch):
    """Whatever the time limit is: solving for a plan ends then, too."""
    asked, real = [], encodings.solve
    monkeypatch.setattr(encodings, "solve", lambda *given: asked.append(given[-1]) or real(*given))
    compile_quickly(make(VGG), VGG, operators="choose")
    assert asked and all(limits.settle for limits in asked)


@pytest.mark.long
@pytest.mark.parametrize("name", ["residual", "transformer"])
def test_choice_is_no_worse_on_other_models(name, no_grappler):
    case = CASES[name]
    model, chosen, plain = make(case), make(case), make(case)
    compile_quickly(model, case)
    compile_quickly(chosen, case, operators="choose")
    assert chosen.checkmate.overhead <= model.checkmate.overhead + 0.02
    assert train(chosen, case) == train(plain, case)
    assert_same_state(chosen, plain)


def _codes_lose(monkeypatch, lost_bytes):
    """Let the device's allocator lose so much more to pieces where gradients read codes."""
    says(monkeypatch, lambda job, predicted, strict: steady(predicted + (lost_bytes if job.subject.codes else 0)))


@pytest.mark.long
@pytest.mark.parametrize("share", [0.5, 25.0])
def test_codes_for_which_the_device_takes_more_than_they_save_are_taken_back(monkeypatch, no_grappler, share):
    peaks = peaks_of(VGG)
    _codes_lose(monkeypatch, peaks.span(share))
    default, chosen = (
        compile_quickly(make(VGG), VGG, verify=True, budget=peaks.at(0.6), operators=way).checkmate
        for way in ("default", "choose")
    )
    assert chosen.overhead <= default.overhead + POLICY.worth
    assert chosen.sure_bytes <= POLICY.sure * chosen.budget_bytes
    assert bool(chosen.encodings) == (len(chosen.schedule.graph) > len(default.schedule.graph))


@pytest.mark.long
def test_what_trains_over_the_budget_goes_on_without_codes_if_nothing_fits_with_them(monkeypatch, no_grappler):
    """Others take half of what the budget leaves above the least with codes and what they lose; all of it without."""
    plainly, coded = peaks_of(VGG), _peaks_with_codes(VGG)
    budget, others = plainly.at(0.8), plainly.span(0.4)
    _codes_lose(monkeypatch, int(POLICY.sure * budget) - coded.least_bytes - others // 2)
    monkeypatch.setattr(fitted, "_cheaper", lambda other, fitting, ledger: None)
    model = compile_quickly(make(VGG), VGG, verify=True, budget=budget, operators="choose")
    first = model.checkmate
    assert first.encodings
    crowd(monkeypatch, [first.sure_bytes + others])
    plain = make(VGG)
    assert train(plain, VGG) == train(model, VGG)
    assert_same_state(plain, model)
    again = model.checkmate
    assert not again.encodings and again.replanned == 1 and again.measured_peak_bytes < first.measured_peak_bytes
    assert again.plain_cost is None and 0 < again.overhead == again.schedule.overhead


def _peaks_with_codes(case):
    """Those of the step with codes, on a device whose kernels take nothing for themselves."""
    return peaks_of_graph(_coded(program_of(make(case), case)).graph)


def _coded(plain):
    """The program of a step all of whose gradients read codes where they can."""
    step = encoded(plain.step, find_encodings(plain.step)).step
    shapes = [plain.static.tensors[id(t)].shape for t in plain.step.inputs]
    return build_program(step, with_static_batch(step, shapes), plain.graph.name)


def test_a_mask_that_is_an_input_is_left_alone():
    def step(batch):
        mask, g = batch
        with tf.name_scope("gradient_tape/"):
            return tf.where(mask, g, tf.zeros_like(g))

    specs = tf.TensorSpec([None, 64, 64], tf.bool), tf.TensorSpec([None, 64, 64])
    step = trace_step(step, specs)
    assert find_encodings(step) == []


@pytest.mark.long
def test_a_smaller_last_batch(no_grappler):
    model, plain = make(VGG), make(VGG)
    compile_quickly(model, VGG, operators="choose")
    assert sum(model.checkmate.encodings.values()) > 5
    x, y = VGG.data(2 * VGG.batch + 5)
    for each in (model, plain):
        each.fit(x, y, batch_size=VGG.batch, shuffle=False, verbose=0)
    assert_same_state(model, plain)


def test_the_encoded_step_has_the_plain_ones_operations():
    program = program_of(make(VGG), VGG)
    found = find_encodings(program.step)
    kinds = [e.kind for e in found]
    assert kinds.count("relu") == 4 and kinds.count("pool") == 2 and kinds.count("relu6") == 1
    copy = encoded(program.step, found)
    assert set(copy.operations) >= set(program.step.operations)
    position = {op: k for k, op in enumerate(copy.step.operations)}
    assert len(position) == len(copy.step.operations)
    for op in copy.step.operations:
        assert all(position[t.op] < position[op] for t in op.inputs)
    plain = encoded(program.step, [])
    assert [op.type for op in plain.step.operations] == [op.type for op in program.step.operations]


def test_codes_are_decoded_when_the_gradient_comes():
    """A code is there from the forward pass on: even where nothing waits for memory, it is not decoded before."""
    plain = program_of(make(VGG), VGG)
    program = _coded(plain)
    made = []

    def run(*inputs):
        made.append(Emission(program, tf.compat.v1.get_default_graph(), inputs))
        made[0].run(keep_all(program.graph).plan, [0] * len(program.graph))

    tf.function(run, autograph=False).get_concrete_function(
        *(tf.TensorSpec(t.shape, t.dtype) for t in program.step.inputs)
    )
    from_codes = [
        copies[0]
        for op, copies in made[0].copies.items()
        if "checkmate/decode" in op.name
        and program.classes[op] == LARGE
        and any("checkmate/encode" in program.source_of(t).name for t in inputs_of(op))
    ]
    assert len(from_codes) >= len(find_encodings(plain.step))
    for op in from_codes:
        (done,) = op.control_inputs
        assert done.name.startswith("checkmate/done") and "gradient" in done.inputs[0].op.name


@pytest.mark.long
def test_gradients_of_a_loop_of_ones_own(no_grappler):
    model = make(VGG)
    x, y = VGG.data(VGG.batch)
    loss = "sparse_categorical_crossentropy"
    options = {"batch_size": VGG.batch, "costs": "flops", "verify": False, "progress": False, "time_limit": 10}
    least = _infeasible_plainly(make(VGG), VGG)
    plain = checkmate_tf.gradient_function(model, loss, budget="10GB", **options)
    ours = checkmate_tf.gradient_function(model, loss, budget=int(0.97 * least), operators="choose", **options)
    assert ours.checkmate.encodings
    seeds = [v for v in model.variables if "seed" in v.path]
    start = [v.numpy() for v in seeds]
    expected = plain(x, y)
    for v, value in zip(seeds, start, strict=True):
        v.assign(value)
    for a, b in zip(tf.nest.flatten(expected), tf.nest.flatten(ours(x, y)), strict=True):
        assert _bits(a) == _bits(b)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"operators": "all"}, "operators='all' is unknown"),
        ({"operators": "choose", "schedule": "saved.json"}, "does not go with schedule"),
    ],
)
def test_refused(options, match):
    model = make(DENSE)
    with pytest.raises(OperatorsError, match=match):
        compile_quickly(model, DENSE, **options)
    assert not hasattr(model, "checkmate")


def test_refused_under_xla():
    model = make(DENSE)
    model.compile("adam", "sparse_categorical_crossentropy", jit_compile=True)
    with pytest.raises(OperatorsError, match="XLA"):
        compile_quickly(model, DENSE, operators="choose")
