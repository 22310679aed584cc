"""Does the budget hold, are the numbers the same, and what does it cost? One child process a run.

For each network the plain step's peak is measured, and budgets are 80, 60, 40 and 30% of its activation peak (the peak
less variables and data) on top of variables and data. The data is there before anything is compiled: three batches,
which share the CPU's memory. For each budget:

- `cell`: compile, fit, measure the peak; then loss, variables and optimizer slots after three steps of `fit` against
  the plain model's with Grappler off, bit by bit; loss and gradients of a step, and three steps, with Grappler on,
  relative, beside what Grappler itself does to the plain step (on against off); and step times in turn;
- `itself`: how far apart six plain steps from the same state are with Grappler on, loss and gradients, relative;
- `limit`: the same training under a hard limit of the CPU allocator (the budget plus a margin), plain and compiled;
  where the plain model trains too, once more with half the margin.

    python benchmarks/product/budget_holds.py                      # two networks, two budgets
    python benchmarks/product/budget_holds.py --full               # everything; resumes what is in the output folder
    python benchmarks/product/budget_holds.py --networks small --fractions 0.7 --strategies all --no-limits --output DIR
    python benchmarks/product/budget_holds.py --full --orders free fixed --no-limits --no-itself --output DIR
"""

from __future__ import annotations

import itertools
import json
import math
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.lib.cells import ChildError, in_child
from benchmarks.lib.options import options_for, serve_child
from benchmarks.lib.provenance import MADE
from benchmarks.lib.tables import write_table
from benchmarks.lib.training import compare, data_bytes, first_step, time_steps
from checkmate_tf.check.training import (
    device_data,
    differences,
    every_variable,
    peaks,
    reset,
    unwatch,
    variable_bytes,
)

NETWORKS = ("mobilenet", "resnet50", "vgg16", "unet", "transformer", "lstm")
FRACTIONS = (0.8, 0.6, 0.4, 0.3)
PLAIN_STEPS = 6  # from the same state, with Grappler on
LIMITED = ("limit_plain", "limit_ours")  # under a hard limit of the allocator
OUTSIDE = "ended from outside, signal"
LOWER = {"limit": "lower"}  # where the plain model trains under the first


def main() -> None:
    parser = options_for(__doc__, "budget_holds")
    parser.add_argument("--full", action="store_true", help="all six networks at all four budgets")
    parser.add_argument("--networks", nargs="*", help="only these")
    parser.add_argument("--fractions", nargs="*", type=float)
    parser.add_argument("--margin", type=float, default=0.10, help="of the hard limit over the budget (default 0.10)")
    parser.add_argument("--time-limit", type=float, default=20.0, help="seconds of solving a cell")
    parser.add_argument(
        "--strategies", nargs="*", default=["checkmate"], help='how to schedule (default checkmate), or "all"'
    )
    parser.add_argument(
        "--orders", nargs="*", default=["free"], choices=("free", "fixed"), help="of computation (default free)"
    )
    parser.add_argument("--no-limits", action="store_true", help="leave out the runs under a hard limit")
    parser.add_argument("--no-itself", action="store_true", help="leave out how far plain steps are from themselves")
    options = parser.parse_args()
    if serve_child(options, lambda request: CHILDREN[request["run"]](request)):
        return
    names = options.networks or (NETWORKS if options.full else ("mobilenet", "transformer"))
    fractions = options.fractions or (FRACTIONS if options.full else (0.6, 0.4))
    if options.strategies == ["all"]:
        from checkmate_tf.strategies import STRATEGIES

        options.strategies = list(STRATEGIES)
    options.output.mkdir(parents=True, exist_ok=True)
    requests, plains = [], []
    for name in names:
        plain = run(options.output, {"run": "plain", "network": name})
        plains.append(plain)
        print(f"{name}, plain: {json.dumps(plain)}", flush=True)
        if not options.no_itself:
            print(f"{name}, itself: {json.dumps(run(options.output, {'run': 'itself', 'network': name}))}", flush=True)
        if "activation_bytes" in plain:
            for fraction in fractions:
                budget = int(plain["constant_bytes"] + fraction * plain["activation_bytes"])
                for strategy, order in itertools.product(options.strategies, options.orders):
                    chosen = {} if strategy == "checkmate" else {"strategy": strategy}
                    chosen |= {} if order == "free" else {"order": order}
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
                asked = {"run": name, **request, **lower, "time_limit": options.time_limit, "one_piece": True}
                results.append(run(options.output, asked, limit_mb=limit))
                print(f"{request['network']} {request['fraction']:.0%} {name}: {json.dumps(results[-1])}", flush=True)
            if not results[0].get("trained"):
                break
    write_results(options.output)
    if failed := [cell for cell in plains + cells if "failed" in cell]:
        last = " ".join(failed[-1].get("stderr", []))
        raise SystemExit(
            f"{len(failed)} of {len(plains + cells)} runs failed; the last: {failed[-1]['failed']}: {last}"
        )


def _path(output: Path, request: dict) -> Path:
    keys = ("run", "network", "fraction", "strategy", "order", "limit")
    return output / ("-".join(str(request[k]) for k in keys if k in request) + ".json")


def run(output: Path, request: dict, limit_mb: int | None = None) -> dict:
    """Run a child, or read what an earlier run left, if it was asked the same (plain peaks differ, and so budgets)."""
    path = _path(output, request)
    if path.exists():
        known: dict = json.loads(path.read_text())
        failed = known.get("failed", "")
        answered = not failed or (request["run"] in LIMITED and not failed.startswith(OUTSIDE))  # there it may be one
        if answered and request.items() <= known.items() and known["limit_mb"] == limit_mb:
            return known
    environment = {"TF_CPU_ALLOCATOR_USE_BFC": "true"}
    if limit_mb is not None:
        environment["TF_CPU_BFC_MEM_LIMIT_IN_MB"] = str(limit_mb)
    begun = time.perf_counter()
    try:
        result = in_child(__file__, request, None, environment)
    except ChildError as error:
        result = failure(error) | {MADE: error.made}
    result = {**request, "limit_mb": limit_mb, "wall_seconds": round(time.perf_counter() - begun, 1), **result}
    path.write_text(json.dumps(result, indent=1))
    return result


def failure(error: ChildError) -> dict:
    """How a child ended that did not answer."""
    said, code = error.stderr, error.returncode or 0
    out_of_memory = "OOM" in said or "RESOURCE_EXHAUSTED" in said or "out of memory" in said
    refused = "InfeasibleBudgetError" in said  # before anything was trained
    ended = f"crash, signal {-code}" if error.crashed else f"{OUTSIDE} {-code}" if code < 0 else f"exit {code}"
    failed = "refused" if refused else "out of memory" if out_of_memory else ended
    return {"failed": failed, "stderr": said.strip().splitlines()[-1:]}  # the error; no paths of a machine


def _titles() -> dict[str, str]:
    from checkmate_tf.check.networks import NETWORKS

    return {name: network.title for name, network in NETWORKS.items()}


# What the children do.


def child_plain(request: dict) -> dict:
    """Peak of the plain step through fit."""
    from checkmate_tf.check.networks import NETWORKS

    network = NETWORKS[request["network"]]
    model, data = network.model(), device_data(network)
    peak, fit = peaks(model, network, data)
    constant = variable_bytes(model) + data_bytes(network)
    return {"peak_bytes": peak, "fit_peak_bytes": fit, "constant_bytes": constant, "activation_bytes": peak - constant}


def child_cell(request: dict) -> dict:
    """Compile, measure, compare, time."""
    import tensorflow as tf

    import checkmate_tf
    from checkmate_tf.check.networks import NETWORKS

    network = NETWORKS[request["network"]]
    ours, data = network.model(), device_data(network)
    begun = time.perf_counter()
    try:
        checkmate_tf.compile(
            ours,
            budget=request["budget"],
            data=network.data(1),
            time_limit=request["time_limit"],
            strategy=request.get("strategy", "checkmate"),
            order=request.get("order", "free"),
            progress=False,
            cache=False,
        )
    except checkmate_tf.InfeasibleBudgetError as error:
        return {"infeasible": str(error), "least_bytes": error.minimum_bytes, "proven": error.proven}
    except checkmate_tf.StrategyError as error:
        return {"refused": str(error)}
    seconds = time.perf_counter() - begun
    peak, fit = peaks(ours, network, data)
    start = [v.numpy() for v in every_variable(ours)]  # by now those of its optimizer and metrics are made
    del data
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
    from checkmate_tf.check.networks import NETWORKS

    network = NETWORKS[request["network"]]
    model = network.model()
    model.train_on_batch(*network.data(1))  # creates the metrics' variables
    start = [v.numpy() for v in every_variable(model)]
    first, *others = [first_step(model, network, start) for _ in range(PLAIN_STEPS)]
    apart = [differences(first, other) for other in others]
    return {"difference": {key: max(d[key] for d in apart) for key in apart[0]}}


def child_limit_plain(request: dict) -> dict:
    from checkmate_tf.check.networks import NETWORKS
    from checkmate_tf.device.in_child import take_memory_in_one_piece

    take_memory_in_one_piece()
    network = NETWORKS[request["network"]]
    return train(network.model(), network, device_data(network))


def child_limit_ours(request: dict) -> dict:
    import checkmate_tf
    from checkmate_tf.check.networks import NETWORKS
    from checkmate_tf.device.in_child import take_memory_in_one_piece

    take_memory_in_one_piece()
    network = NETWORKS[request["network"]]
    model, data = network.model(), device_data(network)
    checkmate_tf.compile(
        model,
        budget=request["budget"],
        data=network.data(1),
        time_limit=request["time_limit"],
        strategy=request.get("strategy", "checkmate"),
        order=request.get("order", "free"),
        progress=False,
        cache=False,
    )
    return train(model, network, data)


CHILDREN = {
    "plain": child_plain,
    "itself": child_itself,
    "cell": child_cell,
    "limit_plain": child_limit_plain,
    "limit_ours": child_limit_ours,
}


def train(model, network, data: list) -> dict:
    import tensorflow as tf

    x, y = data
    try:
        history = model.fit(x, y, batch_size=network.batch_size, epochs=2, shuffle=False, verbose=0)
    except tf.errors.ResourceExhaustedError:
        return {"failed": "out of memory"}
    return {"trained": True, "loss": history.history["loss"]}


def write_results(output: Path) -> None:
    """A CSV and a Markdown table of all cells in the folder."""
    import pandas as pd

    order = {name: k for k, name in enumerate(_titles())}
    cells = [json.loads(p.read_text()) for p in output.glob("cell-*.json")]
    cells.sort(key=lambda c: (order.get(c["network"], 99), -c["fraction"], c.get("strategy", ""), c.get("order", "")))
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
        if "order" in cell:
            title += ", order traced"
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
    write_table(output, "\n".join(lines))
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
