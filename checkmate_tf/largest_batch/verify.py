"""Finds the largest batch for real: trains the predicted one in a child under a hard limit, and smaller ones after it.

The prediction (`strategies.max_batch`) counts the bytes of layers. A real step also has optimizer slots, values inside
layers and workspaces of kernels, and an allocator loses some memory to fragments. So the largest batch that trains is
smaller. Each batch is tried by a `trial`, in a process of its own. It uses the memory of the first GPU, or of the CPU
if there is none.
"""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from .. import errors
from ..device.in_child import FAILED, OUT_OF_MEMORY
from ..device.process import MARGIN, Outcome, Tell, run_child
from ..errors import BudgetError, CheckmateError, InfeasibleBudgetError, ModelError
from ..machine import host_bytes
from ..strategies.max_batch import MaxBatch, Probe, Verified
from ..units import format_bytes
from .trial import Trial

__all__ = ["Source", "find_largest", "saved", "try_for_real"]

log = logging.getLogger("checkmate_tf")

PRECISION = 0.05
"""The search ends when the largest batch that trained is within this share of the largest that might."""

MOST_PROBES = 8
"""After so many probes, the largest batch that trained so far is the answer."""

TIMEOUT = 600.0
"""Seconds that a child may take."""

_LEAP = 0.95  # at most this share of a batch that failed is tried next


@dataclass(frozen=True)
class Source:
    """Where a child gets the model from; `keras.sources` says what each means.

    Attributes
    ----------
    model : str
        A name in keras.applications, a `.keras` file, or `file.py:function`.
    input_shape, classes : optional
        For keras.applications.
    optimizer, loss : str, optional
        To compile it with, if it is not compiled, or to compile it with others.
    """

    model: str
    input_shape: tuple[int, ...] | None = None
    classes: int | None = None
    optimizer: str | None = None
    loss: str | None = None


@contextmanager
def saved(model: Any) -> Iterator[Source]:
    """A compiled Keras model in a temporary file, which a child loads without running code from it.

    Raises
    ------
    ModelError
        If it is not a compiled Keras model, or cannot be saved.
    """
    import keras

    if not isinstance(model, keras.Model):
        raise ModelError(
            f"verify=True trains the model for real, but {type(model).__name__} is not a Keras model: give the "
            "compiled model itself, or verify=False"
        )
    if not model.compiled:
        raise ModelError(
            f"verify=True trains the model for real, but {model.name!r} is not compiled: call model.compile(optimizer="
            "..., loss=...) first"
        )
    with tempfile.TemporaryDirectory(prefix="checkmate-trial-") as folder:
        path = Path(folder) / "model.keras"
        try:
            model.save(path)
        except Exception as error:  # noqa: BLE001 - whatever a layer's get_config raises
            raise ModelError(
                f"{model.name!r} cannot be saved as a .keras file, which a child process would load to train it: "
                f"{type(error).__name__}: {error}; give a function that builds it to the command line: checkmate-tf "
                "max-batch file.py:function --verify"
            ) from error
        yield Source(str(path))


def try_for_real(
    found: MaxBatch,
    source: Source,
    max_overhead: float | str = "one-forward",
    *,
    seed: int = 0,
    tell: Tell | None = None,
    told: Callable[[Probe, int, int], None] | None = None,
) -> MaxBatch:
    """Train the predicted batch in a child under a hard limit. If it fails, find the largest smaller one that trains.

    Parameters
    ----------
    found : MaxBatch
        The prediction.
    source : Source
        The model that was predicted for.
    max_overhead : float or "one-forward"
    seed : int
    tell : callable (stage, done, total, text), optional
        Hears what the child is doing; the stage begins with the batch.
    told : callable (probe, largest that trained, smallest that failed), optional
        Hears how each probe ended; the numbers are 0 and the prediction + 1 while there is none.

    Returns
    -------
    MaxBatch
        The same with `verified`.

    Raises
    ------
    BudgetError
        If this process may fill less memory than was predicted for.
    InfeasibleBudgetError
        If not even one sample trains.
    CheckmateError
        If a trial fails for a reason that has nothing to do with memory. The error has the type that the child's had.
    KeyboardInterrupt
        If nothing has trained yet; the child is ended. Later, an interrupt ends the search with what has trained.
    """
    gpu = _has_gpu()
    there = host_bytes()
    if not gpu and found.memory_bytes > there:
        raise BudgetError(
            f"{format_bytes(found.memory_bytes)} cannot be tried for real: this process may fill "
            f"{format_bytes(there)}; leave verification out, or run it on a larger machine"
        )
    budget = int(found.memory_bytes / (1 + MARGIN))

    def probe(batch: int) -> Probe:
        trial = Trial(
            **asdict(source), batch_size=batch, memory_bytes=found.memory_bytes, budget_bytes=budget,
            max_overhead=max_overhead, seed=seed,
        )  # fmt: skip
        return _probe(trial, gpu, tell)

    probes = find_largest(found.batch_size, probe, lambda failed: _guess(failed, budget, found.fixed_bytes), told)
    best = max((p for p in probes if p.trained), key=lambda p: p.batch_size, default=None)
    if best is None:
        last = probes[-1]
        raise InfeasibleBudgetError(
            f"not even one sample trained in {format_bytes(found.memory_bytes)} (budget {format_bytes(budget)}): "
            f"{last.ending}",
            found.memory_bytes,
            int((last.minimum_bytes or budget) * (1 + MARGIN)),
            proven=False,
        )
    verified = Verified(
        best.batch_size,
        best.peak_bytes or 0,
        best.step_seconds or 0.0,
        best.overhead or 0.0,
        budget,
        tuple(probes),
    )
    return replace(found, verified=verified)


def find_largest(
    first: int,
    probe: Callable[[int], Probe],
    guess: Callable[[Probe], int | None],
    told: Callable[[Probe, int, int], None] | None = None,
) -> list[Probe]:
    """Probe `first`; if it fails, go down until a batch trains, then bisect.

    Ends when what trained is within 5% of what failed or could, after 8 probes if anything trained, or at one sample.

    Parameters
    ----------
    first : int
    probe : callable (batch) -> Probe
    guess : callable (Probe) -> int or None
        From a probe that failed, the batch that might train.
    told : callable (probe, largest that trained, smallest that failed), optional

    Raises
    ------
    KeyboardInterrupt
        If nothing has trained yet.
    """
    probes: list[Probe] = []
    low, high, batch, guessed = 0, first + 1, first, False
    while True:
        try:
            probes.append(probe(batch))
        except KeyboardInterrupt:
            if not low:
                raise
            log.warning("interrupted: %d samples are the most that trained so far", low)
            return probes
        last = probes[-1]
        low, high = (batch, high) if last.trained else (low, batch)
        log.info("batch %d: %s", batch, last.ending)
        if told is not None:
            told(last, low, high)
        step = 1 + int(PRECISION * low)
        if high - low <= step or (low and len(probes) >= MOST_PROBES):
            return probes
        hint = None if last.trained else guess(last)
        if last.trained and guessed:  # the guess was good: is there more?
            batch, guessed = low + step, False
            continue
        batch, guessed = (low + high) // 2, False
        if hint is not None:
            hint = max(1, min(hint, int(_LEAP * high)))
            if low < hint < high:
                batch, guessed = hint, True


def _guess(failed: Probe, budget_bytes: int, fixed_bytes: int) -> int | None:
    """The batch whose least memory is the budget, if all but `fixed_bytes` grows with the batch."""
    if failed.minimum_bytes is None:
        return None
    if failed.minimum_bytes <= max(budget_bytes, fixed_bytes):  # a plan fits, but the allocator did not make do with it
        return 3 * failed.batch_size // 4
    return int(failed.batch_size * max(0, budget_bytes - fixed_bytes) / (failed.minimum_bytes - fixed_bytes))


def _has_gpu() -> bool:
    import tensorflow as tf

    return bool(tf.config.list_physical_devices("GPU"))


def _probe(trial: Trial, gpu: bool, tell: Tell | None) -> Probe:
    """Run a child, and tell how it ended.

    Raises
    ------
    CheckmateError
        If it failed for a reason that has nothing to do with memory.
    """

    def follow(stage: str, done: float, total: float, text: str) -> None:
        if tell is not None:
            tell(f"batch {trial.batch_size}: {stage}", done, total, text)

    begun = time.perf_counter()
    limit_mib = None if gpu else trial.memory_bytes // 2**20
    outcome = run_child(Trial.__module__, asdict(trial), limit_mib, follow, gpu=gpu, timeout=TIMEOUT)
    seconds = time.perf_counter() - begun
    if outcome.result is not None:
        return Probe(trial.batch_size, "trained", seconds, **outcome.result)
    _raise_if_hopeless(trial, outcome)
    return Probe(trial.batch_size, outcome.failure, seconds, minimum_bytes=outcome.failed.get("minimum_bytes"))


def _raise_if_hopeless(trial: Trial, outcome: Outcome) -> None:
    """Raise, unless a smaller batch may help: after a lack of memory, a failed kernel, a crash, or too much time."""
    name, text = outcome.failed.get("failed", ""), outcome.failed.get("text", "")
    short = outcome.out_of_memory or outcome.status < 0 or outcome.status in (OUT_OF_MEMORY, FAILED)
    if short or name == InfeasibleBudgetError.__name__:
        return
    kind = getattr(errors, name, ModelError)
    if not (isinstance(kind, type) and issubclass(kind, CheckmateError)):
        kind = ModelError
    raise kind(f"the trial of {trial.batch_size} samples in a child process failed: {text or outcome.failure}")
