"""A batch that is trained in a child process, whose device may take no more than the memory.

`python -m checkmate_tf.largest_batch.trial '{"model": ...}'` compiles the model within the memory less a margin for
fragments, trains a few steps, and says what was measured; `largest_batch.verify` starts it.

On a CPU the limit is the allocator's (TF_CPU_BFC_MEM_LIMIT_IN_MB). On a GPU it is that of a logical device.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from ..device.in_child import limit_gpu, serve, take_memory_in_one_piece, tell
from ..errors import InfeasibleBudgetError

__all__ = ["Trial", "execute"]

_STEPS = 3
_SOLVE_SECONDS = 20.0


@dataclass(frozen=True)
class Trial:
    """What a child does.

    Attributes
    ----------
    model, input_shape, classes, optimizer, loss
        See `largest_batch.verify.Source`.
    batch_size, steps : int
    memory_bytes : int
        The hard limit.
    budget_bytes : int
        Compile the model for this.
    max_overhead : float or "one-forward"
        Most recomputation, see `strategies.max_batch.cost_limit`; in FLOPs of operations here.
    time_limit : float
        Seconds for the solver.
    seed : int
    """

    model: str
    input_shape: tuple[int, ...] | None
    classes: int | None
    optimizer: str | None
    loss: str | None
    batch_size: int
    memory_bytes: int
    budget_bytes: int
    max_overhead: float | str
    steps: int = _STEPS
    time_limit: float = _SOLVE_SECONDS
    seed: int = 0


def execute(trial: Trial) -> dict[str, Any]:
    """Compile within the budget, train, and say what was measured."""
    tell("start", 0, 1, "TensorFlow")
    import keras
    import numpy as np

    from ..device.measure import find_device
    from ..keras.api import compile
    from ..keras.batches.spec import data_spec
    from ..keras.sources import compile_if_needed, load_model
    from ..strategies.max_batch import cost_limit

    limit_gpu(trial.memory_bytes)
    take_memory_in_one_piece()
    device = find_device()
    keras.utils.set_random_seed(trial.seed)
    shape = tuple(trial.input_shape) if trial.input_shape else None
    model, data = load_model(trial.model, shape, trial.classes)
    compile_if_needed(model, trial.optimizer, trial.loss)
    spec, _ = data_spec(model, trial.batch_size if data is None else None, None, data)
    spec = _without_lists(spec)
    tell("start", 1, 1, model.name)
    compile(
        model, trial.budget_bytes, batch_size=trial.batch_size, input_spec=spec, costs="flops",
        time_limit=trial.time_limit, seed=trial.seed, progress=tell,
    )  # fmt: skip
    schedule = model.checkmate.schedule
    most = cost_limit(schedule.graph, trial.max_overhead)
    if schedule.cost > most * (1 + 1e-9):
        raise InfeasibleBudgetError(
            f"{trial.batch_size} samples take {schedule.overhead:.1%} more computation, but at most "
            f"{most / schedule.graph.base_cost - 1:.1%} are allowed",
            trial.budget_bytes,
            trial.budget_bytes,
            proven=False,
        )
    watch = _watcher(device, trial.steps)
    model.fit(_batches(spec, trial.batch_size, trial.steps), verbose=0, shuffle=False, callbacks=[watch])
    return {
        "peak_bytes": max(watch.peaks),
        "step_seconds": float(np.median(watch.seconds[1:])),  # the first traces
        "overhead": float(model.checkmate.schedule.overhead),
    }


def _without_lists(spec: Any) -> Any:
    """As Keras passes data on: tf.data takes a list for a tensor."""
    if isinstance(spec, (list, tuple)):
        return tuple(_without_lists(s) for s in spec)
    if isinstance(spec, dict):
        return {k: _without_lists(s) for k, s in spec.items()}
    return spec


def _batches(spec: Any, batch_size: int, steps: int) -> Any:
    """A tf.data.Dataset of random batches (whole numbers are 0), made one by one so that only one is in memory."""
    import tensorflow as tf

    from ..device.feeding import example

    def one(t: Any) -> Any:
        return (
            None if t is None else example(tf.TensorSpec([batch_size, *t.shape[1:]] if t.shape.rank else [], t.dtype))
        )

    return tf.data.Dataset.range(steps).map(lambda _: tf.nest.map_structure(one, spec))


def _watcher(device: Any, steps: int) -> Any:
    """A Keras callback that times the steps and asks the allocator for their peaks."""
    import keras
    import tensorflow as tf

    class Watcher(keras.callbacks.Callback):
        """Seconds and peaks of steps."""

        def __init__(self) -> None:
            super().__init__()
            self.seconds: list[float] = []
            self.peaks: list[int] = []

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            tf.config.experimental.reset_memory_stats(device.name)
            self.begin = time.perf_counter()

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.seconds.append(time.perf_counter() - self.begin)
            self.peaks.append(device.peak_bytes())
            tell("train", batch + 1, steps)

    return Watcher()


if __name__ == "__main__":
    serve(lambda given: execute(Trial(**given)))
