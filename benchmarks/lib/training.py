"""What training steps are measured by: peaks, numbers and times of compiled Keras models.

A model is one of a `Network` in `networks.py`. Variables are put back after each measurement.
"""

from __future__ import annotations

import math
import time

__all__ = [
    "STEPS",
    "compare",
    "data_bytes",
    "device_data",
    "differences",
    "every_variable",
    "first_step",
    "peaks",
    "planned_again",
    "reset",
    "time_steps",
    "unwatch",
]

STEPS = 3  # batches that a model is trained on


def device_data(network, batches: int = STEPS) -> list:
    """Whole batches as tensors that lie in the device's memory, as the data of `fit` does.

    Of an array TensorFlow makes a copy there, or elsewhere, as chance has it. So peaks of equal runs would differ by
    the whole data. Made before `compile`, it is part of what plans are made for.
    """
    import tensorflow as tf

    return [tf.raw_ops.DeepCopy(x=tf.constant(array)) for array in network.data(batches)]


def data_bytes(network) -> int:
    """Bytes of all that `device_data` makes, and of the batch in use."""
    return sum(array.nbytes for batches in (STEPS, 1) for array in network.data(batches))


def every_variable(model) -> list:
    """Weights, BN statistics, seeds, optimizer slots, metrics."""
    variables = [*model.variables, *model.optimizer.variables, *model.metrics_variables]
    return list({id(v): v for v in variables}.values())


def reset(model, values: list) -> None:
    for v, value in zip(every_variable(model), values, strict=True):
        v.assign(value)


def peaks(model, network, data: list) -> tuple[int, int]:
    """Peak of the allocator over eight training steps, and over a fit, whose input pipeline shares the CPU.

    `data` is that of `device_data`, and part of both peaks.

    The first step is for warming up. Variables end as they began. Where a compiled model plans again meanwhile, both
    are taken of the plan that it ends with.
    """
    import tensorflow as tf

    x, y = data
    batch = x[: network.batch_size], y[: network.batch_size]
    model.train_on_batch(*batch)
    before = [v.numpy() for v in every_variable(model)]

    def peak_of(action) -> int:
        tf.config.experimental.reset_memory_stats("CPU:0")
        action()
        return int(tf.config.experimental.get_memory_info("CPU:0")["peak"])

    plans = -1
    while plans != planned_again(model):
        plans = planned_again(model)
        step = peak_of(lambda: [model.train_on_batch(*batch) for _ in range(8)])
        fit = peak_of(lambda: model.fit(x, y, batch_size=network.batch_size, shuffle=False, verbose=0))
    reset(model, before)
    return step, fit


def planned_again(model) -> int:
    """How often a compiled model planned again, for its data or for a peak while it trained."""
    report = getattr(model, "checkmate", None)
    return 0 if report is None else report.replanned


def unwatch(model) -> None:
    """From here on the plain model is beside it: what that takes is nothing to plan for."""
    from dataclasses import replace

    controller = model._checkmate_controller
    controller.options = replace(controller.options, verify=False)


def compare(plain, ours, network, start: list) -> tuple[bool, dict]:
    """Train both from the same state. Whether all is equal bit by bit, and relative differences otherwise.

    The differences are of the loss, of all weights and of all optimizer slots together (Euclidean norms), and of the
    worst single tensor. The last means little where a gradient is zero but for rounding (the bias of an attention's
    keys), since Adam scales rounding up.
    """
    import numpy as np

    x, y = network.data(STEPS)
    ends, losses = [], []
    for model in (plain, ours):
        reset(model, start)
        history = model.fit(x, y, batch_size=network.batch_size, shuffle=False, verbose=0)
        losses.append(history.history["loss"])
        ends.append([v.numpy() for v in every_variable(model)])
    equal = losses[0] == losses[1] and all(np.array_equal(a, b) for a, b in zip(*ends, strict=True))
    differences = {"loss": abs(losses[0][0] - losses[1][0]) / abs(losses[0][0])}
    roles = {"weights": plain.variables, "slots": plain.optimizer.variables}
    index = {id(v): k for k, v in enumerate(every_variable(plain))}
    for role, variables in roles.items():
        positions = [index[id(v)] for v in variables if v.dtype.startswith("float")]
        pairs = [(ends[0][k].astype("float64"), ends[1][k]) for k in positions]
        norm = math.sqrt(sum(float(np.sum(a * a)) for a, _ in pairs))
        differences[role] = math.sqrt(sum(float(np.sum((a - b) ** 2)) for a, b in pairs)) / norm
    differences["worst_tensor"] = max(
        float(np.max(np.abs(a.astype("float64") - b))) / (float(np.max(np.abs(a))) or 1.0)
        for a, b in zip(*ends, strict=True)
        if a.size
    )
    return equal, differences


def first_step(model, network, start: list) -> tuple[float, list]:
    """Loss of one step from the given state, and all gradients (by Adam's momenta).

    Traced anew, so that both models know the batch size: with an open one, Grappler rounds plain steps in another way.
    """
    model.train_function = None
    reset(model, start)
    loss = float(model.train_on_batch(*network.data(1))[0])
    return loss, [v.numpy().astype("float64") for v in model.optimizer.variables if "momentum" in v.path]


def differences(one: tuple[float, list], other: tuple[float, list]) -> dict:
    """Relative differences of two first steps: of the loss, and of all gradients together (Euclidean norm)."""
    import numpy as np

    norm = math.sqrt(sum(float(np.sum(g * g)) for g in one[1]))
    apart = math.sqrt(sum(float(np.sum((a - b) ** 2)) for a, b in zip(one[1], other[1], strict=True)))
    return {"loss": abs(one[0] - other[0]) / abs(one[0]), "gradients": apart / norm}


def time_steps(plain, ours, network, rounds: int = 5) -> tuple[float, float]:
    """Median over rounds of compiled over plain step time (in turn: A B A B), and the plain step's median, ms."""
    import numpy as np
    import tensorflow as tf

    x, y = (tf.constant(a) for a in network.data(1))
    functions = [tf.function(lambda data, m=m: m.train_step(data), autograph=False) for m in (plain, ours)]
    times: list[list[float]] = [[], []]
    for turn in range(rounds + 1):
        for k, function in enumerate(functions):
            begun = time.perf_counter()
            float(function((x, y))["loss"])
            if turn:
                times[k].append(time.perf_counter() - begun)
    ratio = float(np.median(np.array(times[1]) / np.array(times[0])))
    return ratio, float(np.median(times[0]) * 1e3)
