"""What training steps are measured by: peaks, numbers and times of compiled Keras models.

A model is one of a `Network`. Variables are put back after each measurement. Scripts name these functions before they
know whether they will train, so TensorFlow is imported when one is called.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..device.measure import Device
    from .networks import Network

__all__ = [
    "STEPS",
    "FirstStep",
    "device_data",
    "differences",
    "digest",
    "every_variable",
    "gradients_of",
    "heard",
    "in_turn",
    "peaks",
    "planned_again",
    "release",
    "reset",
    "step_of",
    "unwatch",
    "variable_bytes",
]

STEPS = 3  # batches that a model is trained on
_STEPS = 8  # at least, whose peak is taken

FirstStep = tuple[float, list[Any]]
"""Loss of a step, and all gradients."""


def device_data(network: Network, batches: int = STEPS) -> list[Any]:
    """Whole batches as tensors that lie in the device's memory, as the data of `fit` does.

    Of an array TensorFlow makes a copy there, or elsewhere, as chance has it. So peaks of equal runs would differ by
    the whole data. Made before `compile`, it is part of what plans are made for.
    """
    import tensorflow as tf

    return [tf.raw_ops.DeepCopy(x=tf.constant(array)) for array in network.data(batches)]


def every_variable(model: Any) -> list[Any]:
    """Weights, BN statistics, seeds, optimizer slots, metrics."""
    variables = [*model.variables, *model.optimizer.variables, *model.metrics_variables]
    return list({id(v): v for v in variables}.values())


def variable_bytes(model: Any) -> int:
    """Bytes of all of them."""
    from ..keras.frameworks import bytes_of

    return bytes_of(every_variable(model))


def reset(model: Any, values: list[Any]) -> None:
    """Give every variable its value, also after `release`."""
    for v, value in zip(every_variable(model), values, strict=True):
        _give(v, value)


def _give(v: Any, value: Any) -> None:
    import tensorflow as tf

    inner = getattr(v, "value", v)
    tf.raw_ops.AssignVariableOp(resource=inner.handle, value=tf.constant(value, inner.dtype))


def release(model: Any) -> None:
    """Give the memory of all variables back. TensorFlow keeps traced functions, and these hold them."""
    for v in every_variable(model):
        _give(v, [])


def digest(model: Any) -> str:
    """All variables in one word: equal if every bit is."""
    found = hashlib.sha256()
    for v in every_variable(model):
        found.update(v.numpy().tobytes())
    return found.hexdigest()


def peaks(model: Any, network: Network, data: list[Any]) -> tuple[int, int]:
    """Peak of the allocator over training steps, and over a whole fit, whose input pipeline shares a CPU.

    `data` is that of `device_data`, and part of both peaks.

    A plain model takes eight steps by `train_on_batch`: its `fit` makes batches ahead. A compiled one takes its steps
    in `fit`, which plans are made for. There a batch is freed when all that reads it has run. `train_on_batch` holds
    it until the step ends, and beside it a U-Net's step took a tenth more.

    The first steps are for warming up: kernels are chosen in them. Variables end as they began. Where a compiled model
    plans again meanwhile, both are taken of the plan that it ends with.
    """
    import tensorflow as tf

    from ..device.measure import find_device

    x, y = data
    device = find_device()
    fitted = functools.partial(model.fit, x, y, batch_size=network.batch_size, shuffle=False, verbose=0)

    def peak_of(action: Callable[[], Any]) -> int:
        tf.config.experimental.reset_memory_stats(device.name)
        action()
        tf.test.experimental.sync_devices()
        return device.peak_bytes()

    if getattr(model, "checkmate", None) is None:
        batch = x[: network.batch_size], y[: network.batch_size]
        model.train_on_batch(*batch)
        before = [v.numpy() for v in every_variable(model)]
        steps = peak_of(lambda: [model.train_on_batch(*batch) for _ in range(_STEPS)])
        del batch
        fit = peak_of(fitted)
    else:
        fitted(epochs=1)
        before = [v.numpy() for v in every_variable(model)]
        plans = -1
        while plans != planned_again(model):
            plans = planned_again(model)
            of_steps = list[int]()
            fitted(epochs=math.ceil(_STEPS / STEPS), callbacks=[_watching(device, of_steps)])
            steps, fit = max(of_steps), peak_of(fitted)
    reset(model, before)
    return steps, fit


def _watching(device: Device, peaks: list[int]) -> Any:
    """A callback of `fit` that adds the peak of each step, in bytes."""
    import keras

    return keras.callbacks.LambdaCallback(
        on_train_batch_begin=lambda batch, logs=None: device.forget_peak(0),
        on_train_batch_end=lambda batch, logs=None: peaks.append(device.peak_bytes()),
    )


def planned_again(model: Any) -> int:
    """How often a compiled model planned again, for its data or for a peak while it trained."""
    report = getattr(model, "checkmate", None)
    return 0 if report is None else int(report.replanned)


def unwatch(model: Any) -> None:
    """From here on the plain model is beside it: what that takes is nothing to plan for."""
    controller = model._checkmate_controller
    controller.options = replace(controller.options, verify=False)


@contextlib.contextmanager
def heard() -> Iterator[list[str]]:
    """What `compile` says meanwhile, a line each: which plans were measured, and why others were not."""
    log, lines = logging.getLogger("checkmate_tf"), list[str]()
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    before = log.level
    log.addHandler(handler)
    log.setLevel(logging.DEBUG)
    try:
        yield lines
    finally:
        log.setLevel(before)
        log.removeHandler(handler)


def gradients_of(model: Any) -> list[Any]:
    """All gradients after one step with Adam: its momenta."""
    return [v.numpy().astype("float64") for v in model.optimizer.variables if "momentum" in v.path]


def differences(one: FirstStep, other: FirstStep) -> dict[str, float]:
    """Relative differences of two first steps: of the loss, and of all gradients together (Euclidean norm)."""
    import numpy as np

    norm = math.sqrt(sum(float(np.sum(g * g)) for g in one[1]))
    apart = math.sqrt(sum(float(np.sum((a - b) ** 2)) for a, b in zip(one[1], other[1], strict=True)))
    return {"loss": abs(one[0] - other[0]) / abs(one[0]), "gradients": apart / norm}


def step_of(model: Any, jit_compile: bool = False) -> Callable[[Any], Any]:
    """The model's training step as a function of a batch (x, y), which is traced once.

    With `jit_compile`, XLA compiles it: that is for plain steps, a planned one compiles itself.
    """
    import tensorflow as tf

    return tf.function(lambda data: model.train_step(data), autograph=False, jit_compile=jit_compile or None)


def in_turn(
    plain: Callable[[Any], Any], ours: Callable[[Any], Any], batch: Any, rounds: int = 5, steps: int = 1
) -> tuple[float, float]:
    """Median over rounds of ours over plain step time (A B A B), and the plain step's median, ms.

    A turn is so many steps: several of short ones.
    """
    import numpy as np
    import tensorflow as tf

    times: list[list[float]] = [[], []]
    for turn in range(rounds + 1):
        for k, function in enumerate((plain, ours)):
            begun = time.perf_counter()
            for _ in range(steps):
                done = function(batch)
            float(next(iter(done.values())))
            tf.test.experimental.sync_devices()
            if turn:
                times[k].append(time.perf_counter() - begun)
    ratio = float(np.median(np.array(times[1]) / np.array(times[0])))
    return ratio, float(np.median(times[0]) / steps * 1e3)
