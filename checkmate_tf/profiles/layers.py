"""Costs of a layer-level graph's nodes, measured on this device.

Each call of a layer runs alone, as a compiled tf.function on fabricated data of the right shapes and dtypes, in
training mode. It runs forward; and forward with the gradients that are needed: of trainable weights, and of inputs that
something trained comes before. The two alternate, so that what disturbs one disturbs the other. Then

- a forward node costs the median of the forward runs, less what calling an empty tf.function takes;
- a gradient node costs the median of the differences between a run with gradients and the forward run before it;
- the loss costs its value and the gradients of the outputs, together.

Where gradients of several readers reach a value, their sum is part of the gradient. What is measured as nothing (a
view, a gradient that nothing needs) costs `FLOOR_US`. The spread is the interquartile range of the runs, or of the
differences. Calls of the same class and settings on the same shapes are timed once. Afterwards every variable that
they may assign is as before: averages of batch normalisation, seeds, states of recurrent layers, weights.

**What this does badly.** Layers run alone. In a step, neighbours share caches, small layers overlap on several threads,
and graph optimization fuses across layers. Implicit masks (of Embedding(mask_zero=True)) are not there. The forward
pass is timed without keeping what its gradient needs. A difference of two times is noisier than either: where the
spread is as large as the median, add repetitions on a quiet machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from ..costs.alone.fabricate import fabricate
from ..costs.setting import device_name
from ..device.measure import captured_variables, unchanged
from ..errors import CostError
from ..layers.calls import Value
from ..layers.graph import layer_graph
from ..layers.losses import losses_left
from ..layers.runs import LayerRun, fabricated_input, layer_runs
from ..layers.settings import exact_settings
from .journal import Journal
from .table import FLOOR_US, kind_words

__all__ = ["Column", "Sample", "time_layers"]

_MIN_SECONDS = 0.02
_MAX_REPETITIONS = 100

Run = Callable[[], Any]
Progress = Callable[[float, float, str], None]


@dataclass(frozen=True)
class Sample:
    """Timed runs: median and interquartile range in microseconds, and how many there were."""

    median_us: float = FLOOR_US
    spread_us: float = 0.0
    repetitions: int = 0

    @classmethod
    def of(cls, runs_us: Sequence[float] | NDArray[np.float64]) -> Sample:
        """Of single runs; the median at least `FLOOR_US`."""
        low, middle, high = np.quantile(runs_us, (0.25, 0.5, 0.75)).tolist()
        return cls(max(middle, FLOOR_US), high - low, len(runs_us))

    @property
    def numbers(self) -> list[float]:
        return [self.median_us, self.spread_us, self.repetitions]


@dataclass(frozen=True, eq=False)
class Column:
    """What the n nodes of a model take at one batch size."""

    names: tuple[str, ...]
    kinds: tuple[str, ...]
    samples: tuple[Sample, ...]


def time_layers(
    model: Any,
    batch_size: int,
    *,
    repetitions: int = 5,
    device: str | None = None,
    journal: Journal | None = None,
    progress: Progress | None = None,
) -> Column:
    """Time the nodes of a model's layer-level graph at one batch size.

    Parameters
    ----------
    model : keras.Model
        Functional or Sequential, as for `layer_graph`. Its loss is that of `model.compile`; a mean of squares if it is
        not compiled.
    batch_size : int
    repetitions : int
        At least so many timed runs of each call, and more up to 20 ms.
    device : str, optional
        E.g. `"GPU:0"`. Default: the first GPU, else the CPU.
    journal : Journal, optional
        Keeps each measurement, and has those of an earlier run.
    progress : callable(done, total, text), optional

    Returns
    -------
    Column
        In the order of `layer_graph`'s nodes.

    Raises
    ------
    CostError
        If a layer cannot be run alone, or its data does not fit into memory; names it.
    CheckmateError
        As `layer_graph`.
    """
    kept = journal or Journal(None, "")
    graph = layer_graph(model, batch_size)
    runs = layer_runs(model, batch_size)
    first = {run.key(): run for run in reversed(runs)}
    order = list(dict.fromkeys(run.key() for run in runs))
    times: dict[str, tuple[Sample, Sample]] = {}
    total = len(order) + 1
    place = device_name(device)
    try:
        with tf.init_scope(), tf.device(place), _losses_as_before(model):
            timer = _LayerTimer(max(1, repetitions), place.startswith("GPU"))
            loss = _known(kept, f"loss {_loss_key(model, batch_size)}", 1) or _time_loss(timer, model, batch_size)
            kept.put(f"loss {_loss_key(model, batch_size)}", loss[0].numbers)
            for done, key in enumerate(order):
                if progress is not None:
                    progress(done + 1, total, first[key].call.name)
                found = _known(kept, key, 2) or _time_call(timer, first[key])
                kept.put(key, found[0].numbers + found[1].numbers)
                times[key] = (found[0], found[1])
    finally:
        kept.save()
    if progress is not None:
        progress(total, total, "")
    forward = {run.call.name: times[run.key()] for run in runs}
    samples = [forward[run.call.name][0] for run in runs] + [loss[0]]
    samples += [forward[name.removeprefix("grad_")][1] for name in graph.names[len(samples) :]]
    return Column(tuple(graph.names), tuple(kind_words(graph)), tuple(samples))


def _known(journal: Journal, key: str, samples: int) -> list[Sample] | None:
    values = journal.get(key, 3 * samples)
    if values is None:
        return None
    return [
        Sample(max(m, FLOOR_US), s, int(n)) for m, s, n in zip(values[::3], values[1::3], values[2::3], strict=True)
    ]


class _LayerTimer:
    """Times compiled functions, less the time of calling one from Python."""

    def __init__(self, repetitions: int, asynchronous: bool) -> None:
        self.repetitions = repetitions
        self._wait: Run = tf.test.experimental.sync_devices if asynchronous else lambda: None
        tiny = tf.ones(4)
        empty = tf.function(lambda x: tf.identity(x), autograph=False)
        self.call_us = float(self.runs(lambda: empty(tiny)).min())  # a busy moment here would make every layer cheap

    def runs(self, *functions: Run) -> NDArray[np.float64]:
        """(repetitions, functions) microseconds, the functions in turn; the first two rounds warm up."""
        for _ in range(2):
            for function in functions:
                function()
                self._wait()
        rows: list[list[float]] = []
        spent = 0.0
        while len(rows) < self.repetitions or (spent < _MIN_SECONDS and len(rows) < _MAX_REPETITIONS):
            row = []
            for function in functions:
                begin = time.perf_counter()
                function()
                self._wait()
                row.append(time.perf_counter() - begin)
            rows.append(row)
            spent += sum(row)
        return 1e6 * np.array(rows)


def _time_call(timer: _LayerTimer, run: LayerRun) -> list[Sample]:
    """Forward and gradient of a call."""
    try:
        given = [fabricated_input(value, run.call.operation) for value in run.call.arguments]
        forward = tf.function(lambda *tensors: run(tensors), autograph=False, jit_compile=False)
        if not run.differentiates:
            with unchanged(captured_variables(_captures(forward, *given))):
                return [Sample.of(timer.runs(lambda: forward(*given))[:, 0] - timer.call_us), Sample()]
        arriving = [[_upstream(v) for _ in range(n)] for v, n in zip(run.call.outputs, run.arriving, strict=True)]
        both = tf.function(lambda tensors, grads: _gradients(run, tensors, grads), autograph=False, jit_compile=False)
        with unchanged(captured_variables([*_captures(forward, *given), *_captures(both, given, arriving)])):
            times = timer.runs(lambda: forward(*given), lambda: both(given, arriving))
        return [Sample.of(times[:, 0] - timer.call_us), Sample.of(times[:, 1] - times[:, 0])]
    except Exception as error:  # noqa: BLE001 - whatever the user's layer raises
        shapes = ", ".join(str(list(v.shape)) for v in run.call.arguments)
        raise CostError(
            f"layer {run.call.name!r} ({type(run.call.operation).__name__}) cannot be run alone on {shapes}: "
            f"{_reason(error)}; take smaller batch sizes if memory ran out, or profile ops (--level op)"
        ) from error


def _captures(function: Any, *arguments: Any) -> list[Any]:
    """What a tf.function reads besides its arguments, variables among it."""
    return list(function.get_concrete_function(*arguments).graph.captures)


def _gradients(run: LayerRun, tensors: list[Any], arriving: list[list[Any]]) -> Any:
    """Outputs, and gradients of what needs any, given the gradients that reach the outputs."""
    wanted = [t for t, want in zip(tensors, run.wanted, strict=True) if want]
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch([*wanted, *(_variable(w) for w in run.weights)])
        outputs = run(tensors)
    reached = [(t, grads) for t, grads in zip(outputs, arriving, strict=True) if grads]
    sums = [tf.add_n(grads) if len(grads) > 1 else grads[0] for _, grads in reached]
    sources = [*wanted, *(_variable(w) for w in run.weights)]
    gradients = tape.gradient([t for t, _ in reached], sources, output_gradients=sums)
    return outputs, [g for g in gradients if g is not None]


def _variable(weight: Any) -> Any:
    """The TensorFlow variable of a Keras weight."""
    return weight.value


def _upstream(value: Value) -> Any:
    return fabricate(tf.TensorShape(value.shape), tf.as_dtype(value.dtype), "a gradient")


def _loss_key(model: Any, batch_size: int) -> str:
    outputs = ", ".join(f"{t.dtype}{list(t.shape)}" for t in model.outputs)
    loss = model.loss if getattr(model, "compiled", False) else "mean of squares"
    return f"{keras.tree.map_structure(exact_settings, loss)} of {outputs} at batch {batch_size}"


def _time_loss(timer: _LayerTimer, model: Any, batch_size: int) -> list[Sample]:
    """The value of the loss and the gradients of the outputs, together."""
    outputs = [fabricate(_with_batch(t.shape, batch_size), tf.as_dtype(t.dtype), "an output") for t in model.outputs]
    structure = (model if hasattr(model, "_outputs_struct") else model._functional)._outputs_struct

    def step(tensors: list[Any], targets: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            if targets is None:
                value = tf.add_n([tf.reduce_mean(tf.square(tf.cast(t, tf.float32))) for t in floating(tensors)])
            else:
                value = model.compute_loss(y=targets, y_pred=keras.tree.pack_sequence_as(structure, tensors))
        return value, [g for g in tape.gradient(value, floating(tensors)) if g is not None]

    def floating(tensors: list[Any]) -> list[Any]:
        return [t for t in tensors if t.dtype.is_floating]

    try:
        targets = _targets(model, batch_size)
        compiled = tf.function(step, autograph=False, jit_compile=False)
        with unchanged(captured_variables(_captures(compiled, outputs, targets))):
            return [Sample.of(timer.runs(lambda: compiled(outputs, targets))[:, 0] - timer.call_us)]
    except Exception as error:  # noqa: BLE001 - whatever the user's loss raises
        raise CostError(
            f"the loss of {model.name!r} cannot be run alone at batch {batch_size}: {_reason(error)}; compile the "
            "model with a loss that takes targets of the outputs' shapes, or profile ops (--level op)"
        ) from error


def _targets(model: Any, batch_size: int) -> Any:
    """Targets as the compiled loss takes them; None if the model is not compiled."""
    if not getattr(model, "compiled", False):
        return None
    from ..keras.batches.spec import data_spec

    spec, _ = data_spec(model, batch_size, None, None)
    if len(spec) < 2:
        return None
    make = lambda t: None if t is None else fabricate(_with_batch(t.shape, batch_size), t.dtype, "a target")  # noqa: E731
    return tf.nest.map_structure(make, spec[1])


def _with_batch(shape: Any, batch_size: int) -> tf.TensorShape:
    return tf.TensorShape([batch_size if d is None else d for d in tuple(shape)])


@contextmanager
def _losses_as_before(model: Any) -> Iterator[None]:
    """Take back what the loss is built for here, and the losses that layers add."""
    from ..keras.built.unbuilt import left_unbuilt

    with left_unbuilt(model), losses_left(model):
        yield


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
