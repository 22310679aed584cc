"""What a step allocates and frees, event by event, from the allocator's own record.

TensorFlow's profiler notes every allocation and every free of a BFC allocator, with its bytes, its address and the
operation that asked. That happens under the allocator's lock. So the times of events are in the allocator's order, over
all threads. Each event also says how many bytes are in use after it. From one to the next that differs by just the
chunk of the event, or else something is missing: `Recorded.complete` looks at all of them.

The most sparing level of the profiler's host tracer has these events already. A step of MobileNet with 2,300 of them
(0.47 s) took 3% longer, and the record 0.13 s to read.
Other records are worse: the step statistics of `RunOptions(FULL_TRACE)` have no addresses, and a log of every event has
stack traces, which take 10 ms each.

A request of 0 bytes leaves no event, nor does one that fails.
"""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from ..allocator.held import held_while_running
from ..allocator.workspace import Workspace
from .measure import HOW_TO_MEASURE, Device, put_back

__all__ = ["NotRecorded", "Recorded", "record", "record_step"]

_ALLOCATION, _FREE = "MemoryAllocation", "MemoryDeallocation"
_XPLANE = ("tensorflow.tsl.profiler.protobuf.xplane_pb2", "tensorflow.core.profiler.protobuf.xplane_pb2")
_STEPS_BEFORE = 2  # that run before one is recorded: in the first, cuDNN tries kernels, and constants come to stay
_TRACER = {"host_tracer_level": 1, "python_tracer_level": 0, "device_tracer_level": 0}

Integers = NDArray[np.int64]


class NotRecorded(Exception):
    """Nothing can be recorded: the message says why."""


@dataclass(frozen=True, eq=False)
class Recorded:
    """The events of one allocator, in its own order.

    Attributes
    ----------
    allocates : (n,) bool
        Whether each is an allocation; the others are frees.
    requested_bytes, chunk_bytes : (n,) int64
        What was asked for, and what the allocator took for it. A free repeats those of its allocation.
    address : (n,) int64
    bytes_in_use : (n,) int64
        Of the allocator after each event.
    time_ns : (n,) int64
        When, on the profiler's clock.
    thread : (n,) int64
        In which thread, by a number that means nothing else.
    operation, kind : tuple of n str
        The name and type of the operation that asked for the memory, also at its free. Empty where that is not known:
        at frees of what was there before the record, and outside of operations.
    role : tuple of n str
        What it is to the operation: "output", "temp" or "persist"; empty where that is not known.
    """

    allocates: NDArray[np.bool_]
    requested_bytes: Integers
    chunk_bytes: Integers
    address: Integers
    bytes_in_use: Integers
    time_ns: Integers
    thread: Integers
    operation: tuple[str, ...]
    kind: tuple[str, ...]
    role: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.address)

    @property
    def changes(self) -> Integers:
        """(n,) by how much each event changes the bytes in use."""
        return np.where(self.allocates, self.chunk_bytes, -self.chunk_bytes)

    @property
    def complete(self) -> bool:
        """Whether every event follows from the one before it: none is missing, and all are in order."""
        return bool(np.array_equal(np.diff(self.bytes_in_use), self.changes[1:]))

    @property
    def bytes_before(self) -> int:
        """Bytes in use before the first event."""
        return int(self.bytes_in_use[0] - self.changes[0]) if len(self) else 0

    @property
    def peak_bytes(self) -> int:
        """The most bytes in use, those at first included."""
        return int(self.bytes_in_use.max(initial=self.bytes_before))

    @property
    def workspaces(self) -> dict[str, Workspace]:
        """What each operation held only while it ran, by name: nothing if it allocated outputs only.

        See `allocator.held`. An operation that is missing allocated nothing: it did not run, another one does its work,
        or its result lies in the memory of an input.
        """
        return held_while_running(
            self.allocates, self.requested_bytes, self.address, self.thread, self.operation, self.role
        )


def record(device: Device, run: Callable[[], Any]) -> Recorded:
    """Everything that an allocator does while something runs.

    Parameters
    ----------
    device : Device
        Whose allocator it is.
    run : callable
        What it returns lives on until the record ends.

    Returns
    -------
    Recorded
        In a process that does other things meanwhile, theirs as well.

    Raises
    ------
    NotRecorded
        If the allocator is no BFC allocator, or nothing was recorded of it though there was of others. If another
        profile is running, or this TensorFlow writes profiles that cannot be read here.
    """
    if not device.measurable:
        raise NotRecorded(f"the allocator of {device.name} keeps no record: {HOW_TO_MEASURE}")
    with tempfile.TemporaryDirectory() as folder:
        options = tf.profiler.experimental.ProfilerOptions(**_TRACER)
        try:
            tf.profiler.experimental.start(folder, options)
        except tf.errors.OpError as error:
            raise NotRecorded(f"the profiler does not start, maybe it runs already: {error.message}") from error
        try:
            kept = run()
        finally:
            tf.profiler.experimental.stop()
        del kept
        events = list(_events(Path(folder)))
    return _recorded(events, _allocator_name(device))


def record_step(device: Device, step: Callable[[], Any], variables: Sequence[Any]) -> Recorded:
    """Everything that an allocator does in a training step, when its kernels are chosen.

    Parameters
    ----------
    device : Device
    step : callable
        Runs one training step. It runs three times; its effects on `variables` are undone.
    variables : sequence of tf.Variable
        Everything that the step may assign.

    Raises
    ------
    NotRecorded
        As `record` does, or if events are missing.
    """

    def whole() -> Any:
        kept = step()
        tf.test.experimental.sync_devices()
        return kept

    with put_back(device, variables):
        for _ in range(_STEPS_BEFORE):
            whole()
        recorded = record(device, whole)
    if not recorded.complete:
        raise NotRecorded(f"the record of {device.name} is not complete: events are missing, or in another order")
    return recorded


def _allocator_name(device: Device) -> str:
    """As TensorFlow calls it."""
    return "bfc_cpu_allocator_for_gpu" if device.is_cpu else f"GPU_{device.name.partition(':')[2]}_bfc"


def _events(folder: Path) -> Iterator[tuple[int, int, str, Mapping[str, Any]]]:
    """(time in ns, thread, name, details) of all that was profiled: memory events and operations."""
    for path in sorted(folder.rglob("*.xplane.pb")):
        space = _xplane().XSpace()
        space.ParseFromString(path.read_bytes())
        for plane in space.planes:
            names = {key: value.name for key, value in plane.event_metadata.items()}
            fields = {key: value.name for key, value in plane.stat_metadata.items()}
            for line in plane.lines:
                for event in line.events:
                    name = names[event.metadata_id]
                    memory = name in (_ALLOCATION, _FREE)
                    details = {fields[s.metadata_id]: _value(s, fields) for s in event.stats} if memory else {}
                    yield line.timestamp_ns + event.offset_ps // 1000, line.id, name, details


def _xplane() -> Any:
    """The module of the profiler's format, which has moved between versions of TensorFlow."""
    for name in _XPLANE:
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    raise NotRecorded(f"TensorFlow {tf.__version__} has the profiler's format in none of {', '.join(_XPLANE)}")


def _value(stat: Any, fields: Mapping[int, str]) -> Any:
    which = stat.WhichOneof("value")
    value: Any = getattr(stat, which) if which else None
    return fields.get(value, "") if which == "ref_value" else value


def _recorded(events: list[tuple[int, int, str, Mapping[str, Any]]], allocator: str) -> Recorded:
    """Those of one allocator, in order, with the operations that they belong to."""
    kinds = dict(name.rsplit(":", 1) for _, _, name, details in events if ":" in name and not details)
    mine = [e for e in events if e[3].get("allocator_name") == allocator]
    others = sorted({str(e[3].get("allocator_name")) for e in events if e[3]})
    if others and not mine:
        raise NotRecorded(
            f"nothing was recorded of {allocator!r}, but of {', '.join(others)}: it has another name here"
        )
    mine.sort(key=lambda e: e[0])
    owners: dict[int, tuple[str, str]] = {}  # address -> operation and role of what lies there
    told: list[tuple[str, str]] = []
    for _, _, name, details in mine:
        address = details["addr"]
        if name == _ALLOCATION:
            owners[address] = str(details.get("tf_op", "")), str(details.get("region_type", ""))
            told.append(owners[address])
        else:
            told.append(owners.pop(address, ("", "")))
    column = lambda key: np.array([int(e[3][key]) for e in mine], np.int64)  # noqa: E731 - of the same events
    return Recorded(
        np.array([e[2] == _ALLOCATION for e in mine], bool),
        column("requested_bytes"),
        column("allocation_bytes"),
        column("addr"),
        column("bytes_allocated"),
        np.array([e[0] for e in mine], np.int64),
        np.array([e[1] for e in mine], np.int64),
        tuple(operation for operation, _ in told),
        tuple(kinds.get(operation, "") for operation, _ in told),
        tuple(role for _, role in told),
    )
