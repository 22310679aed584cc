"""Two devices, one plan: each replica trains on its half of the batch, and within its own budget.

    python examples/two_replicas.py

The two devices are the CPU, split in two, so that this runs anywhere. On a machine with two GPUs leave out
`split_the_cpu` and the names of the devices.
"""

import os

# On a CPU TensorFlow counts the bytes of its tensors only if this is set before it is imported. A model on one device
# is measured then. The two devices here share one allocator, and nobody can tell which of them took what, so the report
# says that this plan is a prediction. Two GPUs would be measured.
os.environ.setdefault("TF_CPU_ALLOCATOR_USE_BFC", "true")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # fewer messages of TensorFlow itself

import keras
import numpy as np
import tensorflow as tf

import checkmate_tf

BATCH_SIZE = 64  # of both replicas together: 32 samples each


def split_the_cpu() -> None:
    """Two logical devices. This has to happen before TensorFlow uses the first."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)


def build_model() -> keras.Model:
    """Dense layers over a sequence."""
    x = inputs = keras.Input((64, 16))
    for _ in range(4):
        x = keras.layers.Dense(64)(x)
        x = keras.layers.LayerNormalization()(x)
        x = keras.layers.Dropout(0.1)(keras.layers.ReLU()(x))
    outputs = keras.layers.Dense(4, activation="softmax")(keras.layers.GlobalAveragePooling1D()(x))
    return keras.Model(inputs, outputs, name="replicated")


def make_data(samples: int) -> tuple[np.ndarray, np.ndarray]:
    """Noise around one of four patterns, and which pattern it was."""
    rng = np.random.default_rng(0)
    patterns, labels = rng.normal(size=(4, 64, 16)), rng.integers(0, 4, samples)
    return (patterns[labels] + rng.normal(size=(samples, 64, 16))).astype("float32"), labels


def main() -> None:
    split_the_cpu()
    keras.utils.set_random_seed(0)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])

    # Built and compiled in the strategy's scope, as Keras wants it.
    with strategy.scope():
        model = build_model()
        model.compile(optimizer="adam", loss="sparse_categorical_crossentropy", metrics=["accuracy"])

    # The batch size is that of both, as in fit. The budget is that of each: 60% of what one replica would need.
    checkmate_tf.compile(model, budget="60%", batch_size=BATCH_SIZE)

    x, y = make_data(640)
    history = model.fit(x, y, batch_size=BATCH_SIZE, epochs=3, verbose=2).history
    print(f"loss {history['loss'][0]:.2f} -> {history['loss'][-1]:.2f}")

    # What was asked, predicted and proven, for one of the two.
    print(model.checkmate)


if __name__ == "__main__":
    main()
