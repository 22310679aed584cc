"""Which processes a check starts, in which order, and what it leaves out when time is short.

What is timed has the device alone: on a CPU it runs by itself, and on a GPU processes side by side take turns. The rest
may run side by side where there are cores for it. Costs are measured anew, and kept for the check alone.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from ..device.process import MARGIN, Outcome, Tell, end_children, run_child
from ..errors import CheckmateError
from .judge import (
    judge_bits,
    judge_device,
    judge_largest,
    judge_limit,
    judge_limited,
    judge_peer,
    judge_policy,
    judge_train,
)
from .line import Line, failed, not_run

__all__ = ["CPU_MEMORY", "GPU_MEMORY", "NETWORKS", "SHARES", "Asked", "Checked", "check"]

NETWORKS = ("mobilenet", "transformer", "unet", "resnet50", "vgg16", "lstm")
CPU_NETWORKS = ("mobilenet", "transformer", "lstm")
"""What is checked unless networks are named. All six were not done in ten minutes on two cores."""

SHARES = (0.8, 0.6, 0.4)
GPU_MEMORY, CPU_MEMORY = 2 * 10**9, 10**8
"""Bytes that plain steps fill, beside variables. A CPU is some hundred times slower, and ten minutes are to do."""

LIMITED = 0.6
"""Of the activations: the budget of runs under a hard limit, and of those in another precision."""

PLAIN_BATCHES, OUR_BATCHES = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4), (1.0, 1.25, 1.5, 2.0)
"""Of the batch that fills the memory: those that are tried under that limit, until a plain one trains, and until one of
ours does not."""

LIMIT_MIB = 256
"""Of the test whether a limit holds."""

ROOM, BESIDE, CARD = 4, 2 * 10**9, 0.8
"""Times the memory that is to be filled, bytes for variables, and of the card at most: a GPU's limit where none is
tested. Others have the rest of the card."""

CPU_CORES, GPU_CORES = 4, 2
"""For each process, of those side by side: where they train on the CPU, and where they only plan and emit there."""

LEAST_SECONDS = 20.0
"""A process that has less is not started: TensorFlow alone takes some."""

POLICIES = ("mixed_float16", "mixed_bfloat16")
POLICY_NETWORK, XLA_NETWORK, PEER_NETWORK = "transformer", "small", "transformer"
_CHILD = "checkmate_tf.check.child"

_T = TypeVar("_T")


@dataclass(frozen=True)
class Asked:
    """What is to be checked.

    Attributes
    ----------
    devices : sequence of str
        Names, e.g. "GPU:0"; all that there are, if it is empty.
    networks : sequence of str
        Among `NETWORKS`; all of them, or `CPU_NETWORKS` on a CPU, if it is empty.
    shares : sequence of float
        Budgets, as shares of the plain step's activations on top of its variables and data.
    memory_bytes : int or None
        What plain steps fill, beside variables; None for `GPU_MEMORY` or `CPU_MEMORY`.
    seconds : float
        For each device. What has no time left is not run.
    jobs : int
        Processes side by side; 0 for as many as there are cores for. On a CPU what is timed runs by itself.
    time_limit : float
        Seconds of solving, a plan.
    """

    devices: Sequence[str] = ()
    networks: Sequence[str] = ()
    shares: Sequence[float] = SHARES
    memory_bytes: int | None = None
    seconds: float = 600.0
    jobs: int = 0
    time_limit: float = 2.5


@dataclass
class Checked:
    """What came of it.

    Attributes
    ----------
    machine : dict
        Devices, versions, cores.
    lines : list of Line
    seconds : float
    """

    machine: dict[str, Any]
    lines: list[Line] = field(default_factory=list)
    seconds: float = 0.0


def check(asked: Asked, tell: Tell, told: Callable[[Line], None]) -> Checked:
    """Check every device.

    Parameters
    ----------
    asked : Asked
    tell : callable (stage, done, total, text)
        Hears what is going on.
    told : callable (Line)
        Hears each line as soon as it is known.

    Raises
    ------
    CheckmateError
        If TensorFlow itself cannot be started.
    """
    begun = time.monotonic()
    looked = run_child(_CHILD, {"run": "devices"}, None, _prefixed(tell, "devices"), gpu=True, timeout=120.0)
    if looked.result is None:
        raise CheckmateError(f"TensorFlow does not start here: {looked.failure}; reinstall it, or look at its log")
    checked = Checked(looked.result)
    there = {d["name"]: d.get("memory_bytes") for d in looked.result["devices"]}
    with tempfile.TemporaryDirectory(prefix="checkmate-check-") as cache:
        for name in asked.devices or there:
            lines: Iterator[Line]
            if name not in there:
                lines = iter([failed(name, "device", f"there is none: TensorFlow sees {', '.join(there)}")])
            else:
                until = time.monotonic() + asked.seconds
                cores = looked.result["cores"]
                lines = _Device(name, there[name], cores, asked, tell, until, cache).lines()
            for line in lines:
                checked.lines.append(line)
                told(line)
    checked.seconds = time.monotonic() - begun
    return checked


class _Device:
    """The checks of one device."""

    def __init__(
        self,
        name: str,
        size_bytes: int | None,
        cores: int,
        asked: Asked,
        tell: Tell,
        until: float,
        folder: str,
    ):
        self.name, self.asked, self.until, self._tell, self._folder = name, asked, until, tell, folder
        self.is_gpu, self._stopped = name.startswith("GPU"), False
        self.memory = asked.memory_bytes or (GPU_MEMORY if self.is_gpu else CPU_MEMORY)
        jobs = asked.jobs or max(2, cores // (GPU_CORES if self.is_gpu else CPU_CORES))
        self.room: int | None = None  # the limit where none is tested: none on a CPU
        if self.is_gpu:
            self.room = ROOM * self.memory + BESIDE
            if size_bytes is not None:
                card = int(CARD * size_bytes)
                self.room, jobs = min(self.room, card), max(1, min(jobs, card // self.room))
        self._turns = threading.Semaphore(jobs)

    def lines(self) -> Iterator[Line]:
        """All of them, in the order in which they are had."""
        yield from self._one("device", {"run": "device"}, self.room, judge_device)
        limit = LIMIT_MIB * 2**20
        yield from self._one(
            "hard limit", {"run": "limit", "asked_bytes": limit}, limit, lambda d, f: judge_limit(d, limit, f)
        )  # fmt: skip
        trained: dict[str, Mapping[str, Any]] = {}
        networks = self.asked.networks or (NETWORKS if self.is_gpu else CPU_NETWORKS)
        runs = {network: self._training(network, self.asked.shares) for network in networks}
        for network, outcome in self._timed(runs):
            if outcome is not None and outcome.result is not None:
                trained[network] = outcome.result
            yield from self._trained(network, outcome)
        yield from self._side_by_side(trained)
        networks = (XLA_NETWORK, *(trained if self.is_gpu else ()))  # XLA takes long to compile for a CPU
        runs = {f"{network} under XLA": self._training(network, (LIMITED,), jit_compile=True) for network in networks}
        for what, outcome in self._timed(runs):
            yield from self._trained(what, outcome)

    def _training(self, network: str, shares: Sequence[float], **more: Any) -> dict[str, Any]:
        """What a child is asked that trains plainly and within budgets, and times steps."""
        request = {
            "run": "train", "network": network, "memory_bytes": self.memory, "shares": list(shares),
            "time_limit": self.asked.time_limit, **more,
        }  # fmt: skip
        return {**request, "turns": self._folder} if self.is_gpu else request

    def _timed(self, runs: Mapping[str, dict[str, Any]]) -> Iterator[tuple[str, Outcome | None]]:
        """Children whose steps are timed: side by side on a GPU, where they take turns."""
        tasks = [partial(self._run, what, request, self.room) for what, request in runs.items()]
        yield from zip(runs, self._pooled(tasks) if self.is_gpu else (task() for task in tasks), strict=True)

    def _pooled(self, tasks: Sequence[Callable[[], _T]]) -> Iterator[_T]:
        """What tasks find, several at a time: `_run` waits for its turn."""
        with ThreadPoolExecutor(max(1, len(tasks))) as pool:
            try:
                yield from pool.map(lambda task: task(), tasks)
            except BaseException:  # children are in other threads, which nobody interrupts
                self._stopped = True
                end_children()
                raise

    def _trained(self, what: str, outcome: Outcome | None) -> Iterator[Line]:
        """Of a child that trained: what it found, or what it had found when its time was up."""
        found = None if outcome is None else outcome.result or (outcome.late and outcome.planned)
        if found:
            yield from judge_train(self.name, what, found)
        if outcome is None or outcome.result is None:
            yield self._missing(what, outcome)

    def _side_by_side(self, trained: Mapping[str, Mapping[str, Any]]) -> Iterator[Line]:
        """What is not timed, several at a time."""
        tasks: list[Callable[[], list[Line]]] = [
            lambda network=network, found=found: self._bits(network, found)  # type: ignore[misc]
            for network, found in trained.items()
        ]
        if POLICY_NETWORK in trained:
            found = trained[POLICY_NETWORK]
            tasks += [lambda policy=policy: self._policy(policy, found) for policy in POLICIES]  # type: ignore[misc]
            tasks += [lambda: self._largest(POLICY_NETWORK, found)]
        if PEER_NETWORK in trained:
            batch = trained[PEER_NETWORK]["batch_size"]
            tasks += [lambda: self._peer(batch)]
        for lines in self._pooled(tasks):
            yield from lines

    def _bits(self, network: str, found: Mapping[str, Any]) -> list[Line]:
        """Plainly and compiled, without a limit and under one.

        Where memory is short, cuDNN may choose other kernels than without a limit. A CPU has no such choice, so what
        was compiled under the limit has the bits of the plain step without one.
        """
        budget, limit = _limited(found)
        request = {"run": "steps", "network": network, "batch_size": found["batch_size"]}
        ours = {**request, "budget_bytes": budget, "time_limit": self.asked.time_limit}
        runs = [
            (f"{network}: plain", request, self.room),
            (f"{network}: plain, limited", request, limit),
            (f"{network}: compiled, limited", ours, limit),
        ]
        if self.is_gpu:
            runs += [(f"{network}: compiled", ours, self.room)]
        with ThreadPoolExecutor(len(runs)) as pool:
            answers = list(pool.map(lambda run: self._run(*run), runs))
        bits, limited = [answers[0], answers[-1]], answers[1:3]
        return [
            *self._judged(f"{network}, equal bits", bits, lambda *a: judge_bits(self.name, network, *a)),
            *self._judged(f"{network}, limited", limited, lambda *a: judge_limited(self.name, network, limit, *a)),
        ]

    def _largest(self, network: str, found: Mapping[str, Any]) -> list[Line]:
        """The largest batch that trains under a hard limit, of a few sizes, plainly and compiled."""
        budget, limit = _limited(found)
        trained = {"plain": 0, "compiled": 0}
        for who, more, shares in (
            ("plain", {}, PLAIN_BATCHES),
            ("compiled", {"budget_bytes": budget, "time_limit": self.asked.time_limit}, OUR_BATCHES),
        ):
            for share in shares:
                batch = max(1, int(share * found["batch_size"]))
                request = {"run": "steps", "network": network, "batch_size": batch, **more}
                outcome = self._run(f"{network}: {who}, batch {batch}", request, limit)
                if outcome is None or outcome.late:
                    return [self._missing(f"{network}, largest batch", None)]
                if outcome.result is not None:
                    trained[who] = batch
                if (outcome.result is None) == (who == "compiled"):  # ours go up till one fails, plain ones down
                    break
        return list(judge_largest(self.name, network, limit, trained["plain"], trained["compiled"]))

    def _policy(self, policy: str, found: Mapping[str, Any]) -> list[Line]:
        """In another precision: the budget is a share of the plain peak in that precision."""
        request = {"run": "steps", "network": POLICY_NETWORK, "batch_size": found["batch_size"], "policy": policy}
        return self._pair(f"{POLICY_NETWORK} in {policy}", request, found["constant_bytes"], judge_policy, policy)

    def _pair(self, what: str, request: dict[str, Any], constant: int, judge: Any, *more: str) -> list[Line]:
        """A plain run, and one within a share of its peak."""
        plain = self._run(f"{what}: plain", request, self.room)
        if plain is None or plain.result is None:
            return [self._missing(what, plain)]
        peak = plain.result["peak_bytes"]
        budget = int(constant + LIMITED * (peak - constant))
        asked = {**request, "budget_bytes": budget, "time_limit": self.asked.time_limit}
        ours = self._run(f"{what}: compiled", asked, self.room)
        answers = [plain, ours]
        return self._judged(what, answers, lambda *a: judge(self.name, *more, request["network"], *a))

    def _peer(self, batch_size: int) -> list[Line]:
        request = {"run": "peer", "network": PEER_NETWORK, "batch_size": batch_size}
        return list(self._one("keras.RematScope", request, self.room, lambda d, f: judge_peer(d, PEER_NETWORK, f)))

    def _one(
        self, what: str, request: dict[str, Any], limit: int | None, judge: Callable[[str, Any], Iterator[Line]]
    ) -> Iterator[Line]:
        outcome = self._run(what, request, limit)
        if outcome is None or outcome.result is None:
            yield self._missing(what, outcome)
        else:
            yield from judge(self.name, outcome.result)

    def _judged(self, what: str, answers: list[Outcome | None], judge: Callable[..., Iterator[Line]]) -> list[Line]:
        if any(answer is None or answer.late for answer in answers):
            return [self._missing(what, None)]
        return list(judge(*(_plain_values(answer) for answer in answers if answer is not None)))

    def _missing(self, what: str, outcome: Outcome | None) -> Line:
        if outcome is None or outcome.late:
            return not_run(self.name, what, f"no time was left of {self.asked.seconds:.0f} s")
        return failed(self.name, what, outcome.failure)

    def _run(self, what: str, request: dict[str, Any], limit: int | None) -> Outcome | None:
        """Run a child; None if there is no time for it."""
        tell = _prefixed(self._tell, f"{self.name} {what}")
        with self._turns:
            left = self.until - time.monotonic()
            if left < LEAST_SECONDS or self._stopped:
                return None
            more: dict[str, Any] = {"timeout": left, "environment": {"CHECKMATE_TF_CACHE": self._folder}}
            if not self.is_gpu:
                return run_child(_CHILD, request, None if limit is None else limit // 2**20, tell, **more)
            asked = {**request, "gpu": True, "limit_bytes": limit}
            return run_child(_CHILD, asked, None, tell, gpu=int(self.name.partition(":")[2]), **more)


def _limited(found: Mapping[str, Any]) -> tuple[int, int]:
    """The budget of runs under a hard limit, and the limit: bytes, of what a network was found to take.

    Where the budget of that share was refused, it is the one that the refusal named, if steps stayed within that.
    """
    constant, plain_peak = found["constant_bytes"], found["plain_peak_bytes"]
    trained = (c["budget_bytes"] for c in found["cells"] if c["share"] == LIMITED and "error" not in c)
    budget = next(trained, int(constant + LIMITED * (plain_peak - constant)))
    return budget, int(budget * (1 + MARGIN)) // 2**20 * 2**20


def _plain_values(outcome: Outcome) -> dict[str, Any]:
    """A child's answer, or why there is none."""
    if outcome.result is not None:
        return outcome.result
    return {"failed": outcome.failure, "out_of_memory": outcome.out_of_memory}


def _prefixed(tell: Tell, what: str) -> Tell:
    return lambda stage, done, total, text: tell(f"{what}: {stage}", done, total, text)
