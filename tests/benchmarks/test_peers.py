"""The benchmarks against others: segments under tf.recompute_grad are the model, and bisection finds the threshold."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import example, given
from hypothesis import strategies as st

from benchmarks.lib.cells import FAILED, ChildError, in_child, run_cells
from benchmarks.lib.rivals import chosen, cut, ranked, recompute_by_segments
from benchmarks.product.batch_size_real import OUT_OF_MEMORY, ended, largest

L = keras.layers


def sequential():
    layers = [layer for _ in range(4) for layer in (L.Dense(6), L.ReLU())]
    return keras.Sequential([keras.Input((5,)), *layers, L.Dense(3)])


def residual():
    x = inputs = keras.Input((5,))
    x = L.Dense(6)(x)
    for _ in range(3):
        x = L.ReLU()(L.Add()([x, L.Dense(6)(L.ReLU()(L.Dense(6)(x)))]))
    return keras.Model(inputs, L.Dense(3)(x))


def u_shaped():
    x = inputs = keras.Input((8, 8, 2))
    skips = []
    for width in (3, 4):
        x = L.Conv2D(width, 3, padding="same", activation="relu")(x)
        skips.append(x)
        x = L.MaxPool2D()(x)
    x = L.Conv2D(5, 3, padding="same", activation="relu")(x)
    for skip in reversed(skips):
        x = L.Concatenate()([L.UpSampling2D()(x), skip])
        x = L.Conv2D(4, 3, padding="same", activation="relu")(x)
    return keras.Model(inputs, L.Dense(3)(L.Flatten()(x)))


MODELS = [sequential, residual, u_shaped]


def loss_and_gradients(model, x):
    @tf.function(autograph=False)
    def step(x):
        with tf.GradientTape() as tape:
            y = model(x, training=True)
            loss = tf.reduce_sum(y * y)
        return y, tape.gradient(loss, [v.value for v in model.trainable_variables])

    function = step.get_concrete_function(tf.TensorSpec(x.shape, tf.float32))
    y, gradients = function(x)
    return y.numpy(), [g.numpy() for g in gradients], len(function.graph.get_operations())


@pytest.mark.long(but=("residual-layers", "u_shaped-bytes"))
@pytest.mark.parametrize("even", ["layers", "bytes"])
@pytest.mark.parametrize("make", MODELS)
def test_segments_compute_what_the_model_does(make, even):
    keras.utils.set_random_seed(0)
    model = make()
    x = np.random.default_rng(0).standard_normal((3, *model.input_shape[1:])).astype("float32")
    before, gradients, operations = loss_and_gradients(model, x)
    segments = recompute_by_segments(model, 1.5, even)
    assert len(segments) > 2
    after, others, more = loss_and_gradients(model, x)
    np.testing.assert_allclose(after, before, rtol=1e-6)
    np.testing.assert_allclose(model(x, training=False), before, rtol=1e-6)
    for one, other in zip(others, gradients, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    assert more > operations  # something is computed again


@pytest.mark.parametrize("share", [0.3, 1.0, 10.0])
@pytest.mark.parametrize("make", MODELS)
def test_segments_hold_every_layer_once_and_hand_on_what_is_read(make, share):
    model = make()
    segments = cut(model, share)
    layers = [node.operation.name for segment in segments for node in segment.nodes]
    inputs = [layer.name for layer in model.layers if isinstance(layer, L.InputLayer)]
    assert sorted(layers + inputs) == sorted(layer.name for layer in model.layers)
    known = {id(t) for t in model.inputs}
    for segment in segments:
        assert segment.nodes
        assert {id(t) for t in segment.inputs} <= known
        known |= {id(t) for t in segment.outputs}
    assert {id(t) for t in model.outputs} <= known


def test_residual_blocks_are_cut_between_blocks():
    segments = cut(residual())
    assert len(segments) > 2
    assert all(len(segment.outputs) == 1 for segment in segments)


def test_batch_normalization_is_updated_twice_and_in_training_mode():
    """What the benchmark is to show of tf.recompute_grad, and that the second pass is no inference."""
    model = keras.Sequential(
        [keras.Input((4,)), L.BatchNormalization(momentum=0.5), L.Dense(2), L.Dense(2), L.Dense(1)]
    )
    x = np.random.default_rng(0).standard_normal((8, 4)).astype("float32") + 3
    once = 0.5 * x.mean(0)
    assert len(recompute_by_segments(model)) > 1
    loss_and_gradients(model, x)
    np.testing.assert_allclose(model.layers[0].moving_mean, 0.5 * once + 0.5 * x.mean(0), rtol=1e-5)


def test_dropout_is_drawn_twice_and_the_first_draw_is_the_models(no_grappler):
    """What the benchmark is to show of tf.recompute_grad: the loss is right, the seeds are not."""
    ends = []
    for recompute in (False, True):
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((16,)), L.Dense(16), L.Dropout(0.5), L.Dense(4), L.Dense(4), L.Dense(2)])
        seed = model.layers[1].seed_generator.state
        before = np.array(seed)
        if recompute:
            segments = recompute_by_segments(model)
            assert "Dropout" in [type(node.operation).__name__ for node in segments[0].nodes]
        y, gradients, _ = loss_and_gradients(model, np.ones((8, 16), "float32"))
        ends.append((y, gradients, (np.array(seed) - before).tolist()))
    (y, gradients, advanced), (again, others, twice) = ends
    np.testing.assert_allclose(again, y, rtol=1e-6)
    assert (advanced, twice) == ([0, 1], [0, 2])
    assert not np.allclose(others[0], gradients[0], rtol=1e-2)


def test_models_that_cannot_be_cut_are_refused():
    class Own(keras.Model):
        pass

    with pytest.raises(TypeError, match="neither functional"):
        cut(Own())
    masked = keras.Sequential([keras.Input((4,), dtype="int32"), L.Embedding(9, 2, mask_zero=True), L.LSTM(2)])
    with pytest.raises(ValueError, match="mask"):
        cut(masked)


@given(threshold=st.integers(0, 5000), first=st.integers(1, 600), most=st.integers(1, 4096))
@example(threshold=0, first=1, most=4096)
def test_bisection_finds_the_threshold_of_a_child(threshold, first, most):
    asked = []

    def trains(batch):
        asked.append(batch)
        return batch <= threshold

    low, high = largest(trains, first, most)
    assert low == 0 or low in asked
    assert low <= threshold
    assert len(set(asked)) == len(asked) <= 32
    assert max(asked) <= most
    if high is None:
        assert low == most
    else:
        assert high in asked
        assert threshold < high <= low + max(1, 0.05 * low)


@given(data=st.data(), first=st.integers(1, 40))
def test_what_bisection_answers_was_seen_to_train(data, first):
    """Luck and fragments: a batch may fail where a larger one trains."""
    outcomes = {}

    def trains(batch):
        outcomes[batch] = data.draw(st.booleans())
        return outcomes[batch]

    low, high = largest(trains, first, 256)
    assert low == 0 or outcomes[low]
    assert high is None or not outcomes[high]


CHILD = """
import json, os, signal, sys
request = json.loads(sys.argv[2])
if request["batch"] > 3:
    os.kill(os.getpid(), signal.SIGABRT)
if request["batch"] == 3:
    sys.exit("TypeError: a mistake of the script")
if request["batch"] == 2:
    sys.exit("RESOURCE_EXHAUSTED: OOM when allocating tensor")
print("RESULT " + json.dumps({"outcome": "trains", "limit": os.environ["LIMIT"]}))
"""


def test_a_crash_is_out_of_memory_and_a_mistake_is_not(tmp_path):
    script = tmp_path / "child.py"
    script.write_text(CHILD)
    requests = [{"cell": f"cell-{batch}", "batch": batch} for batch in (1, 2, 3, 4)]
    run = (str(script), tmp_path, requests, lambda _: 60.0, False, {"LIMIT": "7"}, ended)
    cells = run_cells(*run)
    assert [cell["outcome"] for cell in cells] == ["trains", OUT_OF_MEMORY, FAILED, OUT_OF_MEMORY]
    assert cells[0]["limit"] == "7"
    script.write_text("raise SystemExit('ran again')")
    assert [cell["outcome"] for cell in run_cells(*run)] == [cell["outcome"] for cell in cells]
    with pytest.raises(ChildError, match="ran again"):
        in_child(str(script), requests[0], 60.0)


def test_the_variant_of_least_peak_is_chosen():
    cells = [
        {"variant": {"way": "a", "mode": m}, "outcome": outcome, **({"peak_bytes": peak} if peak else {})}
        for m, outcome, peak in ((1, "measured", 9), (2, "raised", None), (3, "measured", 7), (4, "measured", 8))
    ]
    assert chosen(cells)["a"]["variant"]["mode"] == 3
    assert [cell["variant"]["mode"] for cell in ranked(cells)["a"]] == [3, 4, 1]
