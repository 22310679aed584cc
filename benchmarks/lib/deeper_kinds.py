"""Kinds of models again, with more layers and more samples: what their activations take is most of a step's memory.

In the small ones, which tests train, batches that are kept ready take as much. A budget has little to choose there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import keras
import tensorflow as tf
from keras import layers

from benchmarks.lib.kinds import (
    KINDS,
    ROWS,
    Kind,
    classifier,
    clipped,
    foreign,
    fourier,
    masked_state,
    padded_sentences,
    picked,
    random_arrays,
    scanned,
    tanh_eagerly,
)
from benchmarks.lib.kinds_by_data import decides, features, few, looped, mapped, ranged, repeated, routed, shortened
from benchmarks.lib.small_models import dropout, gru, in_space

__all__ = ["DEEPER"]

BLOCKS, BATCH = 5, 256
SERIES, VOLUME, NUMBERS = (32, 16), (8, 8, 8, 3), (64,)


def stacked(shape: tuple[int, ...], made: Callable[[], Sequence[layers.Layer]]) -> keras.Model:
    """Layers one after the other, and a classifier."""
    inputs = x = keras.Input(shape)
    for layer in made():
        x = layer(x)
    return classifier(inputs, x)


def both_ways() -> list[layers.Layer]:
    return [layers.Bidirectional(layers.GRU(24, return_sequences=True)) for _ in range(3)]


def _again(name: str, build: Any, data: Any = ROWS, batch: int = BATCH) -> Kind:
    return Kind(KINDS[name].title, build, data, batch)


DEEPER = {
    "fourier": _again("fourier", partial(fourier, 8)),
    "py_function": _again("py_function", partial(foreign, tf.py_function, tanh_eagerly, BLOCKS)),
    "numpy_function": _again("numpy_function", partial(foreign, tf.numpy_function, clipped, BLOCKS)),
    "mask": _again("mask", partial(picked, "mask", BLOCKS)),
    "unique": _again("unique", partial(picked, "unique", BLOCKS)),
    "tensor array": _again("tensor array", partial(scanned, 6, 64), random_arrays((12, 16))),
    "masked state": _again("masked state", partial(masked_state, 2, BATCH), padded_sentences),
    "sparse": _again("sparse", partial(features, 8), few, 1024),
    **{
        way.__name__: _again(way.__name__, partial(decides, way, BLOCKS))
        for way in (ranged, routed, looped, repeated, shortened)
    },
    "mapped": _again("mapped", partial(decides, mapped, BLOCKS + 1)),
    "dropout": Kind(
        "dense layers, dropout", partial(stacked, NUMBERS, partial(dropout, BLOCKS)), random_arrays(NUMBERS), 2048
    ),
    "conv3d": Kind(
        "convolutions of a volume", partial(stacked, VOLUME, partial(in_space, BLOCKS)), random_arrays(VOLUME), 128
    ),
    "gru": Kind("GRU, 3 layers", partial(stacked, SERIES, partial(gru, 3)), random_arrays(SERIES), BATCH),
    "bidirectional": Kind("GRU, 3 layers, both directions", partial(stacked, (24, 32), both_ways), ROWS, BATCH),
}
"""By name."""
