"""Networks to train, with random data of the right kind. Sizes suit a small machine; `sized` suits them to others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import keras
import numpy as np
from numpy.typing import NDArray

from ..fit.pipeline import step_graph
from ..keras.batches.spec import data_spec
from ..keras.built.building import build_training
from ..keras.frameworks import bytes_of_variables
from ..schedule import keep_all

__all__ = ["NETWORKS", "Network", "application", "lstm", "sized", "small", "transformer", "unet"]

L = keras.layers
_TRACED = 8  # samples


@dataclass(frozen=True)
class Network:
    """A model to train: how to build it, and its batch.

    Targets are classes. Without classes they are numbers like the inputs, or the inputs themselves where no shape is
    given.
    """

    title: str
    build: Callable[[], keras.Model]
    input_shape: tuple[int, ...]
    target_shape: tuple[int, ...] = ()
    classes: int = 10
    vocabulary: int = 0
    batch_size: int = 32
    loss: str = "sparse_categorical_crossentropy"

    def model(self, seed: int = 0) -> keras.Model:
        """Built and compiled, with weights that the seed decides, and without XLA, which Keras chooses on GPUs."""
        keras.utils.set_random_seed(seed)
        model = self.build()
        model.compile(optimizer="adam", loss=self.loss, metrics=["accuracy"] if self.classes else None)
        model.jit_compile = False
        model.optimizer.build(model.trainable_variables)
        return model

    def data(self, batches: int, seed: int = 0) -> tuple[NDArray[Any], NDArray[Any]]:
        """Inputs and targets for whole batches."""
        rng = np.random.default_rng(seed)
        n = batches * self.batch_size
        if self.vocabulary:
            x = rng.integers(0, self.vocabulary, (n, *self.input_shape)).astype("int32")
        else:
            x = rng.standard_normal((n, *self.input_shape)).astype("float32")
        if self.classes:
            return x, rng.integers(0, self.classes, (n, *self.target_shape)).astype("int64")
        return x, rng.standard_normal((n, *self.target_shape)).astype("float32") if self.target_shape else x


def application(name: str, size: int, **options: object) -> Callable[[], keras.Model]:
    """A network of keras.applications with random weights."""
    return lambda: getattr(keras.applications, name)(
        weights=None, input_shape=(size, size, 3), classes=10, name=name.lower(), **options
    )


def unet(size: int = 96, width: int = 16, classes: int = 5) -> keras.Model:
    """U-Net with three levels."""
    x = inputs = keras.Input((size, size, 3))
    skips = []
    for filters in (width, 2 * width, 4 * width):
        for _ in range(2):
            x = L.Conv2D(filters, 3, padding="same", activation="relu")(x)
        skips.append(x)
        x = L.MaxPool2D()(x)
    for _ in range(2):
        x = L.Conv2D(8 * width, 3, padding="same", activation="relu")(x)
    for filters, skip in zip((4 * width, 2 * width, width), reversed(skips), strict=True):
        x = L.Concatenate()([L.Conv2DTranspose(filters, 2, strides=2)(x), skip])
        for _ in range(2):
            x = L.Conv2D(filters, 3, padding="same", activation="relu")(x)
    return keras.Model(inputs, L.Conv2D(classes, 1, activation="softmax")(x), name="unet")


def transformer(layers: int = 4, length: int = 128, width: int = 128, heads: int = 4) -> keras.Model:
    """An encoder with dropout, and a classifier on the mean of its outputs."""
    inputs = keras.Input((length,), dtype="int32")
    x = L.Embedding(1000, width)(inputs)
    for _ in range(layers):
        attention = L.MultiHeadAttention(heads, width // heads, dropout=0.1)(x, x)
        x = L.LayerNormalization()(x + L.Dropout(0.1)(attention))
        hidden = L.Dense(width)(L.Dense(4 * width, activation="gelu")(x))
        x = L.LayerNormalization()(x + L.Dropout(0.1)(hidden))
    return keras.Model(inputs, L.Dense(10, activation="softmax")(L.GlobalAveragePooling1D()(x)), name="transformer")


def lstm(length: int = 128, width: int = 128) -> keras.Model:
    """Four recurrent layers."""
    layers = [L.LSTM(width, return_sequences=k < 3) for k in range(4)]
    return keras.Sequential([keras.Input((length, 32)), *layers, L.Dense(10, activation="softmax")], name="lstm")


def small(size: int = 32, width: int = 32, blocks: int = 6) -> keras.Model:
    """A residual network with dropout, soon trained: for comparing all strategies."""
    x = inputs = keras.Input((size, size, 3))
    x = L.Conv2D(width, 3, padding="same", activation="relu")(x)
    for _ in range(blocks):
        y = L.ReLU()(L.BatchNormalization()(L.Conv2D(width, 3, padding="same", use_bias=False)(x)))
        y = L.BatchNormalization()(L.Conv2D(width, 3, padding="same")(y))
        x = L.Dropout(0.1)(L.ReLU()(L.Add()([x, y])))
    return keras.Model(inputs, L.Dense(10, activation="softmax")(L.GlobalAveragePooling2D()(x)), name="small")


NETWORKS = {
    "small": Network("small residual network, 32 px", small, (32, 32, 3), batch_size=64),
    "mobilenet": Network("MobileNet, 96 px", application("MobileNet", 96), (96, 96, 3)),
    "resnet50": Network("ResNet50, 96 px", application("ResNet50", 96), (96, 96, 3)),
    "vgg16": Network("VGG16, 64 px", application("VGG16", 64), (64, 64, 3), batch_size=64),
    "unet": Network("U-Net, 96 px", unet, (96, 96, 3), target_shape=(96, 96), classes=5),
    "transformer": Network("transformer, 4 layers, dropout", transformer, (128,), vocabulary=1000),
    "lstm": Network("LSTM, 4 layers", lstm, (128, 32), batch_size=64),
}


def sized(network: Network, model: keras.Model, memory_bytes: int) -> Network:
    """The same with a batch whose plain step fills a memory, beside its variables, by prediction.

    `model` is one of the network. It is traced, not trained.
    """
    spec, _ = data_spec(model, None, None, replace(network, batch_size=_TRACED).data(1))
    build_training(model, spec, model.train_step)
    peak = keep_all(step_graph(model.train_step, spec, _TRACED, "flops", model.name)).peak_bytes
    samples = int(memory_bytes / (peak - bytes_of_variables(model)) * _TRACED)
    return replace(network, batch_size=max(1, samples if samples < 16 else samples // 8 * 8))
