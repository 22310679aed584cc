"""Models trained in different ways that take turns, each in a child process of its own. Used by `peers.py`.

All children live at the same time, so that what else the machine does meets them alike, and each has an allocator to
itself, so that peaks are one model's. A runner measures its model's peak once (`prepare`), does a timed training step
whenever it is asked to (`step`), and in the end one step from the start with Grappler off, whose loss, gradients,
statistics and seeds it leaves in a file (`numbers`).
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # this is a child's script, too

from benchmarks.lib.rivals import build, compile_ours, describe, networks_of

if TYPE_CHECKING:
    import keras

    from checkmate_tf.check.networks import Network

__all__ = ["answer_race", "errors", "timed"]

State = list[tuple[Any, Any]]  # variables, and values to put back


def answer_race(request: dict) -> dict:
    """All ways, each in a child process of its own, in turn."""
    runners: list[Runner] = []
    ways: list[dict] = []
    try:
        for way in request["ways"]:
            runner = Runner({**request, "way": way})
            runners.append(runner)
            ways.append({**way, **runner.ask({"do": "prepare"})})
        ready = [k for k, way in enumerate(ways) if way["outcome"] == "measured"]
        times: dict[int, list[float]] = {k: [] for k in ready}
        for _ in range(request["rounds"]):
            for k in ready:
                times[k].append(runners[k].ask({"do": "step"})["seconds"])
        with tempfile.TemporaryDirectory() as folder:
            files = {k: f"{folder}/{k}.npz" for k in ready}
            for k in ready:
                runners[k].ask({"do": "numbers", "path": files[k]})
            for k in ready:
                ways[k] |= timed(times[k], times[0]) | errors(files[k], files[0])
    finally:
        for runner in runners:
            runner.end()
    return {"answers": ways}


def timed(seconds: list[float], plain: list[float]) -> dict:
    """Median, least and most ratio to the plain step of the same round; median milliseconds."""
    from statistics import median

    ratios = [a / b for a, b in zip(seconds, plain, strict=True)]
    return {
        "step_ratio": median(ratios), "least_ratio": min(ratios), "most_ratio": max(ratios),
        "step_ms": 1e3 * median(seconds),
    }  # fmt: skip


def errors(path: str, plain_path: str) -> dict:
    """How far a way's step ends from the plain one's.

    Raises
    ------
    ValueError
        If they did not start at the same variables.
    """
    import numpy as np

    with np.load(path, allow_pickle=False) as file, np.load(plain_path, allow_pickle=False) as plain_file:
        found, plain = dict(file), dict(plain_file)
    if found.keys() != plain.keys() or str(found["start"]) != str(plain["start"]):
        raise ValueError("the ways did not start at the same variables")

    def norm(kind: str, one: dict, other: dict | None = None) -> float:
        keys = [k for k in plain if k.startswith(kind)]
        apart = (one[k].astype("float64") - (0.0 if other is None else other[k]) for k in keys)
        return float(np.sqrt(sum(float(np.sum(a * a)) for a in apart)))

    before = {k.replace("before", "statistics"): v for k, v in plain.items() if k.startswith("before")}
    change = norm("statistics", plain, before)
    seeds = [k for k in plain if k.startswith("seed")]
    return {
        "loss_error": float(abs(found["loss"] - plain["loss"]) / abs(plain["loss"])),
        "gradient_error": norm("gradient", found, plain) / norm("gradient", plain),
        "statistics_error": norm("statistics", found, plain) / change if change else None,
        "seeds": len(seeds),
        "seeds_off": sum(not np.array_equal(found[k], plain[k]) for k in seeds),
    }


class Runner:
    """A child process that holds one model and does a step when asked."""

    def __init__(self, request: dict) -> None:
        command = [sys.executable, __file__, json.dumps(request)]
        self._name = describe(request["way"])
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, question: dict) -> dict:
        """The answer of `serve_runner`.

        Raises
        ------
        RuntimeError
            If the child has ended.
        """
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        stdin.write(json.dumps(question) + "\n")
        stdin.flush()
        for line in stdout:
            if line.startswith("RESULT "):
                found: dict = json.loads(line.removeprefix("RESULT "))
                return found
        raise RuntimeError(f"{self._name} ended at {question['do']!r} with {self._process.wait()}")

    def end(self) -> None:
        """End the child process."""
        self._process.kill()
        self._process.communicate()


def serve_runner(request: dict) -> None:
    """In a runner: answer a question a line."""
    network = networks_of(request["network"], request["batch"])
    model: Any = None
    start: State = []
    step = None
    for line in sys.stdin:
        question = json.loads(line)
        if question["do"] == "prepare":
            model, start, found = prepared(network, request)
            if model is not None:
                step = traced_step(model, network)
        elif question["do"] == "step":
            assert step is not None
            begun = time.perf_counter()
            step()
            found = {"seconds": time.perf_counter() - begun}
        else:
            found = save_numbers(model, network, start, question["path"])
        print("RESULT " + json.dumps(found), flush=True)


def prepared(network: Network, request: dict) -> tuple[keras.Model | None, State, dict]:
    """The model, its variables before any step, and its peak; no model if ours was refused."""
    import checkmate_tf
    from checkmate_tf.check.training import device_data, every_variable, peaks

    way = request["way"]
    model, data = build(network, way), device_data(network)
    found: dict = {"outcome": "measured"}
    if way["way"] == "ours":
        try:
            compile_ours(model, network, way["budget_bytes"], request["time_limit"])
        except checkmate_tf.InfeasibleBudgetError as error:
            return None, [], {"outcome": "refused", "least_bytes": error.minimum_bytes, "reason": str(error)}
    start = [(v, v.numpy()) for v in every_variable(model)]
    found["peak_bytes"], found["fit_peak_bytes"] = peaks(model, network, data)
    if way["way"] == "ours":
        report = model.checkmate.to_dict()
        found |= {
            "predicted_bytes": report["predicted_peak_bytes"],
            "recomputations": report["recomputations"],
            "overhead": report["overhead"],
        }
    return model, start, found


def traced_step(model: keras.Model, network: Network) -> Any:
    """A training step on fixed data, run once to warm up."""
    import tensorflow as tf

    data = tuple(tf.constant(a) for a in network.data(1))
    function = tf.function(lambda batch: model.train_step(batch), autograph=False)
    function(data)
    return lambda: float(function(data)["loss"])


def save_numbers(model: keras.Model, network: Network, start: State, path: str) -> dict:
    """One step from the start with Grappler off; loss, gradients, statistics and seeds go to a file."""
    import hashlib

    import numpy as np
    import tensorflow as tf

    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    model.train_function = None
    for variable, value in start:
        variable.assign(value)
    model.reset_metrics()
    seeds = [v for v in model.variables if "seed_generator" in v.path]
    known = {id(v) for v in seeds}
    statistics = [v for v in model.non_trainable_weights if id(v) not in known]
    kept = {f"before{k}": v.numpy() for k, v in enumerate(statistics)}
    everything = [*model.weights, *seeds, *model.optimizer.variables]  # metrics are zero
    digest = hashlib.sha256(b"".join(np.ascontiguousarray(v.numpy()).tobytes() for v in everything)).hexdigest()
    loss = float(model.train_on_batch(*network.data(1))[0])
    kept |= {"start": np.array(digest), "loss": np.array(loss)}
    kept |= {f"statistics{k}": v.numpy() for k, v in enumerate(statistics)}
    kept |= {f"seed{k}": v.numpy() for k, v in enumerate(seeds)}
    moments = [v for v in model.optimizer.variables if "momentum" in v.path]
    kept |= {f"gradient{k}": v.numpy() for k, v in enumerate(moments)}
    np.savez(path, **kept)
    return {"loss": loss}


if __name__ == "__main__":
    serve_runner(json.loads(sys.argv[1]))
