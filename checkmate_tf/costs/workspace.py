"""Memory that kernels take for themselves while they run, measured on this device, operation by operation.

Convolutions, loops and others allocate buffers that no graph shows. On a CPU without AVX-512 the gradient of a 3 x 3
convolution takes 34 MB whatever its size (measured). Where the allocator keeps statistics, each signature
(`signature.py`) runs once on fabricated inputs. The workspace is the peak less what is left when the operation is done.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from ..errors import CostError
from ..trace.ops import ELEMENTWISE
from ..trace.sizes.tapes import places_bytes, pooling_of
from . import cache as disk
from .alone.eager import RUN_ERRORS, as_function
from .alone.fabricate import Fabricator, may_run
from .counts import CALLS
from .setting import device_name, setting
from .signature import Signer
from .timed import SMALL_BYTES, group_by_signature, runner

__all__ = ["ALONE_SECONDS", "LEAST_BYTES", "op_workspaces"]

ALONE_SECONDS = 20.0  # for all of a network: the largest come first, and take most of it
LEAST_BYTES = 1 << 16  # less is not worth counting
_log = logging.getLogger(__name__)


def op_workspaces(
    ops: Sequence[tf.Operation],
    *,
    device: str | None = None,
    progress: Callable[[int, int, str], None] | None = None,
    cache: bool = True,
    time_budget: float = ALONE_SECONDS,
) -> NDArray[np.int64]:
    """Bytes that each operation holds only while it runs, beyond its inputs and outputs.

    The device's record of the most bytes allocated (`tf.config.experimental.get_memory_info`) is lost: it begins anew
    with each operation.

    Parameters
    ----------
    ops : sequence of n tf.Operation
        Of a graph with static shapes.
    device : str, optional
        E.g. `"GPU:0"`; its allocator must keep statistics. Default: the first GPU, or else the CPU.
    progress : callable(done, total, description), optional
    cache : bool
        Read and write the cache on disk. Not on a GPU, where each process may choose other kernels.
    time_budget : float
        Seconds after which the rest counts as 0; operations with the largest tensors come first.

    Returns
    -------
    (n,) int
        0 for what cannot be run alone.

    Raises
    ------
    CostError
        If there is no such device, or its allocator keeps no statistics.
    """
    begin = time.perf_counter()
    found = np.zeros(len(ops), np.int64)
    where = device_name(device)
    _check_statistics(where)
    with tf.init_scope(), tf.device(where):
        signer = Signer()
        groups, _ = group_by_signature(ops, signer, SMALL_BYTES)
        groups = {s: rows for s, rows in groups.items() if ops[rows[0]].type not in ELEMENTWISE}
        chosen_here = where.startswith("GPU")  # cuDNN chooses kernels in each process anew, by their times
        path = disk.cache_path(f"workspaces in one piece {setting(where)}") if cache and not chosen_here else None
        known = disk.load(path, "bytes")
        todo = sorted(groups.keys() - known.keys(), key=lambda s: (-_bytes(ops[groups[s][0]]), s))
        fresh: dict[str, float] = {}
        try:
            for done, signature in enumerate(todo):
                if time.perf_counter() - begin > time_budget:
                    _log.info("measuring workspaces stops after %.0f s; %d are left", time_budget, len(todo) - done)
                    break
                op = ops[groups[signature][0]]
                if progress is not None:
                    progress(done, len(todo), f"workspace of {op.type}")
                pooling = None if chosen_here else pooling_of(op)
                found_bytes = _workspace(op, pooling, Fabricator(signer.values), where)
                if found_bytes is not None:
                    fresh[signature] = found_bytes
        finally:  # an interrupt keeps what was measured
            disk.save(path, fresh, "bytes")
    for signature, rows in groups.items():
        found[rows] = int({**known, **fresh}.get(signature, 0))
    return found


def _check_statistics(device: str) -> None:
    try:
        tf.config.experimental.get_memory_info(device)
    except (ValueError, tf.errors.OpError):
        raise CostError(f"the allocator of {device} keeps no statistics, so workspaces cannot be measured") from None


def _workspace(op: tf.Operation, pooling: tf.Operation | None, fabricator: Fabricator, device: str) -> int | None:
    """Bytes; None if the operation could not be run now. Memory may have been short, so that is not cached.

    If it is the gradient of a pooling that keeps places for it, it takes nothing, but in a graph without the pooling.
    """
    try:
        if not may_run(op):
            return 0
        more = max(_allocated(op, pooling, one.inputs_of(op), device) for one in fabricator.of_branches(op))
    except RUN_ERRORS as error:
        _log.debug("the workspace of %s (%s) is unknown: %s", op.name, op.type, error)
        return None
    return more if more >= LEAST_BYTES else 0


def _allocated(op: tf.Operation, pooling: tf.Operation | None, inputs: list[Any], device: str) -> int:
    """Bytes on given inputs."""
    if pooling is not None and places_bytes(pooling, _peak_beyond(runner(pooling, inputs[:1]), device)):
        return 0
    more = _peak_beyond(runner(op, inputs), device)
    if more >= LEAST_BYTES and op.type not in CALLS:  # a graph may have another kernel, which needs less
        call = as_function(op, inputs)
        call(*inputs)  # kernels are made
        more = min(more, _peak_beyond(lambda: call(*inputs), device))
    return more


def _peak_beyond(run: Callable[[], Any], device: str) -> int:
    """Bytes at the peak beyond those that are left when it is over."""
    tf.config.experimental.reset_memory_stats(device)
    outputs = run()
    info = tf.config.experimental.get_memory_info(device)
    del outputs
    return int(info["peak"] - info["current"])


def _bytes(op: tf.Operation) -> int:
    return sum((t.shape.num_elements() or 0) * t.dtype.size for t in (*op.inputs, *op.outputs))
