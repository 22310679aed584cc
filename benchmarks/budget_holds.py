"""Does the budget hold, are the numbers the same, and what does it cost? One child process a run.

For each network the plain step's peak is measured, and budgets are 80, 60, 40 and 30% of its activation peak (the peak
less variables and inputs) on top of variables and inputs. For each budget:

- `cell`: compile, fit, measure the peak; then loss, variables and optimizer slots after three steps of `fit` against
  the plain model's with Grappler off, bit by bit; loss and gradients of a step, and three steps, with Grappler on,
  relative, beside what Grappler itself does to the plain step (on against off); and step times in turn;
- `itself`: how far apart six plain steps from the same state are with Grappler on, loss and gradients, relative;
- `limit`: the same training under a hard limit of the CPU allocator (the budget plus a margin), plain and compiled;
  where the plain model trains too, once more with half the margin.

    python benchmarks/budget_holds.py                      # two networks, two budgets
    python benchmarks/budget_holds.py --full               # everything; resumes what is in the output folder
    python benchmarks/budget_holds.py --networks small --fractions 0.7 --strategies all --no-limits --output DIR
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path

NETWORKS = ("mobilenet", "resnet50", "vgg16", "unet", "transformer", "lstm")
FRACTIONS = (0.8, 0.6, 0.4, 0.3)
STEPS = 3
PLAIN_STEPS = 6  # from the same state, with Grappler on
LIMITED = ("limit_plain", "limit_ours")  # under a hard limit of the allocator
LOWER = {"limit": "lower"}  # where the plain model trains under the first


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="all six networks at all four budgets")
    parser.add_argument("--networks", nargs="*", help="only these")
    parser.add_argument("--fractions", nargs="*", type=float)
    parser.add_argument("--margin", type=float, default=0.10, help="of the hard limit over the budget (default 0.10)")
    parser.add_argument("--time-limit", type=float, default=20.0, help="seconds of solving a cell")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/budget_holds"))
    parser.add_argument(
        "--strategies", nargs="*", default=["checkmate"], help='how to schedule (default checkmate), or "all"'
    )
    parser.add_argument("--no-limits", action="store_true", help="leave out the runs under a hard limit")
    parser.add_argument("--no-itself", action="store_true", help="leave out how far plain steps are from themselves")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        request = json.loads(options.child)
        print("RESULT " + json.dumps(CHILDREN[request["run"]](request)), flush=True)
        return
    names = options.networks or (NETWORKS if options.full else ("mobilenet", "transformer"))
    fractions = options.fractions or (FRACTIONS if options.full else (0.6, 0.4))
    if options.strategies == ["all"]:
        from checkmate_tf.strategies import STRATEGIES

        options.strategies = list(STRATEGIES)
    options.output.mkdir(parents=True, exist_ok=True)
    requests = []
    for name in names:
        plain = run(options.output, {"run": "plain", "network": name})
        print(f"{name}, plain: {json.dumps(plain)}", flush=True)
        if not options.no_itself:
            print(f"{name}, itself: {json.dumps(run(options.output, {'run': 'itself', 'network': name}))}", flush=True)
        if "activation_bytes" in plain:
            for fraction in fractions:
                budget = int(plain["constant_bytes"] + fraction * plain["activation_bytes"])
                for strategy in options.strategies:
                    chosen = {} if strategy == "checkmate" else {"strategy": strategy}
                    requests.append({"network": name, "fraction": fraction, "budget": budget, **chosen})
    cells = []
    for request in requests:
        cells.append(run(options.output, {"run": "cell", **request, "time_limit": options.time_limit}))
        print(f"{request['network']} {request['fraction']:.0%}: {json.dumps(cells[-1])}", flush=True)
    for request, cell in zip(requests, cells, strict=True):
        if options.no_limits or "peak_bytes" not in cell:
            continue
        for margin, lower in ((options.margin, {}), (options.margin / 2, LOWER)):
            limit = math.ceil(request["budget"] * (1 + margin) / 2**20)
            results = []
            for name in LIMITED:
                asked = {"run": name, **request, **lower, "time_limit": options.time_limit}
                results.append(run(options.output, asked, limit_mb=limit))
                print(f"{request['network']} {request['fraction']:.0%} {name}: {json.dumps(results[-1])}", flush=True)
            if not results[0].get("trained"):
                break
    write_table(options.output)


def _path(output: Path, request: dict) -> Path:
    keys = ("run", "network", "fraction", "strategy", "limit")
    return output / ("-".join(str(request[k]) for k in keys if k in request) + ".json")


def run(output: Path, request: dict, limit_mb: int | None = None) -> dict:
    """Run a child, or read what an earlier run left, if it was asked the same (plain peaks differ, and so budgets)."""
    path = _path(output, request)
    if path.exists():
        known: dict = json.loads(path.read_text())
        if request.items() <= known.items() and known["limit_mb"] == limit_mb:
            return known
    environment = {**os.environ, "TF_CPU_ALLOCATOR_USE_BFC": "true", "TF_CPP_MIN_LOG_LEVEL": "3"}
    if limit_mb is not None:
        environment["TF_CPU_BFC_MEM_LIMIT_IN_MB"] = str(limit_mb)
    begun = time.perf_counter()
    command = [sys.executable, __file__, "--child", json.dumps(request)]
    child = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    lines = [line for line in child.stdout.splitlines() if line.startswith("RESULT ")]
    if lines:
        result = json.loads(lines[-1][7:])
    else:
        out_of_memory = "OOM" in child.stderr or "RESOURCE_EXHAUSTED" in child.stderr or "out of memory" in child.stderr
        tail = child.stderr.strip().splitlines()[-1:]  # the error; no paths of a machine
        refused = "InfeasibleBudgetError" in child.stderr  # before anything was trained
        ended = f"exit {child.returncode}" if child.returncode >= 0 else f"crash, signal {-child.returncode}"
        failed = "refused" if refused else "out of memory" if out_of_memory else ended
        result = {"failed": failed, "stderr": tail}
    result = {**request, "limit_mb": limit_mb, "wall_seconds": round(time.perf_counter() - begun, 1), **result}
    path.write_text(json.dumps(result, indent=1))
    return result


def _titles() -> dict[str, str]:
    from networks import NETWORKS

    return {name: network.title for name, network in NETWORKS.items()}


# What the children do.


def child_plain(request: dict) -> dict:
    """Peak of the plain step through fit."""
    from networks import NETWORKS

    network = NETWORKS[request["network"]]
    model = network.model()
    peak, fit = peaks(model, network)
    x, y = network.data(1)
    constant = sum(int(v.value.nbytes if hasattr(v.value, "nbytes") else _nbytes(v)) for v in every_variable(model))
    constant += x.nbytes + y.nbytes
    return {"peak_bytes": peak, "fit_peak_bytes": fit, "constant_bytes": constant, "activation_bytes": peak - constant}


def child_cell(request: dict) -> dict:
    """Compile, measure, compare, time."""
    import tensorflow as tf
    from networks import NETWORKS

    import checkmate_tf

    network = NETWORKS[request["network"]]
    ours = network.model()
    begun = time.perf_counter()
    try:
        checkmate_tf.compile(
            ours,
            budget=request["budget"],
            data=network.data(1),
            time_limit=request["time_limit"],
            strategy=request.get("strategy", "checkmate"),
            progress=False,
            cache=False,
        )
    except checkmate_tf.InfeasibleBudgetError as error:
        return {"infeasible": str(error), "least_bytes": error.minimum_bytes, "proven": error.proven}
    except checkmate_tf.StrategyError as error:
        return {"refused": str(error)}
    seconds = time.perf_counter() - begun
    start = [v.numpy() for v in every_variable(ours)]
    peak, fit = peaks(ours, network)
    report = ours.checkmate.to_dict()
    unwatch(ours)
    plain = network.model()
    plain.train_on_batch(*network.data(1))  # creates the metrics' variables
    reset(plain, start)
    step_ratio, plain_ms = time_steps(plain, ours, network)
    optimized = first_step(plain, network, start)
    result = {
        "compile_seconds": seconds,
        "seconds": report["seconds"],
        "predicted_bytes": report["predicted_peak_bytes"],
        "verified_bytes": report["measured_peak_bytes"],
        "peak_bytes": peak,
        "fit_peak_bytes": fit,
        "sure_bytes": report["sure_bytes"],
        "expected_bytes": report["expected_bytes"],
        "exceeded_bytes": report["exceeded_bytes"],
        "plans_tried": len(report["attempts"]),
        "strict_order": report["strict"],
        "recomputations": report["recomputations"],
        "overhead": report["overhead"],
        "strict_cost": report["strict_cost"],
        "predicted_ratio": report["step_ratio"],
        "gap": report["gap"],
        "step_ratio": step_ratio,
        "plain_step_ms": plain_ms,
        "first_step_error": differences(optimized, first_step(ours, network, start)),
        "relative_error": compare(plain, ours, network, start)[1],
    }
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    for model in (plain, ours):
        model.train_function = None
    result["grappler_error"] = differences(optimized, first_step(plain, network, start))
    result["bit_equal"] = compare(plain, ours, network, start)[0]
    return result


def child_itself(request: dict) -> dict:
    """How far apart plain steps from the same state are, at most, with Grappler on."""
    from networks import NETWORKS

    network = NETWORKS[request["network"]]
    model = network.model()
    model.train_on_batch(*network.data(1))  # creates the metrics' variables
    start = [v.numpy() for v in every_variable(model)]
    first, *others = [first_step(model, network, start) for _ in range(PLAIN_STEPS)]
    apart = [differences(first, other) for other in others]
    return {"difference": {key: max(d[key] for d in apart) for key in apart[0]}}


def child_limit_plain(request: dict) -> dict:
    from networks import NETWORKS

    network = NETWORKS[request["network"]]
    return train(network.model(), network)


def child_limit_ours(request: dict) -> dict:
    from networks import NETWORKS

    import checkmate_tf

    network = NETWORKS[request["network"]]
    model = network.model()
    checkmate_tf.compile(
        model,
        budget=request["budget"],
        data=network.data(1),
        time_limit=request["time_limit"],
        strategy=request.get("strategy", "checkmate"),
        progress=False,
        cache=False,
    )
    return train(model, network)


CHILDREN = {
    "plain": child_plain,
    "itself": child_itself,
    "cell": child_cell,
    "limit_plain": child_limit_plain,
    "limit_ours": child_limit_ours,
}


def train(model, network) -> dict:
    import tensorflow as tf

    x, y = network.data(STEPS)
    try:
        history = model.fit(x, y, batch_size=network.batch_size, epochs=2, shuffle=False, verbose=0)
    except tf.errors.ResourceExhaustedError:
        return {"failed": "out of memory"}
    return {"trained": True, "loss": history.history["loss"]}


def every_variable(model) -> list:
    """Weights, BN statistics, seeds, optimizer slots, metrics."""
    variables = [*model.variables, *model.optimizer.variables, *model.metrics_variables]
    return list({id(v): v for v in variables}.values())


def _nbytes(v) -> int:
    return math.prod(v.shape) * v.value.dtype.size


def reset(model, values: list) -> None:
    for v, value in zip(every_variable(model), values, strict=True):
        v.assign(value)


def peaks(model, network) -> tuple[int, int]:
    """Peak of the allocator over eight training steps, and over a fit, whose input pipeline shares the CPU.

    The first step is for warming up. Variables end as they began. Where a compiled model plans again meanwhile, both
    are taken of the plan that it ends with.
    """
    import tensorflow as tf

    x, y = network.data(STEPS)
    batch = x[: network.batch_size], y[: network.batch_size]
    model.train_on_batch(*batch)
    before = [v.numpy() for v in every_variable(model)]

    def peak_of(action) -> int:
        tf.config.experimental.reset_memory_stats("CPU:0")
        action()
        return int(tf.config.experimental.get_memory_info("CPU:0")["peak"])

    plans = -1
    while plans != planned_again(model):
        plans = planned_again(model)
        step = peak_of(lambda: [model.train_on_batch(*batch) for _ in range(8)])
        fit = peak_of(lambda: model.fit(x, y, batch_size=network.batch_size, shuffle=False, verbose=0))
    reset(model, before)
    return step, fit


def unwatch(model) -> None:
    """From here on the plain model is beside it: what that takes is nothing to plan for."""
    from dataclasses import replace

    controller = model._checkmate_controller
    controller.options = replace(controller.options, verify=False)


def planned_again(model) -> int:
    """How often a compiled model planned again, for its data or for a peak while it trained."""
    report = getattr(model, "checkmate", None)
    return 0 if report is None else report.replanned


def compare(plain, ours, network, start: list) -> tuple[bool, dict]:
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
    differences = {"loss": abs(losses[0][0] - losses[1][0]) / abs(losses[0][0])}
    roles = {"weights": plain.variables, "slots": plain.optimizer.variables}
    index = {id(v): k for k, v in enumerate(every_variable(plain))}
    for role, variables in roles.items():
        positions = [index[id(v)] for v in variables if v.dtype.startswith("float")]
        pairs = [(ends[0][k].astype("float64"), ends[1][k]) for k in positions]
        norm = math.sqrt(sum(float(np.sum(a * a)) for a, _ in pairs))
        differences[role] = math.sqrt(sum(float(np.sum((a - b) ** 2)) for a, b in pairs)) / norm
    differences["worst_tensor"] = max(
        float(np.max(np.abs(a.astype("float64") - b))) / (float(np.max(np.abs(a))) or 1.0)
        for a, b in zip(*ends, strict=True)
        if a.size
    )
    return equal, differences


def first_step(model, network, start: list) -> tuple[float, list]:
    """Loss of one step from the given state, and all gradients (by Adam's momenta).

    Traced anew, so that both models know the batch size: with an open one, Grappler rounds plain steps in another way.
    """
    model.train_function = None
    reset(model, start)
    loss = float(model.train_on_batch(*network.data(1))[0])
    return loss, [v.numpy().astype("float64") for v in model.optimizer.variables if "momentum" in v.path]


def differences(one: tuple[float, list], other: tuple[float, list]) -> dict:
    """Relative differences of two first steps: of the loss, and of all gradients together (Euclidean norm)."""
    import numpy as np

    norm = math.sqrt(sum(float(np.sum(g * g)) for g in one[1]))
    apart = math.sqrt(sum(float(np.sum((a - b) ** 2)) for a, b in zip(one[1], other[1], strict=True)))
    return {"loss": abs(one[0] - other[0]) / abs(one[0]), "gradients": apart / norm}


def time_steps(plain, ours, network, rounds: int = 5) -> tuple[float, float]:
    """Median over rounds of compiled over plain step time (in turn: A B A B), and the plain step's median, ms."""
    import numpy as np
    import tensorflow as tf

    x, y = (tf.constant(a) for a in network.data(1))
    functions = [tf.function(lambda data, m=m: m.train_step(data), autograph=False) for m in (plain, ours)]
    times: list[list[float]] = [[], []]
    for turn in range(rounds + 1):
        for k, function in enumerate(functions):
            begun = time.perf_counter()
            float(function((x, y))["loss"])
            if turn:
                times[k].append(time.perf_counter() - begun)
    ratio = float(np.median(np.array(times[1]) / np.array(times[0])))
    return ratio, float(np.median(times[0]) * 1e3)


def write_table(output: Path) -> None:
    """A CSV and a Markdown table of all cells in the folder."""
    import pandas as pd

    order = {name: k for k, name in enumerate(_titles())}
    cells = [json.loads(p.read_text()) for p in output.glob("cell-*.json")]
    cells.sort(key=lambda c: (order.get(c["network"], 99), -c["fraction"], c.get("strategy", "")))
    lines = [
        "| network | budget | measured: steps, `fit` | predicted | equal bits, Grappler off "
        "| difference, on (plain: from itself; on and off) "
        "| step time | predicted | proven gap | compile (profile) | hard limit: plain / ours |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for cell in cells:
        title, share = _titles()[cell["network"]], f"{cell['fraction']:.0%}: {cell['budget'] / 1e6:.0f} MB"
        if "strategy" in cell:
            title += f", {cell['strategy']}"
        if "peak_bytes" not in cell:
            least = f"refused: at least {cell.get('least_bytes', 0) / 1e6:.0f} MB"
            why = least if "infeasible" in cell else cell.get("refused", cell.get("failed"))
            lines.append(f"| {title} | {share} | {why} | | | | | | | | |")
            continue
        error = "not compared"
        if cell.get("first_step_error"):
            of_plain = f"{_itself(output, cell)}; {_most(cell['grappler_error'])}"
            error = f"{_most(cell['first_step_error'])} ({of_plain})"
        over = ", ".join(f"{b / 1e6:.0f}" for b in cell.get("exceeded_bytes", ()))
        again = f" (in training first {over} MB, then planned again)" if over else ""
        lines.append(
            f"| {title} | {share} | {cell['peak_bytes'] / 1e6:.0f}, {cell['fit_peak_bytes'] / 1e6:.0f} MB{again} "
            f"| {cell['predicted_bytes'] / 1e6:.0f} MB "
            f"| {'yes' if cell['bit_equal'] else 'NO'} | {error} | {cell['step_ratio']:.2f}x "
            f"| {cell.get('predicted_ratio', 1 + cell['overhead']):.2f}x | {cell['gap']:.1%} "
            f"| {cell['compile_seconds']:.0f} s ({cell['seconds'].get('costs', 0):.0f} s) "
            f"| {_hard_limit(output, cell)} |"
        )
    (output / "table.md").write_text("\n".join(lines) + "\n")
    pd.json_normalize(cells).to_csv(output / "cells.csv", index=False)
    print("\n".join(lines))


def _most(error: dict) -> str:
    return f"{max(error.values()):.0e}"


def _itself(output: Path, cell: dict) -> str:
    """How far the plain step differs from itself."""
    path = _path(output, {"run": "itself", "network": cell["network"]})
    result = json.loads(path.read_text()) if path.exists() else {}
    return _most(result["difference"]) if "difference" in result else "not run"


def _hard_limit(output: Path, cell: dict) -> str:
    """How the plain model and ours ended under the hard limit; and under the lower one, where it was tried."""
    answers = []
    for lower in ({}, LOWER):
        ends, above = [], ""
        for name in LIMITED:
            path = _path(output, {**cell, "run": name, **lower})
            result = json.loads(path.read_text()) if path.exists() else {}
            result = result if result.get("budget") == cell["budget"] else {}
            end = "trains" if result.get("trained") else result.get("failed", "not run")
            ends.append("crash" if end.startswith("crash") else end)
            if lower and result:
                above = f" ({result['limit_mb'] * 2**20 / cell['budget'] - 1:.0%} above)"
        if above or not lower:
            answers.append(" / ".join(ends) + above)
    return "; ".join(answers)


if __name__ == "__main__":
    main()
