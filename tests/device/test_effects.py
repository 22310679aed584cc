"""What steps do to the world: not while they are measured, and as often as plain ones while training."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from cases import Case, assert_same_after, compile_quickly, make, program_of
from keras import layers

from checkmate_tf.device.effects import left_out, moved_by, moved_by_steps

pytestmark = pytest.mark.usefixtures("fresh_keras", "no_grappler")

told: list[tuple[str, float]] = []
drawn = {"generator": np.random.default_rng(0)}


def _tell(value) -> None:
    told.append(("python", float(value)))


def _draw() -> np.float32:
    told.append(("drawn", 0.0))
    return np.float32(drawn["generator"].random())


class Told(keras.Model):
    """Its step tells its loss in three ways, and draws a factor in Python."""

    def train_step(self, data):
        x, y = data
        factor = tf.ensure_shape(tf.numpy_function(_draw, [], tf.float32), ())
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x * factor, training=True))
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        often = tf.equal(self.optimizer.iterations % 2, 0)
        with self.writer.as_default(step=self.optimizer.iterations), tf.summary.record_if(often):
            tf.summary.scalar("loss", loss)
        tf.py_function(_tell, [loss], [])
        tf.print("loss", loss, output_stream=f"file://{self.printed}")
        return {"loss": loss}


@pytest.fixture
def case(tmp_path):
    def build():
        x = inputs = keras.Input((64, 32))
        for _ in range(3):
            x = layers.Dense(64, activation="gelu")(x)
        model = Told(inputs, layers.Dense(4)(layers.GlobalAveragePooling1D()(x)))
        model.writer = tf.summary.create_file_writer(str(tmp_path))
        model.printed = tmp_path / "printed"
        model.compile(optimizer="adam", loss="mse")
        return model

    return Case(build, _data, budget=0.9)


def _data(n):
    rng = np.random.default_rng(2)
    return rng.standard_normal((n, 64, 32)).astype("float32"), rng.standard_normal((n, 4)).astype("float32")


def _train(model):
    drawn["generator"] = np.random.default_rng(1)
    told.clear()
    model.printed.unlink(missing_ok=True)
    x, y = _data(48)
    losses = model.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0).history["loss"]
    return losses, list(told), model.printed.read_text()


def test_measuring_tells_nobody_and_training_tells_the_same(case, tmp_path):
    plain, model = make(case), make(case)
    told.clear()
    compile_quickly(model, case, verify=True, budget="1GB")
    assert model.checkmate.measured_peak_bytes and not told and not model.printed.exists()
    assert not _summaries(tmp_path)
    assert_same_after(_train, model, plain)
    assert len(told) == 12
    plain.writer.flush(), model.writer.flush()
    assert _summaries(tmp_path) == {2: 2, 4: 2, 6: 2}


def _summaries(folder) -> dict[int, int]:
    """How many values were written at each step."""
    found: dict[int, int] = {}
    for path in folder.glob("events*"):
        for record in tf.data.TFRecordDataset(str(path)):
            event = tf.compat.v1.Event.FromString(record.numpy())
            if event.summary.value:
                found[event.step] = found.get(event.step, 0) + 1
    return found


def test_what_is_left_out(case):
    program = program_of(make(case), case)
    out = left_out(program)
    assert sorted(op.type for op in out) == ["EagerPyFunc", "FlushSummaryWriter", "If", "PrintV2", "PyFunc"]
    assert moved_by_steps(program) == ""


def test_what_moves_is_found_in_functions_too():
    queue = tf.queue.FIFOQueue(4, [tf.float32], [()])

    @tf.function(autograph=False)
    def step(x):
        def put():
            queue.enqueue(x)
            return 2 * x

        return tf.cond(x > 0, put, lambda: x)

    graph = step.get_concrete_function(tf.TensorSpec([])).graph
    assert moved_by(graph.get_operations()).startswith("QueueEnqueueV2")
    assert moved_by(op for op in graph.get_operations() if op.type != "If") == ""


def test_python_in_a_loop_is_not_run_to_measure(case):
    def looped(x):
        count = lambda k, v: (k + 1, v + tf.ensure_shape(tf.numpy_function(_draw, [], tf.float32), ()))  # noqa: E731
        return tf.while_loop(lambda k, v: k < 3, count, (0, x), maximum_iterations=3)[1]

    inputs = keras.Input((64, 32))
    x = layers.GlobalAveragePooling1D()(layers.Lambda(looped, output_shape=(64, 32))(layers.Dense(32)(inputs)))
    model = keras.Model(inputs, layers.Dense(4)(x))
    model.compile(optimizer="sgd", loss="mse")
    told.clear()
    compile_quickly(model, case, verify=True, budget="1GB")
    assert model.checkmate.measured_peak_bytes is None and not told
