"""Which model a profile is of: fingerprints of layers, losses and operations, in files and against models."""

from __future__ import annotations

import json
import logging
import os

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
keras = pytest.importorskip("keras")
import tensorflow as tf  # noqa: E402
from profiles import table_of  # noqa: E402

from checkmate_tf.errors import CostError  # noqa: E402
from checkmate_tf.keras.api import op_graph  # noqa: E402
from checkmate_tf.profiles import layers, run  # noqa: E402
from checkmate_tf.profiles.file import profile_from_dict, profile_to_dict  # noqa: E402
from checkmate_tf.profiles.identity import differs_from, fingerprint_of  # noqa: E402
from checkmate_tf.profiles.layers import Column, Sample  # noqa: E402
from checkmate_tf.profiles.run import profile_model  # noqa: E402
from checkmate_tf.profiles.steps import op_costs_from, operations_digest, step_operations  # noqa: E402
from checkmate_tf.profiles.table import Fingerprint, merged  # noqa: E402

L = keras.layers


def conv_model(strides=1, activation="relu", loss="mse", optimizer=None):
    """Variants have equal names, inputs, weights and output shapes."""
    x = keras.Input((4, 4, 2))
    hidden = L.Conv2D(3, 3, strides=strides, padding="same", activation=activation, name="conv")(x)
    model = keras.Model(x, L.GlobalAveragePooling2D(name="pool")(hidden), name="net")
    if loss is not None:
        model.compile(optimizer or keras.optimizers.SGD(name="sgd"), loss)
    return model


@pytest.fixture
def instead_of_timing(monkeypatch):
    """Called in place of timing a layer."""
    called = []
    monkeypatch.setattr(
        layers, "_time_call", lambda timer, run: called.append(run.call.name) or [Sample(1.0), Sample(2.0)]
    )
    monkeypatch.setattr(layers, "_time_loss", lambda *_: [Sample(5.0)])
    return called


OTHERS = {
    "strides": {"strides": 2},
    "activation": {"activation": "gelu"},
    "loss": {"loss": "mae"},
    "loss settings": {"loss": keras.losses.MeanSquaredError(reduction="mean")},
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_a_profile_of_another_model_with_equal_names_and_shapes_is_refused(other, tmp_path, instead_of_timing):
    table, _ = profile_model(conv_model(), [2], tmp_path)
    assert differs_from(conv_model())(table) == ""
    assert differs_from(conv_model(**other))(table)
    with pytest.raises(CostError, match="of another model .*: give another folder"):
        profile_model(conv_model(**other), [4], tmp_path)
    assert profile_model(conv_model(), [4], tmp_path)[0].batch_sizes == (2, 4)


def test_the_loss_counts_where_a_model_is_compiled(instead_of_timing):
    table, _ = profile_model(conv_model(), [2])
    assert "its loss is mean_squared_error, this model's is mean_absolute_error" in differs_from(
        conv_model(loss="mae")
    )(table)
    assert differs_from(conv_model(loss=None))(table) == ""
    assert differs_from(conv_model(strides=2, loss=None))(table)
    for same in (
        "MSE",
        "mean_squared_error",
        keras.losses.MeanSquaredError(),
        keras.losses.mean_squared_error,
        ["mse"],
    ):
        assert differs_from(conv_model(loss=same))(table) == ""
    assert "sum" in differs_from(conv_model(loss=keras.losses.MeanSquaredError(reduction="sum")))(table)


def test_rates_and_counted_names_are_no_other_operations():
    one, other = (conv_model(optimizer=keras.optimizers.Adam(epsilon=epsilon)) for epsilon in (1e-7, 1e-6))
    digests = [operations_digest(step_operations(model, 2)) for model in (one, other)]
    assert digests[0] == digests[1]


def test_operations_are_known_by_their_attributes():
    one, other = (step_operations(conv_model(strides), 2) for strides in (1, 2))
    assert operations_digest(one) == operations_digest(list(reversed(one)))
    assert operations_digest(one) != operations_digest(other)
    table = table_of(
        level="op",
        inputs=((None, 4, 4, 2),),
        parameters=57,
        fingerprint=fingerprint_of(conv_model(), "op", 2),
    )
    assert differs_from(conv_model())(table) == ""
    assert "other operations" in differs_from(conv_model(strides=2))(table)


class _Scaled(L.Layer):
    """Holds a small tensor, which is a constant in each trace."""

    def build(self, shape):
        self.scale = tf.constant(2.0)

    def call(self, x):
        return x * self.scale


def test_constants_that_are_named_by_number_do_not_count():
    x = keras.Input((3,))
    model = keras.Model(x, _Scaled(name="scaled")(L.Dense(2, name="dense")(x)))
    model.compile(keras.optimizers.SGD(name="sgd"), "mse")
    one, other = step_operations(model, 2), step_operations(model, 2)
    assert operations_digest(one) == operations_digest(other)
    names, kinds = tuple(op.name for op in one), tuple(op.type for op in one)
    table = table_of(level="op", names=names, kinds=kinds, medians=[[1.0, 2.0]] * len(one))
    assert op_graph(model, 2, op_costs_from(table, 2)).costs.sum() > 0


def test_a_pass_over_another_step_is_not_resumed(tmp_path, monkeypatch):
    """Its operations are as many."""
    keys = []

    class Noted(run.Journal):
        def put(self, key, values):
            keys.append(key)
            super().put(key, values)

    monkeypatch.setattr(run, "Journal", Noted)
    from checkmate_tf.costs import timed

    monkeypatch.setattr(
        timed, "time_ops", lambda ops, **_: timed.OpTimes([1.0] * len(ops), [True] * len(ops), 0.0, 1, 0, timed.Rates())
    )
    for strides in (1, 1, 2):
        profile_model(conv_model(strides), [2], level="op", repetitions=1)
    assert keys[0] == keys[1] != keys[2]


def test_a_fingerprint_is_kept_in_the_file_and_checked():
    table = table_of(fingerprint=Fingerprint(2, "abc", "mse"))
    document = json.loads(json.dumps(profile_to_dict(table)))
    assert document["fingerprint"] == {"batch_size": 2, "nodes": "abc", "loss": "mse"}
    assert profile_from_dict(document).fingerprint == table.fingerprint
    for field, value in (("batch_size", 0), ("nodes", 3), ("loss", None)):
        bad = {**document, "fingerprint": {**document["fingerprint"], field: value}}
        with pytest.raises(CostError, match=f"fingerprint: {field} is"):
            profile_from_dict(bad, "shared.json")
    with pytest.raises(CostError, match="differ in fingerprint"):
        merged(table, table_of((8, 16), fingerprint=Fingerprint(2, "xyz", "mse")))


def test_a_file_of_an_earlier_version_is_taken_with_a_warning(tmp_path, caplog, instead_of_timing):
    _, path = profile_model(conv_model(), [2], tmp_path)
    document = json.loads(path.read_text())
    del document["fingerprint"]
    path.write_text(json.dumps(document))
    with caplog.at_level(logging.WARNING):
        table, _ = profile_model(conv_model(), [4], tmp_path)
    assert "no fingerprint" in caplog.text
    assert table.batch_sizes == (2, 4) and table.fingerprint is None  # of batch 2 nothing is known


def test_a_model_that_cannot_be_compared_is_another(instead_of_timing):
    table, _ = profile_model(conv_model(), [2])
    differs = run.unlike(table, lambda batch: fingerprint_of(conv_model(), "layer", 0))
    assert "cannot be compared at batch 2" in differs


def test_what_another_process_wrote_meanwhile_stays(tmp_path, monkeypatch):
    def timed(model, batch, **_):
        if batch == 8:
            profile_model(conv_model(), [4], tmp_path)
        names = ("conv", "pool", "loss", "grad_pool", "grad_conv")
        kinds = ("forward", "forward", "loss", "backward", "backward")
        return Column(names, kinds, tuple(Sample(float(batch)) for _ in names))

    monkeypatch.setattr(run, "time_layers", timed)
    table, _ = profile_model(conv_model(), [8], tmp_path)
    assert table.batch_sizes == (4, 8) and table.median_us[0].tolist() == [4.0, 8.0]


def test_counters_of_keras_do_not_matter_when_tables_are_joined():
    names = tuple(name.replace("dense", "dense_77") for name in ("dense", "loss", "grad_dense"))
    assert merged(table_of(), table_of((8, 16), names=names)).batch_sizes == (2, 4, 8, 16)
