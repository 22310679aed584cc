"""The real allocator's peak: run a step once to warm up, once under watch, and put every variable back.

TensorFlow keeps statistics for GPUs, and for the CPU if its BFC allocator is on (`TF_CPU_ALLOCATOR_USE_BFC=true` in the
environment before TensorFlow starts).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

__all__ = ["HOW_TO_MEASURE", "Device", "find_device", "measure_peak"]

HOW_TO_MEASURE = (
    "this process's CPU allocator keeps no statistics; set TF_CPU_ALLOCATOR_USE_BFC=true in the environment before "
    "TensorFlow is imported"
)


@dataclass(frozen=True)
class Device:
    """The device that trains.

    Attributes
    ----------
    name : str
        As TensorFlow's memory statistics call it, e.g. "CPU:0".
    limit_bytes : int
        The most that its allocator may take.
    measurable : bool
        Whether allocator statistics are to be had.
    """

    name: str
    limit_bytes: int
    measurable: bool

    def current_bytes(self) -> int:
        """Bytes allocated now."""
        return int(tf.config.experimental.get_memory_info(self.name)["current"])


def find_device() -> Device:
    """The first GPU, or else the CPU."""
    name = "GPU:0" if tf.config.list_logical_devices("GPU") else "CPU:0"
    try:
        tf.config.experimental.get_memory_info(name)
        measurable = True
    except (ValueError, tf.errors.OpError):
        measurable = False
    return Device(name, _limit(name), measurable)


def _limit(name: str) -> int:
    if name.startswith("GPU"):
        from tensorflow.python.client import device_lib

        limits = [d.memory_limit for d in device_lib.list_local_devices() if d.name.endswith(f"device:{name}")]
        if limits:
            return int(limits[0])
    given = os.environ.get("TF_CPU_BFC_MEM_LIMIT_IN_MB", "")
    if given.isdigit() and int(given) > 0:
        return int(given) * 2**20
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def measure_peak(
    device: Device, step: Callable[[], Any], variables: Sequence[tf.Variable]
) -> tuple[int | None, str]:
    """Most bytes allocated on the device while `step` runs, everything else that lives there included.

    Parameters
    ----------
    step : callable
        Runs one training step. It runs twice; its effects on `variables` are undone.
    variables : sequence of tf.Variable
        Everything that the step may assign. Held in host memory meanwhile.

    Returns
    -------
    (int or None, str)
        The peak, or None and the reason: the allocator ran out of memory.
    """
    before = [v.numpy() for v in variables]
    try:
        step()
        tf.config.experimental.reset_memory_stats(device.name)
        step()
        return int(tf.config.experimental.get_memory_info(device.name)["peak"]), ""
    except tf.errors.ResourceExhaustedError as error:
        return None, str(error.message).splitlines()[0]
    finally:
        for v, value in zip(variables, before, strict=True):
            v.assign(value)
