"""Costs measured on this device, operation by operation: the cost model "profile".

Operations with the same signature (`signature.py`) are timed once, eagerly, on fabricated inputs (`alone/`). There is
one run to warm up, then repetitions. Their lower quartile counts, since others use the processor too, less what calling
an operation from Python takes. A GPU queues what it is given: it gets several runs at a time, and calls are hidden
behind them. It serves processes by turns, so the least counts there. To call a function of a graph takes ten times as
long as an operation. So a loop or a branch and an empty function are timed by turns, and the median difference counts.
Of branches that data chooses from, the dearest counts, as in all cost models; of those within a function, the one that
made-up data chooses.
Results are kept on disk (`cache.py`). Operations whose tensors are all small get one fixed cost. What cannot be run
alone, does not fit, or comes after the time budget is estimated by the roofline, at rates fitted to what was measured.

**What this does badly.** Operations run alone. In a step, neighbours share caches, oneDNN fuses (Conv2D + BiasAdd), an
elementwise operation may write into its dying input, and small operations and independent loops overlap on several
threads. Token ids are all zero, so a gather reads one cached row. What else runs on the machine is measured too, and
cached: profile when it is quiet, or pass `cache=False`.

Sum over a step against the median measured step, on two CPU cores shared with other work: MobileNet b32 96px 0.97-1.01,
ResNet50 b32 96px 1.00, a 4-layer transformer with dropout 1.04, two LSTM layers 1.02-1.10. Steps of a few milliseconds
are overestimated, up to twice.

On a CPU the gradient of a max-pooling is timed in a graph that has both, and the pooling's own time is taken off.
"""

from __future__ import annotations

import functools
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from ..trace.sizes.tapes import pooling_of
from . import cache as disk
from .alone.eager import RUN_ERRORS, as_function, attributes_alone, empty_function, run_op
from .alone.fabricate import Fabricator, may_run
from .counts import CALLS, SOURCES, VIEWS
from .flops import op_flops
from .roofline import Rates, op_traffic_bytes, roofline_us
from .setting import device_name, setting
from .signature import Signer
from .sizes import num_bytes

__all__ = ["SMALL_BYTES", "OpTimes", "group_by_signature", "runner", "time_ops", "timed_costs"]

#: An operation is small if every input and output is below this.
SMALL_BYTES = 16 << 10
_MIN_SECONDS = 0.02
_MIN_SECONDS_BY_TURNS = 0.1  # a difference is noisier: on a busy machine 20 ms are four pairs of a small loop
_MAX_REPETITIONS = 200
_BURST_SECONDS, _MAX_BURST = 2e-3, 64  # of runs that a device is given at once
_HIDDEN = 1.2  # times what a call takes: a run that takes less is over before the next call
_OF_A_GRAPH = "an operation of a graph"  # the entry of the cache for a small one
_OP_US = 0.1, 10.0  # what one may take: it takes 1 to 3 us, and a busy moment must not make all of them dear
_log = logging.getLogger(__name__)

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class OpTimes:
    """Times of operations, and where they come from.

    Attributes
    ----------
    cost_us : (n,) float
        Microseconds, finite and positive.
    measured : (n,) bool
        False if estimated; True if timed (now, or earlier and cached) or small.
    seconds : float
        What profiling took.
    signatures : int
        How many different operations are worth timing.
    cache_hits : int
        How many of them the cache had.
    rates : Rates
        Fitted to the operations that were timed.
    """

    cost_us: NDArray[np.float64]
    measured: NDArray[np.bool_]
    seconds: float
    signatures: int
    cache_hits: int
    rates: Rates


def time_ops(
    ops: Sequence[tf.Operation],
    *,
    device: str | None = None,
    progress: Progress | None = None,
    cache: bool = True,
    repetitions: int = 3,
    time_budget: float = 30.0,
    small_bytes: int = SMALL_BYTES,
) -> OpTimes:
    """Time operations of a graph with static shapes.

    Parameters
    ----------
    ops : sequence of tf.Operation
    device : str, optional
        E.g. `"GPU:0"`. Default: the first GPU, or else the CPU.
    progress : callable(done, total, description), optional
    cache : bool
        Read and write the cache on disk.
    repetitions : int
        At least so many timed runs of a signature, and more up to 20 ms (by turns, 100 ms). Times that the cache has
        are taken as they are, however often they were run.
    time_budget : float
        Seconds after which the rest is estimated; the dearest are timed first.
    small_bytes : int
        Operations with no tensor of this many bytes are not timed.

    Returns
    -------
    OpTimes
        Never fails for one odd operation: what cannot be timed is estimated.

    Raises
    ------
    CostError
        If there is no such device.
    """
    begin = time.perf_counter()
    ops, where = list(ops), device_name(device)
    with tf.init_scope(), tf.device(where):
        signer = Signer()
        groups, kind = group_by_signature(ops, signer, small_bytes)
        path = disk.cache_path(setting(where)) if cache else None
        known = disk.load(path)
        timer = _OpTimer(repetitions, known)
        times = {s: known[s] for s in groups if s in known}
        hits = len(times)
        first = {s: ops[rows[0]] for s, rows in groups.items()}
        guess = Rates(op_us=timer.op_us)
        todo = sorted(set(groups) - set(times), key=lambda s: -roofline_us(first[s], guess) * len(groups[s]))
        fresh = dict(timer.fresh)
        try:
            for done, signature in enumerate(todo):
                left = time_budget - (time.perf_counter() - begin)
                if left <= 0:
                    _log.info(
                        "profiling stops after %.0f s; %d operations are estimated", time_budget, len(todo) - done
                    )
                    break
                if progress is not None:
                    progress(done, len(todo), first[signature].type)
                cost = timer.time(first[signature], Fabricator(signer.values), left)
                if cost is not None:
                    times[signature] = fresh[signature] = cost
        finally:  # an interrupt keeps what was measured
            disk.save(path, fresh)
        if progress is not None:
            progress(len(todo), len(todo), "done")
    estimate, rates = _fit(first, times, timer.op_us)
    cost_us = np.where(kind == _SOURCE, 0.1 * timer.op_us, timer.op_us)
    measured = kind != _LARGE
    for signature, rows in groups.items():
        cost_us[rows] = times[signature] if signature in times else estimate(first[signature])
        measured[rows] = signature in times
    seconds = time.perf_counter() - begin
    _log.info("profiled %d signatures (%d cached) in %.1f s", len(groups), hits, seconds)
    return OpTimes(cost_us, measured, seconds, len(groups), hits, rates)


@functools.wraps(time_ops, assigned=())  # its options are known by that
def timed_costs(ops: Sequence[tf.Operation], **options: Any) -> NDArray[np.float64]:
    """(len(ops),) microseconds of each operation on this device; options as for `time_ops`."""
    return time_ops(ops, **options).cost_us


_SOURCE, _SMALL, _LARGE = 0, 1, 2


def group_by_signature(
    ops: Sequence[tf.Operation], signer: Signer, small_bytes: int
) -> tuple[dict[str, list[int]], NDArray]:
    """Rows of the large operations by signature, and each operation's kind."""
    groups: dict[str, list[int]] = defaultdict(list)
    kind = np.full(len(ops), _SMALL)
    for row, op in enumerate(ops):
        if op.type in SOURCES:
            kind[row] = _SOURCE
        elif op.type in VIEWS:
            continue
        elif op.type in CALLS or any(num_bytes(t) >= small_bytes for t in (*op.inputs, *op.outputs)):
            kind[row] = _LARGE
            groups[signer(op)].append(row)
    return dict(groups), kind


class _OpTimer:
    """Times operations, less the time of calling one from Python."""

    def __init__(self, repetitions: int, known: dict[str, float]) -> None:
        self.repetitions = max(1, repetitions)
        self.fresh: dict[str, float] = {}
        tiny = tf.ones(4)
        with tf.Graph().as_default():
            scalar = tf.compat.v1.placeholder(tf.float32, (4,))
            add = tf.raw_ops.AddV2(x=scalar, y=scalar).op
        self.queues = "GPU" in tiny.device
        self.call_us = self._microseconds(runner(add, [tiny, tiny]), 1.0) or 10.0
        self.op_us = float(np.clip(known.get(_OF_A_GRAPH) or _graph_op_us(), *_OP_US))
        if _OF_A_GRAPH not in known:
            self.fresh[_OF_A_GRAPH] = self.op_us

    def time(self, op: tf.Operation, fabricator: Fabricator, seconds_left: float) -> float | None:
        """Microseconds of an operation, or None if it cannot be run."""
        try:
            if not may_run(op):
                raise ValueError("it has side effects, or calls a function that is not here")
            until = time.perf_counter() + seconds_left
            branches = fabricator.of_branches(op)
            return max(self._time(op, one.inputs_of(op), until - time.perf_counter()) for one in branches)
        except RUN_ERRORS as error:
            _log.debug("%s (%s) is estimated: %s", op.name, op.type, error)
            return None

    def _time(self, op: tf.Operation, inputs: list[Any], seconds_left: float) -> float:
        """Microseconds on given inputs."""
        pooling = None if self.queues else pooling_of(op)
        if pooling is not None:
            both, one = as_function(op, inputs, pooling), as_function(pooling, inputs[:1])
            return self._beyond(lambda: both(*inputs), lambda: one(inputs[0]), seconds_left)
        if op.type in CALLS:
            empty = empty_function(inputs)
            return self._beyond(runner(op, inputs), lambda: empty(*inputs), seconds_left)
        us = self._microseconds(runner(op, inputs), seconds_left)
        if self.queues:
            return us if us > _HIDDEN * self.call_us else self.op_us
        return max(us - self.call_us, 0.0) + self.op_us

    def _beyond(self, run: Callable[[], object], less: Callable[[], object], seconds_left: float) -> float:
        """Microseconds that one run takes beyond another, by turns: what else is busy slows both."""
        for first in (run, less):  # kernels are made
            self._seconds(first)
        found = self._repeated(lambda: self._seconds(run) - self._seconds(less), seconds_left, _MIN_SECONDS_BY_TURNS)
        return 1e6 * max(float(np.median(found)), 0.0) + self.op_us

    def _microseconds(self, run: Callable[[], object], seconds_left: float) -> float:
        warm, burst = self._seconds(run), 1
        if self.queues:  # the first run has tried kernels, and loaded them
            warm = min(warm, self._seconds(run))
            burst = max(1, min(_MAX_BURST, int(_BURST_SECONDS / warm)))
        samples = self._repeated(lambda: self._seconds(run, burst) / burst, seconds_left)
        return 1e6 * float(np.quantile(samples, 0.0 if self.queues else 0.25))

    def _repeated(
        self, sample: Callable[[], float], seconds_left: float, least_seconds: float = _MIN_SECONDS
    ) -> list[float]:
        """Samples until there are enough, or the next one would come too late."""
        samples: list[float] = []
        begin = time.perf_counter()
        while len(samples) < _MAX_REPETITIONS:
            spent = time.perf_counter() - begin
            if len(samples) >= self.repetitions and spent >= least_seconds:
                break
            if samples and spent * (1 + 1 / len(samples)) > max(seconds_left, _MIN_SECONDS):
                break
            samples.append(sample())
        return samples

    def _seconds(self, run: Callable[[], object], times: int = 1) -> float:
        """Seconds of so many runs, one after the other, until the device is done."""
        begin = time.perf_counter()
        for _ in range(times):
            run()
        if self.queues:
            tf.test.experimental.sync_devices()
        return time.perf_counter() - begin


def runner(op: tf.Operation, inputs: list) -> Callable[[], list]:
    """A callable that runs an operation once on eager inputs."""
    if op.type in CALLS:
        call = as_function(op, inputs)
        return lambda: call(*inputs)
    attributes = attributes_alone(op)
    return lambda: run_op(op, inputs, attributes)


def _graph_op_us() -> float:
    """Microseconds of one small operation inside a graph, from a chain of them."""
    length = 300

    def sines(x: tf.Tensor) -> tf.Tensor:
        for _ in range(length):
            x = tf.sin(x)
        return x

    x = tf.ones(4)
    chain = tf.function(sines, autograph=False).get_concrete_function(x)  # whatever `run_functions_eagerly` says
    chain(x)
    samples = []
    for _ in range(5):
        start = time.perf_counter()
        chain(x).numpy()
        samples.append(time.perf_counter() - start)
    return 1e6 * min(samples) / length


def _fit(
    first: dict[str, tf.Operation], times: dict[str, float], op_us: float
) -> tuple[Callable[[tf.Operation], float], Rates]:
    """An estimator for what was not measured: the roofline at the median rates of what was, corrected by type."""
    flops_rates, byte_rates = [], []
    for signature, us in times.items():
        op, seconds = first[signature], 1e-6 * us
        flops, traffic = op_flops(op), op_traffic_bytes(op)
        if flops > 8 * traffic > 0:
            flops_rates.append(flops / seconds)
        elif traffic > 0:
            byte_rates.append(traffic / seconds)
    default = Rates()
    rates = Rates(
        float(np.median(flops_rates)) if flops_rates else default.flops_per_second,
        float(np.median(byte_rates)) if byte_rates else default.bytes_per_second,
        op_us,
    )
    ratios: dict[str, list[float]] = defaultdict(list)
    for signature, us in times.items():
        ratios[first[signature].type].append(us / roofline_us(first[signature], rates))

    def estimate(op: tf.Operation) -> float:
        correction = float(np.median(ratios[op.type])) if op.type in ratios else 1.0
        return max(correction * roofline_us(op, rates), 0.1 * op_us)

    return estimate, rates
