"""Trains plainly and within a budget under a tf.distribute strategy; prints what the tests look at, as JSON.

python distributed.py mirrored          # two logical CPUs in one process
python distributed.py worker N PORT PORT  # process N of two that listen at these ports
"""

from __future__ import annotations

import json
import os
import statistics
import sys

os.environ.update(TF_CPU_ALLOCATOR_USE_BFC="true", TF_CPP_MIN_LOG_LEVEL="3")
if sys.argv[1] == "worker":
    cluster = {"worker": [f"127.0.0.1:{port}" for port in sys.argv[3:]]}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": int(sys.argv[2])}})

import keras
import tensorflow as tf
from cases import assert_same_state, images

import checkmate_tf
from checkmate_tf.errors import BatchSizeError, CheckmateError

BATCH = 16
QUICK = {"batch_size": BATCH, "costs": "flops", "gap": 1.0, "time_limit": 5, "progress": False, "cache": False}
data = images(32)


def build(strategy, jit_compile=False) -> keras.Model:
    """Layers with batch normalization (statistics of each replica) and dropout (its seed).

    No convolutions: their kernels take more memory to work in than these activations do.
    """
    keras.utils.set_random_seed(3)
    with strategy.scope():
        inputs = keras.Input((32, 32, 3))
        x = keras.layers.AveragePooling2D(4)(inputs)
        for _ in range(4):
            x = keras.layers.Dense(64)(x)
            x = keras.layers.BatchNormalization()(x)
            x = keras.layers.Dropout(0.2, seed=3)(keras.layers.ReLU()(x))
        outputs = keras.layers.Dense(4)(keras.layers.GlobalAveragePooling2D()(x))
        model = keras.Model(inputs, outputs)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("adam", loss, metrics=["accuracy"], jit_compile=jit_compile)
    return model


class Noisy(keras.layers.Layer):
    """Other noise in each replica, and effects that belong to no variable."""

    def call(self, x):
        tf.debugging.assert_less(x, 1e6)
        context = tf.distribute.get_replica_context()  # None while the model is put together
        seed = tf.stack([0 if context is None else context.replica_id_in_sync_group, 7])
        tf.debugging.assert_greater(x, -1e6)
        return x + tf.random.stateless_uniform(tf.shape(x), seed)


def noisy(strategy) -> keras.Model:
    keras.utils.set_random_seed(3)
    with strategy.scope():
        x = inputs = keras.Input((32, 32, 3))
        for _ in range(3):
            x = keras.layers.Dense(32, "tanh")(Noisy()(x))
        outputs = keras.layers.Dense(4)(keras.layers.GlobalAveragePooling2D()(x))
        model = keras.Model(inputs, outputs)
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def embedding(strategy) -> keras.Model:
    with strategy.scope():
        layers = [
            keras.Input((16,), dtype="int32"),
            keras.layers.Embedding(50, 8),
            keras.layers.GlobalAveragePooling1D(),
        ]
        model = keras.Sequential([*layers, keras.layers.Dense(4, "softmax")])
        model.compile("sgd", "sparse_categorical_crossentropy")
    return model


def eager(strategy) -> keras.Model:
    model = noisy(strategy)
    model.compile("sgd", "mse", run_eagerly=True)
    return model


def refusal(action) -> list[str]:
    """Type and text of the error that an action raises."""
    try:
        action()
    except CheckmateError as error:
        return [type(error).__name__, str(error)]
    return []


def peak_of(model) -> int:
    """Bytes that a training step of both replicas adds, median of 25.

    Replicas run side by side or one after the other, by chance. Keras gives each of them the whole of such a
    batch.
    """
    batch = tuple(tf.constant(a) for a in data(BATCH // 2))
    model.train_on_batch(*batch)
    peaks = []
    for _ in range(25):
        tf.config.experimental.reset_memory_stats("CPU:0")
        before = tf.config.experimental.get_memory_info("CPU:0")["current"]
        model.train_on_batch(*batch)
        peaks.append(tf.config.experimental.get_memory_info("CPU:0")["peak"] - before)
    return int(statistics.median(peaks))


def mirrored() -> dict:
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    found: dict = {}
    plain, ours = build(strategy), build(strategy)
    checkmate_tf.compile(ours, 0.65, **QUICK)
    x, y = data(60)
    settings = {"batch_size": BATCH, "epochs": 2, "shuffle": False, "verbose": 0}
    found["fit"] = [model.fit(x, y, **settings).history for model in (plain, ours)]
    assert_same_state(plain, ours)
    found["report"] = ours.checkmate.to_dict() | {"text": str(ours.checkmate)}
    found["evaluated"] = [model.evaluate(x, y, batch_size=BATCH, verbose=0) for model in (plain, ours)]
    found["peak"] = [peak_of(model) for model in (plain, ours)][1]  # what follows compares them: as many steps each
    try:
        ours.fit(*data(4 * BATCH), batch_size=2 * BATCH, verbose=0)
    except BatchSizeError as error:
        found["too large"] = str(error)
    checkmate_tf.restore(ours)
    found["restored"] = [model.fit(x, y, **settings).history for model in (plain, ours)]
    plain, ours = noisy(strategy), noisy(strategy)
    checkmate_tf.compile(ours, 0.7, **QUICK)
    whole = data(BATCH // 2)  # each replica gets all of it, and knows its size while it is traced
    found["noisy"] = [[model.train_on_batch(*whole) for _ in range(2)] for model in (plain, ours)]
    found["noisy fit"] = [model.fit(x, y, **settings).history for model in (plain, ours)]
    assert_same_state(plain, ours)
    found["noisy recomputes"] = ours.checkmate.recomputations
    found["embedding"] = refusal(lambda: checkmate_tf.compile(embedding(strategy), 0.9, **QUICK))
    found["eager"] = refusal(lambda: checkmate_tf.compile(eager(strategy), 0.9, **QUICK))
    one_device = tf.distribute.MirroredStrategy(
        ["CPU:0", "CPU:1"], cross_device_ops=tf.distribute.ReductionToOneDevice()
    )
    found["one device"] = refusal(lambda: checkmate_tf.compile(build(one_device), 0.5, **QUICK))
    found["xla"] = refusal(lambda: checkmate_tf.compile(build(strategy, jit_compile=True), 0.5, **QUICK))
    found["no batch size"] = refusal(lambda: checkmate_tf.compile(build(strategy), 0.5))
    loss = "sparse_categorical_crossentropy"
    found["function"] = refusal(lambda: checkmate_tf.gradient_function(build(strategy), loss, 0.5, **QUICK))
    return found


def worker() -> dict:
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    strategy = tf.distribute.MultiWorkerMirroredStrategy()  # before anything else
    logs, models = [], []
    for ours in (False, True):
        model = build(strategy)
        if ours:
            checkmate_tf.compile(model, 0.65, **QUICK)
        dataset = tf.data.Dataset.from_tensor_slices(data(4 * BATCH)).batch(BATCH)
        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
        batches = strategy.experimental_distribute_dataset(dataset.with_options(options))

        @tf.function(autograph=False)
        def train(batch, model=model):
            return strategy.run(model.train_step, args=(batch,))

        for batch in batches:
            found = train(batch)
            logs.append({k: float(strategy.experimental_local_results(v)[0]) for k, v in found.items()})
        models.append(model)
    assert_same_state(*models)
    half = len(logs) // 2
    return {"logs": [logs[:half], logs[half:]], "report": models[1].checkmate.to_dict()}


if __name__ == "__main__":
    result = {"mirrored": mirrored, "worker": worker}[sys.argv[1]]()
    sys.stdout.write("RESULT " + json.dumps(result) + "\n")
