"""What whole trainings and single steps of two models are compared by, besides `checkmate_tf.check.training`."""

from __future__ import annotations

import math

from checkmate_tf.check.training import STEPS, FirstStep, every_variable, gradients_of, in_turn, reset, step_of

__all__ = ["compare", "data_bytes", "first_step", "time_steps"]

_TIMING = 20.0  # seconds
_ROUNDS = (5, 41)


def data_bytes(network) -> int:
    """Bytes of all that `device_data` makes, and of the batch in use."""
    return sum(int(array.nbytes) for batches in (STEPS, 1) for array in network.data(batches))


def compare(plain, ours, network, start: list) -> tuple[bool, dict[str, float]]:
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
    apart: dict[str, float] = {"loss": abs(losses[0][0] - losses[1][0]) / abs(losses[0][0])}
    roles = {"weights": plain.variables, "slots": plain.optimizer.variables}
    index = {id(v): k for k, v in enumerate(every_variable(plain))}
    for role, variables in roles.items():
        positions = [index[id(v)] for v in variables if v.dtype.startswith("float")]
        pairs = [(ends[0][k].astype("float64"), ends[1][k]) for k in positions]
        norm = math.sqrt(sum(float(np.sum(a * a)) for a, _ in pairs))
        apart[role] = math.sqrt(sum(float(np.sum((a - b) ** 2)) for a, b in pairs)) / norm
    apart["worst_tensor"] = max(
        float(np.max(np.abs(a.astype("float64") - b))) / (float(np.max(np.abs(a))) or 1.0)
        for a, b in zip(*ends, strict=True)
        if a.size
    )
    return equal, apart


def first_step(model, network, start: list) -> FirstStep:
    """Loss of one step from the given state, and all gradients (by Adam's momenta).

    Traced anew, so that both models know the batch size: with an open one, Grappler rounds plain steps in another way.
    """
    model.train_function = None
    reset(model, start)
    loss = float(model.train_on_batch(*network.data(1))[0])
    return loss, gradients_of(model)


def time_steps(plain, ours, network) -> tuple[float, float]:
    """Median over rounds of compiled over plain step time (A B A B), and the plain step's median, ms.

    Single rounds differ by a tenth and more on two cores, so short steps are given many: as many as take `_TIMING`
    seconds, within `_ROUNDS`.
    """
    import tensorflow as tf

    x, y = network.data(1)
    models, batch = (step_of(plain), step_of(ours)), (tf.constant(x), tf.constant(y))
    ratio, plain_ms = in_turn(*models, batch, rounds=1)
    rounds = int(_TIMING / ((1 + ratio) * plain_ms / 1e3))
    return in_turn(*models, batch, rounds=min(max(rounds, _ROUNDS[0]), _ROUNDS[1]))
