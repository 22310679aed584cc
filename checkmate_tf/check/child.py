"""What one process of a check measures: `python -m checkmate_tf.check.child '{"run": "train", ...}'`.

The request's `run` names one of `RUNS`, with its other entries as keywords. `device.in_child` has the messages.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ..device.in_child import limit_gpu, say, serve, take_memory_in_one_piece, tell
from ..machine import cores
from .turns import ALONE, AWAY, BESIDE, Turns

__all__ = ["RUNS", "answer"]

_MIB = 2**20
_GAP = 0.05  # proven, at which solving ends: a check is not about the last percent
_TURNS = 3  # rounds in which steps are timed
_STEPS = 4  # over which a peak is measured
_TAKEN = 64 * _MIB  # bytes, to see what statistics say of them


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Do what is asked, and say what was measured."""
    given = dict(request)
    tell("start", 0, 1, "TensorFlow")
    on_gpu, limit = given.pop("gpu", False), given.pop("limit_bytes", None)
    if on_gpu and limit is not None:
        limit_gpu(limit)
    if given["run"] != "device":
        take_memory_in_one_piece()
    return RUNS[given.pop("run")](**given)


def devices() -> dict[str, Any]:
    """Which devices there are, and what TensorFlow says of them."""
    import keras
    import tensorflow as tf

    from ..device.measure import find_device

    found = []
    for physical in tf.config.list_physical_devices():
        kind, name = physical.device_type, physical.name.removeprefix("/physical_device:")
        if kind in ("CPU", "GPU"):
            details = tf.config.experimental.get_device_details(physical) if kind == "GPU" else {}
            size = find_device(name).limit_bytes
            found.append({"name": name, "kind": kind, "details": details, "memory_bytes": size})
    return {
        "devices": found,
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
        "cores": cores(),
    }


def device() -> dict[str, Any]:
    """A device's allocator: its kind, whether its statistics are right, whether its map can be read; its bandwidths."""
    import tensorflow as tf

    from ..costs.setting import setting
    from ..device.measure import find_device
    from ..device.memory_map import memory_map
    from ..device.record import NotRecorded
    from ..device.replay import allocator_of

    at = find_device()
    found: dict[str, Any] = {
        "limit_bytes": at.limit_bytes,
        "measurable": at.measurable,
        "setting": setting(f"/{at.name}"),
        "variables": {
            k: v for k, v in os.environ.items() if k.startswith(("TF_GPU_ALLOC", "TF_CPU_ALLOC", "TF_FORCE"))
        },
    }
    with tf.device(f"/{at.name}"):
        tf.ones([8]).numpy()  # the first operation takes some bytes for good
    if at.measurable:
        before = at.current_bytes()
        tf.config.experimental.reset_memory_stats(at.name)
        with tf.device(f"/{at.name}"):
            taken = tf.raw_ops.Empty(shape=[_TAKEN], dtype=tf.uint8)
        found["taken_bytes"], found["asked_bytes"] = at.current_bytes() - before, _TAKEN
        del taken
        found["left_bytes"], found["peak_bytes"] = at.current_bytes() - before, at.peak_bytes() - before
    try:
        found["allocator"] = str(allocator_of(at))
        found["chunks"] = int(len(memory_map(at).address))
    except NotRecorded as error:
        found["no_map"] = str(error)
    return found | {"bandwidth": _bandwidths(at.name)}


def _bandwidths(device_name: str) -> dict[str, float]:
    """Bytes a second of copies of 256 MiB on the device, and to the host and back where that is another device.

    A copy on the device reads and writes: both count. What comes back from the host is what was copied there: it lies
    in memory that the device can read.
    """
    import tensorflow as tf

    from ..costs.copies import copied_seconds, median_seconds

    here, host, size = f"/{device_name}", "/CPU:0", 256 * _MIB

    with tf.device(here):
        x = tf.raw_ops.DeepCopy(x=tf.ones([size // 4]))

    def on_device(times: int) -> float:
        def copied() -> tf.Tensor:
            y = x
            for _ in range(times):
                y = tf.raw_ops.DeepCopy(x=y)
            return y

        return median_seconds(copied)

    found, eight = {}, on_device(9) - on_device(1)
    if eight > 0:  # others may have used the device
        found["on_device"] = 2 * 8 * size / eight
    if not device_name.startswith("CPU"):
        there, back = copied_seconds(here, host, size)
        found |= {"to_host": size / there, "from_host": size / back}
    return found


def limit(asked_bytes: int) -> dict[str, Any]:
    """Whether the allocator's hard limit holds: more than it is refused."""
    import tensorflow as tf

    from ..device.measure import find_device

    at = find_device()
    taken: list[Any] = []
    step, refused = 8 * _MIB, False
    try:
        with tf.device(f"/{at.name}"):
            while len(taken) * step < 2 * asked_bytes:
                taken.append(tf.raw_ops.Empty(shape=[step], dtype=tf.uint8))
    except tf.errors.ResourceExhaustedError:
        refused = True
    allocator = "" if at.is_cpu else os.environ.get("TF_GPU_ALLOCATOR", "")
    return {
        "limit_bytes": at.limit_bytes, "held_bytes": len(taken) * step, "refused": refused, "allocator": allocator,
    }  # fmt: skip


def train(
    network: str,
    memory_bytes: int,
    shares: list[float],
    time_limit: float,
    jit_compile: bool = False,
    turns: str | None = None,
) -> dict[str, Any]:
    """A network plainly and compiled at each share of its activations: peaks, and steps timed in turn.

    With `jit_compile`, XLA compiles both. `turns` is the folder of processes that share the device: what is timed has
    it alone.
    """
    with Turns(turns) as at:
        return _train(network, memory_bytes, shares, time_limit, jit_compile, at)


def _train(
    network: str, memory_bytes: int, shares: list[float], time_limit: float, jit_compile: bool, turns: Turns
) -> dict[str, Any]:
    """As `train`."""
    import tensorflow as tf
    from keras.src.trainers.trainer import model_supports_jit

    from ..device.measure import find_device
    from .networks import NETWORKS, sized
    from .training import (
        differences,
        every_variable,
        gradients_of,
        heard,
        in_turn,
        release,
        reset,
        step_of,
        unwatch,
        variable_bytes,
    )

    tell("size", 0, 1, network)
    at, plain = find_device(), NETWORKS[network].model()
    chosen = sized(NETWORKS[network], plain, memory_bytes)
    batch = tuple(tf.raw_ops.DeepCopy(x=tf.constant(array)) for array in chosen.data(1))
    tell("plain", 0, 1, f"batches of {chosen.batch_size}")
    turns.take(BESIDE)
    if jit_compile and not model_supports_jit(plain):
        return {"no_xla": "Keras says that XLA cannot compile a layer of it on this device"}
    start = [v.numpy() for v in every_variable(plain)]  # `sized` has made those of optimizer and metrics
    plain_step = step_of(plain, jit_compile)
    plain_step(batch)

    def peak_of(step: Callable[[Any], Any]) -> int:
        step(batch)  # kernels are chosen
        tf.config.experimental.reset_memory_stats(at.name)
        for _ in range(_STEPS):
            step(batch)
        tf.test.experimental.sync_devices()
        return at.peak_bytes()

    def first(model: Any, step: Callable[[Any], Any]) -> tuple[float, list[Any]]:
        reset(model, start)
        return float(step(batch)["loss"]), gradients_of(model)

    peak = peak_of(plain_step)
    constant = variable_bytes(plain) + sum(array.nbytes for array in chosen.data(1))
    found: dict[str, Any] = {
        "batch_size": chosen.batch_size,
        "constant_bytes": constant,
        "plain_peak_bytes": peak,
        "plain_limit_bytes": at.limit_bytes,
        "tf32": not at.is_cpu and bool(tf.config.experimental.tensor_float_32_execution_enabled()),
        "cells": [],
    }

    def within(share: float) -> dict[str, Any]:
        """One cell."""
        release(plain)
        gc.collect()
        budget = int(constant + share * (peak - constant))
        tell("compile", 0, 1, f"{share:.0%}")
        ours, begun = chosen.model(), time.perf_counter()
        ours.jit_compile = jit_compile
        planning: dict[str, Any] = {"data": chosen.data(1), "time_limit": time_limit, "gap": _GAP}
        cell: dict[str, Any] = {"share": share, "budget_bytes": budget, "foreign_bytes": at.foreign_bytes(constant)}
        with heard() as lines:
            try:
                turns.take(AWAY)
                cell |= _compiled(ours, budget, **planning, progress=turns.hear)
            except Exception as error:  # noqa: BLE001 - the next share may do
                cell |= {"error": f"{type(error).__name__}: {error}", "log": lines}
                release(ours)
                return cell
        cell["log"] = lines
        cell["compile_seconds"] = time.perf_counter() - begun
        tell("train", 0, 1, f"{share:.0%}")
        turns.take(BESIDE)
        ours_step = step_of(ours)
        cell["peak_bytes"] = peak_of(ours_step)
        report = ours.checkmate
        cell |= {
            key: getattr(report, key)
            for key in ("predicted_peak_bytes", "placed_peak_bytes", "measured_peak_bytes", "strict", "strict_cost")
        }
        cell |= {"overhead": report.overhead, "predicted_ratio": report.step_ratio, "plans": len(report.attempts)}
        cell |= {"seconds": dict(report.seconds), "gap": report.schedule.gap}
        unwatch(ours)
        reset(plain, start)
        turns.take(ALONE)
        cell["step_ratio"], cell["plain_step_ms"] = in_turn(plain_step, ours_step, batch, _TURNS)
        turns.take(BESIDE)
        cell["model_step_ms"] = None if jit_compile else report.base_cost / 1e3
        one = first(plain, plain_step)
        cell["itself"] = differences(one, first(plain, plain_step))
        cell["apart"] = differences(one, first(ours, ours_step))
        release(ours)
        return cell

    for share in shares:
        found["cells"].append(within(share))
        say(planned=found)  # if there is no time for the others, this one counts
    if not jit_compile:  # XLA draws other random numbers, so a step without it would not be comparable
        reset(plain, start)
        one = first(plain, plain_step)
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
        found["otherwise"] = differences(one, first(plain, step_of(plain)))
    return found


def _compiled(model: Any, budget_bytes: int, **planning: Any) -> dict[str, Any]:
    """Compile within a budget, or within the least that its refusal names. Which of them, and what was refused."""
    from ..errors import InfeasibleBudgetError
    from ..keras.api import compile

    try:
        compile(model, budget_bytes, **planning)
    except InfeasibleBudgetError as error:
        refused, named = str(error), error.minimum_bytes
        compile(model, named, **planning)
        return {"refused_bytes": budget_bytes, "refusal": refused, "budget_bytes": named}
    return {"budget_bytes": budget_bytes}


def steps(
    network: str,
    batch_size: int,
    budget_bytes: int | None = None,
    policy: str = "float32",
    time_limit: float = 10.0,
) -> dict[str, Any]:
    """A few steps, plainly or within a budget: losses, and all bits.

    Grappler is off, and kernels give the same bits each time.
    """
    import keras
    import tensorflow as tf

    from ..device.measure import find_device
    from .networks import NETWORKS
    from .training import STEPS, device_data, digest

    tf.config.experimental.enable_op_determinism()
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    keras.config.set_dtype_policy(policy)
    chosen = replace(NETWORKS[network], batch_size=batch_size)
    model, data, at = chosen.model(), device_data(chosen), find_device()
    found: dict[str, Any] = {"limit_bytes": at.limit_bytes}
    if budget_bytes is not None:
        tell("compile", 0, 1, network)
        begun = time.perf_counter()
        # times would be those of a machine that is busy with other checks, and they do not matter here
        planning: dict[str, Any] = {"data": chosen.data(1), "costs": "flops", "time_limit": time_limit}
        found |= _compiled(model, budget_bytes, **planning, progress=False)
        report = model.checkmate
        found |= {"compile_seconds": time.perf_counter() - begun, "overhead": report.overhead}
        found |= {"predicted_peak_bytes": report.predicted_peak_bytes, "placed_peak_bytes": report.placed_peak_bytes}
        found |= {"measured_peak_bytes": report.measured_peak_bytes}
    tell("train", 0, 1, network)
    model.fit(*data, batch_size=batch_size, shuffle=False, verbose=0)  # kernels are chosen
    tf.config.experimental.reset_memory_stats(at.name)
    history = model.fit(*data, batch_size=batch_size, shuffle=False, verbose=0)
    found |= {"losses": history.history["loss"], "digest": digest(model), "steps": 2 * STEPS}
    return found | {"peak_bytes": at.peak_bytes()}


def peer(network: str, batch_size: int) -> dict[str, Any]:
    """The peak of Keras's own recomputation (`keras.RematScope`) beside that of the plain step."""
    import keras

    from .networks import NETWORKS
    from .training import device_data, peaks, release

    chosen = replace(NETWORKS[network], batch_size=batch_size)
    data = device_data(chosen)
    plain = chosen.model()
    found: dict[str, Any] = {"plain_peak_bytes": peaks(plain, chosen, data)[0]}
    release(plain)
    del plain
    gc.collect()
    with keras.RematScope(mode="full"):
        model = chosen.model()
        try:
            found["peer_peak_bytes"] = peaks(model, chosen, data)[0]
        except Exception as error:  # noqa: BLE001 - what a peer raises is what it does
            return found | {"peer_error": f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"}
    return found


RUNS: dict[str, Callable[..., dict[str, Any]]] = {
    "devices": devices,
    "device": device,
    "limit": limit,
    "train": train,
    "steps": steps,
    "peer": peer,
}


if __name__ == "__main__":
    serve(answer)
