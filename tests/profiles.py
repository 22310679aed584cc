"""A table of profiled costs and a small model to profile, for the tests of profiles."""

from __future__ import annotations

import os

import numpy as np
import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
keras = pytest.importorskip("keras")

from checkmate_tf.profiles.table import ProfileTable  # noqa: E402

L = keras.layers


def table_of(batch_sizes=(2, 4), medians=((1.0, 2.0), (3.0, 5.0), (7.0, 11.0)), **other):
    """A profile of a model with one layer."""
    medians = np.array(medians)
    names = other.pop("names", ("dense", "loss", "grad_dense")[: len(medians)])
    kinds = other.pop("kinds", ("forward", "loss", "backward")[: len(medians)])
    given = {
        "model": "one",
        "inputs": ((None, 3),),
        "parameters": 8,
        "device": "abacus",
        "versions": {"keras": "3"},
        "precision": "float32",
        "level": "layer",
    } | other
    ones = np.ones(medians.shape, int)
    return ProfileTable(
        **given,
        batch_sizes=tuple(batch_sizes),
        names=names,
        kinds=kinds,
        median_us=medians,
        spread_us=0.5 * ones,
        repetitions=3 * ones,
    )


def dense_model(units=2, compiled=True):
    model = keras.Sequential([keras.Input((3,)), L.Dense(units)])
    if compiled:
        model.compile(optimizer="sgd", loss="mse")
    return model
