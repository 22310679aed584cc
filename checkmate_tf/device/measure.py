"""The real allocator's peak: run a step to warm up, then under watch, and put every variable back.

TensorFlow keeps statistics for GPUs, and for the CPU if its BFC allocator is on (`TF_CPU_ALLOCATOR_USE_BFC=true` in the
environment before TensorFlow starts).
"""

from __future__ import annotations

import contextlib
import functools
import gc
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from ..allocator.steps import of_a_kind
from ..machine import host_bytes
from ..report import Peak

__all__ = [
    "CPU_LIMIT",
    "HOW_TO_MEASURE",
    "Device",
    "captured_variables",
    "find_device",
    "measure_peak",
    "put_back",
    "ran_out",
    "unchanged",
]

CPU_LIMIT = 64 * 2**30
"""Bytes that the allocator of a CPU takes at most, where nothing else is set in the environment."""

HOW_TO_MEASURE = (
    "this process's CPU allocator keeps no statistics, or none of small pieces; set TF_CPU_ALLOCATOR_USE_BFC=true in "
    "the environment before TensorFlow is imported"
)


_log = logging.getLogger(__name__)

_NO_INDEX = np.zeros(0, np.int32)  # of a scalar
_NOT_IN_PLACE = (  # another shape than the step left, a device without such a kernel, or no memory for a second copy
    tf.errors.InvalidArgumentError,
    tf.errors.NotFoundError,
    tf.errors.UnimplementedError,
    tf.errors.ResourceExhaustedError,
)
_SIGNS = (
    "RESOURCE_EXHAUSTED",
    "Out of memory while trying to allocate",
    "failed to allocate the scratch space",  # of a convolution, chosen when more was free
    "Failed to call DoRnn",  # all that a recurrent layer of cuDNN says
)
_STEPS, _LEAST_STEPS, _SECONDS = 16, 2, 6.0
_PROBES, _SMALL = 5, 4096  # looks at a piece of so many bytes: a pipeline may give some back at the same time
_ALIKE_STEPS, _ALIKE = 4, 0.002  # so many steps whose peaks differ by no more than this share are enough
_OF_A_KIND = 3  # and so many of each kind: two kinds may look alike by chance, where steps take either of two peaks
_HALF_STEPS = 3  # at least, where half of the seconds are over before half of the steps
_APART = 2  # times what the first half of the steps differ by: what later ones are not expected to exceed


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

    @property
    def is_cpu(self) -> bool:
        """Whether it is the host, whose allocator the input pipeline shares."""
        return self.name.startswith("CPU")

    @property
    def host(self) -> str | None:
        """The device in whose memory values can wait that do not fit; None if this is the host itself."""
        return None if self.is_cpu else "/device:CPU:0"

    def peak_bytes(self) -> int:
        """Most bytes allocated since the last measurement."""
        return int(tf.config.experimental.get_memory_info(self.name)["peak"])

    def forget_peak(self, above_bytes: int) -> None:
        """Forget the record of the most bytes allocated, and begin a new one, if it is above that many bytes."""
        if self.peak_bytes() > above_bytes:
            tf.config.experimental.reset_memory_stats(self.name)

    def forget_since(self, known_bytes: int | None) -> int:
        """The record of the most bytes allocated, which is forgotten; 0, and nothing is, if it still is `known_bytes`.

        To ask takes microseconds. So it can be asked before each step of a training.
        """
        peak_bytes = self.peak_bytes()
        if peak_bytes == known_bytes:
            return 0
        tf.config.experimental.reset_memory_stats(self.name)
        return peak_bytes

    def current_bytes(self) -> int:
        """Bytes allocated now."""
        return int(tf.config.experimental.get_memory_info(self.name)["current"])

    def foreign_bytes(self, variable_bytes: int) -> int:
        """Bytes allocated now, less `variable_bytes`; 0 where they cannot be known."""
        return max(0, self.current_bytes() - variable_bytes) if self.measurable else 0


def find_device(name: str = "") -> Device:
    """A device by name ("GPU:1"); by default the first GPU, or else the CPU."""
    name = name or ("GPU:0" if tf.config.list_logical_devices("GPU") else "CPU:0")
    try:
        tf.config.experimental.get_memory_info(name)
        measurable = not name.startswith("CPU") or _counts_small(name)
    except (ValueError, tf.errors.OpError):
        measurable = False
    return Device(name, _limit(name), measurable)


@functools.cache
def _counts_small(name: str) -> bool:
    """Whether the allocator's statistics have all that it gives away.

    The allocator that oneDNN brings, where no other was asked for, counts only pieces of 256 KiB and more.
    """
    for _ in range(_PROBES):
        with tf.init_scope(), tf.device(f"/{name}"):
            before = int(tf.config.experimental.get_memory_info(name)["current"])
            small = tf.raw_ops.Empty(shape=[_SMALL], dtype=tf.uint8)
            counted = int(tf.config.experimental.get_memory_info(name)["current"]) > before
            del small
        if counted:
            return True
    return False


def _limit(name: str) -> int:
    if name.startswith("GPU"):
        return _limit_of_gpu(name)
    given = os.environ.get("TF_CPU_BFC_MEM_LIMIT_IN_MB", "")
    if given.isdigit() and int(given) > 0:
        return int(given) * 2**20
    return min(CPU_LIMIT, host_bytes())


@functools.cache  # to list devices takes long, and a limit stays what it was when TensorFlow started
def _limit_of_gpu(name: str) -> int:
    """What a logical device was given; else what TensorFlow took for it when it started; 0 if there is no such GPU."""
    from tensorflow.python.client import device_lib

    logical = [d.name.rpartition("device:")[2] for d in tf.config.list_logical_devices("GPU")]
    given = [
        configured.memory_limit
        for physical in tf.config.get_visible_devices("GPU")
        for configured in tf.config.get_logical_device_configuration(physical) or [None]
        if configured is not None
    ]
    if len(given) == len(logical) and (limit := dict(zip(logical, given, strict=True)).get(name)):
        return int(limit) * 2**20
    limits = (int(d.memory_limit) for d in device_lib.list_local_devices() if d.name.endswith(f"device:{name}"))
    return next(limits, 0)


@dataclass(frozen=True, eq=False)
class _Captured:
    """A variable known by its handle alone: an emitted step captures handles, so its graph lists no tf.Variable."""

    handle: Any
    dtype: tf.DType

    def numpy(self) -> Any:
        return tf.raw_ops.ReadVariableOp(resource=self.handle, dtype=self.dtype).numpy()

    def assign(self, value: Any) -> None:
        """Write a value into the buffer that the variable has.

        A new buffer may lie in a chunk that is larger than the value. The rest of the chunk would be wasted as long as
        the variable lives. Then steps would train beside more waste than they were measured beside.
        """
        whole = {"begin": [0], "end": [0], "strides": [1], "begin_mask": 1, "end_mask": 1}
        one = {"begin": _NO_INDEX, "end": _NO_INDEX, "strides": _NO_INDEX, "begin_mask": 0, "end_mask": 0}
        axes = {"ellipsis_mask": 0, "new_axis_mask": 0, "shrink_axis_mask": 0}
        where = whole if value.ndim else one
        try:
            given = tf.constant(value, self.dtype)
            tf.raw_ops.ResourceStridedSliceAssign(ref=self.handle, value=given, **where, **axes)
            tf.raw_ops.DisableCopyOnRead(resource=self.handle)  # or every read of it would be a copy from now on
        except _NOT_IN_PLACE:
            tf.raw_ops.AssignVariableOp(resource=self.handle, value=tf.zeros([0], self.dtype))  # gives its buffer back
            tf.raw_ops.AssignVariableOp(resource=self.handle, value=tf.constant(value, self.dtype))


def _assign_all(variables: Sequence[Any], values: Sequence[Any]) -> None:
    """Give each variable its value. What goes wrong meanwhile (Ctrl-C, no memory) is raised at the end."""
    raised: BaseException | None = None
    with _interrupted_later():
        for v, value in zip(variables, values, strict=True):
            for last in (False, True):
                try:
                    v.assign(value)
                    break
                except BaseException as error:  # noqa: BLE001 - a variable without its value is worse
                    if last or not isinstance(error, Exception):
                        raised = error
                    gc.collect()  # what was running when memory ended may still hold some
        if raised is not None:
            raise raised


@contextlib.contextmanager
def _interrupted_later() -> Iterator[None]:
    """Let Ctrl-C come at the end, however often it is pressed meanwhile. Only the main thread is interrupted."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    noted = list[Any]()
    signal.signal(signal.SIGINT, lambda *given: noted.append(given))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if noted:
            before(*noted[0])


def captured_variables(captures: Sequence[tuple[Any, tf.Tensor]]) -> list[_Captured]:
    """Every variable that a traced step captures, whether or not it is trained: all that it may assign."""
    found: dict[int, _Captured] = {}
    for external, internal in captures:
        data = getattr(internal, "_handle_data", None) or getattr(external, "_handle_data", None)
        if internal.dtype == tf.resource and data is not None and data.is_set and data.shape_and_type:
            found[id(external)] = _Captured(external, tf.as_dtype(data.shape_and_type[0].dtype))
    return list(found.values())


def ran_out(error: Exception) -> bool:
    """Whether an error of TensorFlow says that memory ran out.

    cuDNN tries several kernels when a convolution runs for the first time. Where memory ends meanwhile, TensorFlow says
    that no kernel was found, and why. Where it ends later, in a kernel's workspace, that is an UnknownError, and for a
    recurrent layer an InternalError without a reason.
    """
    return isinstance(error, tf.errors.ResourceExhaustedError) or any(sign in str(error) for sign in _SIGNS)


@contextlib.contextmanager
def unchanged(variables: Sequence[Any]) -> Iterator[None]:
    """Give variables the values back at the end that they have now; they are held in host memory meanwhile."""
    before = [v.numpy() for v in variables]
    try:
        yield
    finally:
        _assign_all(variables, before)


@contextlib.contextmanager
def put_back(device: Device, variables: Sequence[Any]) -> Iterator[None]:
    """Give variables the values back at the end that they have now, and forget what the device's peak was meanwhile.

    Parameters
    ----------
    device : Device
        Whose allocator keeps statistics.
    variables : sequence of tf.Variable
        Everything that may be assigned meanwhile. Their values are held in host memory.
    """
    try:
        with unchanged(variables):
            yield
    finally:
        tf.config.experimental.reset_memory_stats(device.name)


def _apart(groups: Iterable[Sequence[int]]) -> int:
    """The most by which peaks of one group differ."""
    return max(max(group, default=0) - min(group, default=0) for group in groups)


def measure_peak(
    device: Device,
    step: Callable[[], Any],
    variables: Sequence[tf.Variable],
    most_bytes: int | None = None,
    needless: bool = False,
    kinds: int = 1,
) -> tuple[Peak | None, str]:
    """Measure the most bytes allocated on the device while `step` runs, with everything else that lives there.

    TensorFlow runs what is ready on any free thread. So each step cuts memory into other chunks, and peaks differ: by a
    few percent in most networks, by a third in some. Several steps are measured. Of their peaks, the highest counts and
    how much they differ. Of their times, the least counts.

    Parameters
    ----------
    step : callable
        Runs one training step. It runs 17 times at most; its effects on `variables` are undone.
    variables : sequence of tf.Variable
        Everything that the step may assign. Held in host memory meanwhile.
    most_bytes : int, optional
        What steps may take. Measuring ends after half of the steps, or of the seconds for them, if their peaks are far
        enough below, or one is above.
    needless : bool
        A plan that takes more is of no use, by however much. Measuring ends after a few steps if one took more.
    kinds : int
        How many kinds of steps take turns, as in `Fed`.

    Returns
    -------
    (Peak or None, str)
        The peak, or None and the reason: the allocator ran out of memory.
    """
    with put_back(device, variables):
        try:
            step()
            peaks, seconds = list[int](), list[float]()
            least = max(_LEAST_STEPS, kinds)
            while len(peaks) < least or (len(peaks) < _STEPS and sum(seconds) < _SECONDS):
                if most_bytes and needless and len(peaks) >= least and max(peaks) > most_bytes:
                    break
                whole, apart = _apart([peaks]), _apart(of_a_kind(peaks, kinds))
                alike = whole if len(peaks) < _OF_A_KIND * kinds else apart
                if len(peaks) >= _ALIKE_STEPS and alike <= _ALIKE * max(peaks):
                    break
                few = max(_HALF_STEPS, kinds)
                half = len(peaks) >= _STEPS // 2 or (len(peaks) >= few and sum(seconds) >= _SECONDS / 2)
                if most_bytes and half and not max(peaks) <= most_bytes < max(peaks) + _APART * apart:
                    break
                tf.config.experimental.reset_memory_stats(device.name)
                begun = time.perf_counter()
                step()
                tf.test.experimental.sync_devices()
                seconds.append(time.perf_counter() - begun)
                peaks.append(device.peak_bytes())
            _log.debug("peaks of steps: %s MB", ", ".join(f"{peak / 1e6:.1f}" for peak in peaks))
            return Peak.of(peaks, seconds, kinds), ""
        except tf.errors.OpError as error:
            if not ran_out(error):
                raise
            return None, str(error.message).splitlines()[0]
