"""Networks with branches that wait for each other, where the order of computation is open. With random data, small."""

from __future__ import annotations

from typing import Any

import keras
import networkx
import tensorflow as tf

from checkmate_tf.check.networks import Network

__all__ = ["BRANCHING", "Adversarial", "towers", "wired"]

L = keras.layers


class Adversarial(keras.Model):
    """A maker of images and a judge of them, each with an optimizer of its own."""

    def __init__(self, size: int = 32, latent: int = 64, width: int = 32) -> None:
        super().__init__(name="adversarial")
        self.latent, self.seeds = latent, keras.random.SeedGenerator(0)
        self.judge = keras.Sequential([keras.Input((size, size, 3))], name="judge")
        for k in range(3):
            self.judge.add(L.Conv2D(width << k, 4, strides=2, padding="same", activation="leaky_relu"))
        self.judge.add(L.Flatten())
        self.judge.add(L.Dense(1))
        small = size // 8
        self.maker = keras.Sequential([keras.Input((latent,)), L.Dense(small * small * 4 * width)], name="maker")
        self.maker.add(L.Reshape((small, small, 4 * width)))
        for k in (2, 1, 0):
            self.maker.add(L.Conv2DTranspose(width << k, 4, strides=2, padding="same", use_bias=False))
            self.maker.add(L.BatchNormalization())
            self.maker.add(L.ReLU())
        self.maker.add(L.Conv2D(3, 3, padding="same", activation="tanh"))
        self.criterion = keras.losses.BinaryCrossentropy(from_logits=True)
        self.built = True

    def compile(self, optimizer: str, loss: Any = None, metrics: Any = None) -> None:
        super().compile(optimizer=optimizer)
        self.maker_optimizer = keras.optimizers.get(optimizer)
        self.maker_optimizer.build(self.maker.trainable_variables)
        self.judge_loss = keras.metrics.Mean(name="judge_loss")

    @property
    def metrics(self) -> list[keras.metrics.Metric]:
        return [self.judge_loss]

    def train_step(self, data: Any) -> dict[str, Any]:
        real = data[0]
        n = tf.shape(real)[0]
        made = self.maker(keras.random.normal((n, self.latent), seed=self.seeds), training=True)
        labels = tf.concat([tf.zeros((n, 1)), tf.ones((n, 1))], axis=0)
        with tf.GradientTape() as tape:
            loss = self.criterion(labels, self.judge(tf.concat([real, made], axis=0), training=True))
        weights = self.judge.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        with tf.GradientTape() as tape:
            made = self.maker(keras.random.normal((n, self.latent), seed=self.seeds), training=True)
            fooled = self.criterion(tf.zeros((n, 1)), self.judge(made, training=True))
        weights = self.maker.trainable_variables
        self.maker_optimizer.apply_gradients(zip(tape.gradient(fooled, weights), weights, strict=True))
        self.judge_loss.update_state(loss)
        return {"judge_loss": self.judge_loss.result()}


def towers(size: int = 48, width: int = 32, blocks: int = 3) -> keras.Model:
    """Two towers without anything in common: one sees the image in full, one at half size; then one head."""
    inputs = keras.Input((size, size, 3))
    ends = []
    for step in (1, 2):
        x = inputs[:, ::step, ::step]
        for k in range(blocks):
            x = L.ReLU()(L.BatchNormalization()(L.Conv2D(width << k, 3, padding="same")(x)))
            x = L.MaxPooling2D()(L.Conv2D(width << k, 3, padding="same", activation="relu")(x))
        ends.append(L.GlobalAveragePooling2D()(x))
    x = L.Dense(128, activation="relu")(L.Concatenate()(ends))
    return keras.Model(inputs, L.Dense(10, activation="softmax")(x), name="towers")


def wired(seed: int, nodes: int = 12, size: int = 32, width: int = 32) -> keras.Model:
    """Convolutions wired at random, a small world of Watts and Strogatz (as Xie et al., ICCV 2019)."""
    wires = networkx.connected_watts_strogatz_graph(nodes, 4, 0.75, seed=seed)
    inputs = keras.Input((size, size, 3))
    stem = L.Conv2D(width, 3, padding="same")(inputs)
    values: list[Any] = []
    for node in range(nodes):
        read = [values[i] for i in sorted(wires.neighbors(node)) if i < node] or [stem]
        x = L.Add()(read) if len(read) > 1 else read[0]
        values.append(L.BatchNormalization()(L.SeparableConv2D(width, 3, padding="same")(L.ReLU()(x))))
    ends = [values[i] for i in range(nodes) if all(j < i for j in wires.neighbors(i))]
    x = L.GlobalAveragePooling2D()(L.Average()(ends) if len(ends) > 1 else ends[0])
    return keras.Model(inputs, L.Dense(10, activation="softmax")(x), name=f"wired{seed}")


BRANCHING = {
    "adversarial": Network("maker and judge (GAN), 32 px", Adversarial, (32, 32, 3), classes=0, loss="mse"),
    "towers": Network("two towers, 48 px", towers, (48, 48, 3)),
    "wired1": Network("randomly wired, seed 1, 32 px", lambda: wired(1), (32, 32, 3)),
    "wired2": Network("randomly wired, seed 2, 32 px", lambda: wired(2), (32, 32, 3)),
}
"""By the name that scripts take."""
