"""How soon, and how near: problem (9) in HiGHS and in SCIP, Moccasin, and the default strategy, in one run.

Layer graphs with FLOP costs. For each: seconds until its schedule costs at most 1% more than the best lower bound that
the default strategy proves, and the gap that is left at the end to that same bound, whatever the system proves itself.
Times are known to half a second (1 s for ours). Budgets are shares of the peak without recomputation; a network that
needs more for a single node, as VGG16 does, is solved at the next of 60, 70, 80 and 90% that it can have.

    python benchmarks/product/side_by_side.py                # 50%, 60 s a cell
    python benchmarks/product/side_by_side.py --full         # and 30%; resumes what is in the output folder
"""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.lib.graph_files import network_file
from benchmarks.lib.options import options_for, serve_child
from benchmarks.lib.paths import ROOT
from benchmarks.lib.systems import SYSTEMS, run_systems, solve_cell, within
from benchmarks.lib.tables import write_table

NETWORKS = ("VGG16", "U-Net", "MobileNet", "ResNet50")
COMPARED = ("problem9-highs", "problem9-scip", "moccasin", "checkmate")
WITHIN = 0.01


def main() -> None:
    parser = options_for(__doc__, "side_by_side")
    parser.add_argument("--full", action="store_true", help="50 and 30%%")
    parser.add_argument("--networks", nargs="*", default=NETWORKS, help="only these, of models.py")
    parser.add_argument("--percents", nargs="*", type=int)
    parser.add_argument("--systems", nargs="*", choices=list(SYSTEMS), default=COMPARED)
    parser.add_argument("--time-limit", type=float, default=60.0, help="seconds a cell (default 60)")
    options = parser.parse_args()
    if serve_child(options, solve):
        return
    options.output.mkdir(parents=True, exist_ok=True)
    requests = []
    for network in options.networks:
        path = network_file(network)
        percents = {possible(path, percent) for percent in options.percents or ((50, 30) if options.full else (50,))}
        requests += [
            {"network": network, "path": path, "percent": percent, "system": system, "time_limit": options.time_limit}
            for percent in sorted(percents, reverse=True)
            for system in options.systems
        ]
    run_systems(__file__, options.output, requests, name, lambda r: f"{r['network']} {r['percent']}% {r['system']}")
    write_results(options.output)


def name(request: dict) -> str:
    """Of a cell's file."""
    return f"cell-{request['network']}-{request['percent']}-{request['system']}"


def possible(path: str, percent: int) -> int:
    """The budget, or the least of 60 to 90% above it that is not below what a single node needs."""
    from checkmate_tf.files.graphs import read_graph
    from checkmate_tf.schedule import keep_all
    from checkmate_tf.strategies.search.minimum_budget import proven_minimum

    graph = read_graph(ROOT / path)
    needed = proven_minimum(graph)[0] - graph.constant_bytes
    plain = keep_all(graph).peak_bytes - graph.constant_bytes
    return next((p for p in (percent, 60, 70, 80, 90) if p >= percent and p * plain >= 100 * needed), percent)


def solve(request: dict) -> dict:
    """What a child does."""
    from checkmate_tf.files.graphs import read_graph

    return solve_cell(read_graph(ROOT / request["path"]), request["percent"], request["system"], request["time_limit"])


def write_results(output: Path) -> None:
    """A CSV and a Markdown table of all cells in the folder."""
    cells = [json.loads(path.read_text()) for path in output.glob("cell-*.json")]
    order = {network: k for k, network in enumerate(NETWORKS)}
    cells.sort(
        key=lambda c: (order.get(c["network"], 99), c["network"], -c["percent"], list(SYSTEMS).index(c["system"]))
    )
    bounds = {
        (c["network"], c["percent"]): max(c["lower_bound"], c["base_cost"])
        for c in cells
        if c["system"] == "checkmate" and "cost" in c
    }
    if not cells:
        return
    rows = []
    lines = [
        "| network, nodes | budget | system | within 1% | overhead | gap left | its own bound | in all | status |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for c in cells:
        bound = bounds.get((c["network"], c["percent"]))
        reached = within(c, bound, WITHIN) if bound else None
        gap = c["cost"] / bound - 1 if bound and "cost" in c else None
        told = next((b for *_, b in reversed(c["course"]) if b is not None), 0.0)
        own = max(told, c.get("lower_bound", 0.0), c["base_cost"]) / c["base_cost"] - 1
        if c["system"] == "moccasin" and "optimal" in c.get("solver", ""):
            c["status"] = "optimal for its C"
        rows.append(
            {key: c.get(key) for key in ("network", "nodes", "percent", "system", "solver", "status", "cost")}
            | {"base_cost": c["base_cost"], "overhead": c.get("overhead"), "common_bound": bound, "own_bound": own}
            | {"within_seconds": reached, "gap": gap, "seconds": c["seconds"], "time_limit": c["time_limit"]}
            | {"solver_bytes": c["solver_bytes"]}
        )
        lines.append(
            f"| {c['network']}, {c['nodes']} | {c['percent']}% | {SYSTEMS[c['system']][0]} | "
            f"{'-' if reached is None else f'{reached:.1f} s'} | {percent(c.get('overhead'))} | {percent(gap)} | "
            f"{percent(own)} | {c['seconds']:.1f} s | {c['status']} |"
        )
    write_table(output, "\n".join(lines))
    with (output / "cells.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    print("\n".join(lines))


def percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.3%}"


if __name__ == "__main__":
    main()
