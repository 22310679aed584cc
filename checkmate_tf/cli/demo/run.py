"""Trains a network for the demo, in a process of its own: `python -m checkmate_tf.cli.demo.run '{"model": ...}'`.

The environment sets the allocator's limit. One JSON argument says what the run does. `device.in_child` has its
messages.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Any

from ...device.in_child import say, serve, take_memory_in_one_piece, tell

__all__ = ["Run"]

SAMPLED_STEPS = 3
"""The last steps of a run are watched by a thread, so they are not timed."""


@dataclass(frozen=True)
class Run:
    """What a child does.

    Attributes
    ----------
    model : str
        Name in `keras.applications`.
    image_size : int
        Height and width in pixels, a multiple of 8.
    batch_size, steps : int
        At least 5 steps: the first traces, the last three are watched.
    budget_bytes : int or None
        Compile the model with this budget first; None to train plainly.
    time_limit : float
        Seconds for the solver.
    """

    model: str
    image_size: int
    batch_size: int
    steps: int
    budget_bytes: int | None = None
    time_limit: float = 20.0


def digits(image_size: int, batch_size: int) -> Any:
    """Scikit-learn's 1,797 handwritten digits as a repeating tf.data.Dataset of (images, labels), in a fixed order.

    Images are enlarged batch by batch (each pixel repeated, three equal channels), so that only a batch is in memory.
    """
    import tensorflow as tf
    from sklearn.datasets import load_digits

    small, labels = load_digits(return_X_y=True)
    small = small.reshape(-1, 8, 8, 1).astype("float32") / 16.0

    def enlarge(x: Any, y: Any) -> tuple[Any, Any]:
        x = tf.repeat(tf.repeat(x, image_size // 8, axis=1), image_size // 8, axis=2)
        return tf.repeat(x, 3, axis=3), y

    data = tf.data.Dataset.from_tensor_slices((small, labels.astype("int64")))
    data = data.shuffle(len(small), seed=0).repeat().batch(batch_size, drop_remainder=True)
    return data.map(enlarge)


class Sampler:
    """Polls the allocator from a thread, every millisecond or so, while a step runs."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.samples: list[tuple[float, int]] = []

    def start(self) -> None:
        self.samples = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._poll, daemon=True)
        self._thread.start()

    def stop(self) -> list[tuple[float, int]]:
        """(seconds since the start, bytes) of the step."""
        self._stop.set()
        self._thread.join()
        return self.samples

    def _poll(self) -> None:
        import tensorflow as tf

        begin = time.perf_counter()
        while not self._stop.is_set():
            now = int(tf.config.experimental.get_memory_info(self.device)["current"])
            self.samples.append((time.perf_counter() - begin, now))
            time.sleep(0.001)


def watcher(run: Run, device: str) -> Any:
    """A Keras callback that times the steps, watches the last ones, and reports progress."""
    import keras
    import tensorflow as tf

    class Watcher(keras.callbacks.Callback):
        """Losses (running means of the epoch), seconds of steps, and the memory over one step."""

        def __init__(self) -> None:
            super().__init__()
            self.losses: list[float] = []
            self.seconds: list[float] = []
            self.peaks: list[int] = []
            self.memory: list[tuple[float, int]] = []
            self.sampler = Sampler(device)

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            if batch >= run.steps - SAMPLED_STEPS:
                self.sampler.start()
            tf.config.experimental.reset_memory_stats(device)
            self.begin = time.perf_counter()

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            seconds = time.perf_counter() - self.begin
            self.peaks.append(int(tf.config.experimental.get_memory_info(device)["peak"]))
            if batch >= run.steps - SAMPLED_STEPS:
                samples = self.sampler.stop()
                if not self.memory or samples[-1][0] < self.memory[-1][0]:  # the least disturbed by others
                    self.memory = samples
            elif batch:  # the first step traces and warms up
                self.seconds.append(seconds)
            self.losses.append(float(logs["loss"]))
            text = f"step {batch + 1} of {run.steps}, loss {logs['loss']:.3f}"
            tell("train", batch + 1, run.steps, text)

    return Watcher()


def execute(run: Run) -> dict[str, Any]:
    """Train, and say what happened."""
    tell("start", 0, 1, "TensorFlow")
    import keras
    import numpy as np
    import tensorflow as tf

    import checkmate_tf

    from ...device.measure import find_device
    from ...schedule import keep_all

    take_memory_in_one_piece()
    device = find_device().name
    keras.utils.set_random_seed(0)
    # Grappler rewrites two graphs in two ways, which round differently; without it their numbers agree bit by bit.
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    shape = (run.image_size, run.image_size, 3)
    model = getattr(keras.applications, run.model)(weights=None, input_shape=shape, classes=10)
    model.compile(optimizer=keras.optimizers.SGD(0.002), loss="sparse_categorical_crossentropy")
    result: dict[str, Any] = {"parameters": int(model.count_params())}
    tell("start", 1, 1, f"{run.model}, {model.count_params():,} parameters")
    if run.budget_bytes is not None:
        begin = time.perf_counter()
        checkmate_tf.compile(
            model, run.budget_bytes, batch_size=run.batch_size, time_limit=run.time_limit, progress=tell
        )
        result["compile_seconds"] = time.perf_counter() - begin
        report = model.checkmate
        result["report"] = report.to_dict()
        result["report_text"] = report.table()
        result["predicted"] = predicted(report.schedule)
        result["predicted_plain"] = predicted(keep_all(report.schedule.graph))
        say(planned=result)
    watch = watcher(run, device)
    tell("train", 0, run.steps, "the first step traces")
    model.fit(
        digits(run.image_size, run.batch_size), steps_per_epoch=run.steps, verbose=0, shuffle=False, callbacks=[watch]
    )
    return result | {
        "peak_bytes": max(watch.peaks),
        "peaks_bytes": watch.peaks,
        "step_seconds": float(np.median(watch.seconds)),
        "losses": watch.losses,
        "memory": watch.memory,
    }


def predicted(schedule: Any) -> dict[str, Any]:
    """The predicted curve: milliseconds at the end of each computation, bytes during it, and the peak."""
    from ...draw.plots import predicted_curve

    curve = predicted_curve(schedule, "")
    return {
        "ms": [round(t, 4) for t in curve.time_ms.tolist()],
        "bytes": curve.memory_bytes.astype(int).tolist(),
        "peak_bytes": int(schedule.peak_bytes),
    }


if __name__ == "__main__":
    serve(lambda given: execute(Run(**given)))
