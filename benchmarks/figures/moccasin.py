"""Moccasin's table 2 again: problem (9), Moccasin and the default strategy on graphs of its shapes, in one run.

Random layered graphs of its sizes (the paper's own are not public: these are drawn as it says, see `layered`), and the
layer graphs with FLOP costs that have the nodes and edges of its CM1 (FCN8) and CM2 (ResNet50). Budgets are 90 and 80%
of the peak without recomputation. The published figures, measured on 16 cores, stand beside; overheads compare on CM1
and CM2 only, and there but roughly, since the paper's costs are not public.

    python benchmarks/figures/moccasin.py         # the two smallest graphs, 30 s a cell
    python benchmarks/figures/moccasin.py --full  # all six, 600 s a cell; resumes what is in the output folder

"problem (9)" is as Checkmate has it, in HiGHS; `--systems milp` starts it from our search's schedule.
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
from benchmarks.lib.systems import SYSTEMS, best_seconds, run_systems, solve_cell
from benchmarks.lib.tables import write_table

GRAPHS = {
    "RL (100, 236)": (100, 236),
    "CM1 (73, 149)": "FCN8",
    "RL (250, 944)": (250, 944),
    "CM2 (353, 751)": "ResNet50",
    "RL (500, 2461)": (500, 2461),
    "RL (1000, 5875)": (1000, 5875),
}
"""Random layered graphs by nodes and edges, others by the network of `models.py`."""

QUICK = ("RL (100, 236)", "CM1 (73, 149)")
PERCENTS = (90, 80)
COMPARED = ("problem9-highs", "milp", "moccasin", "checkmate")

PUBLISHED: dict[tuple[str, int], tuple[tuple[float, float] | None, tuple[float, float]]] = {
    ("RL (100, 236)", 90): ((0.8, 18.5), (0.8, 9.3)),
    ("RL (100, 236)", 80): ((2.3, 22.7), (2.3, 9.5)),
    ("RL (250, 944)", 90): ((0.9, 685.1), (0.9, 55.0)),
    ("RL (250, 944)", 80): (None, (4.9, 639.5)),
    ("RL (500, 2461)", 90): (None, (0.7, 1803.3)),
    ("RL (500, 2461)", 80): (None, (3.4, 1804.8)),
    ("RL (1000, 5875)", 90): (None, (0.7, 3612.9)),
    ("RL (1000, 5875)", 80): (None, (3.4, 3611.8)),
    ("CM1 (73, 149)", 90): ((0.0, 6.3), (0.0, 3.1)),
    ("CM1 (73, 149)", 80): ((0.1, 5.6), (0.1, 3.1)),
    ("CM2 (353, 751)", 90): ((0.1, 434.1), (0.2, 65.2)),
    ("CM2 (353, 751)", 80): ((0.3, 485.3), (0.3, 69.3)),
}
"""Increase of the duration in %, and seconds, of Checkmate's MILP (Gurobi) and of Moccasin: appendix A.1."""


def main() -> None:
    parser = options_for(__doc__, "moccasin")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="the two smallest graphs, 30 s a cell (default)")
    size.add_argument("--full", action="store_true", help="all graphs, 600 s a cell")
    parser.add_argument("--graphs", nargs="*", choices=list(GRAPHS), help="only these")
    parser.add_argument("--percents", nargs="*", type=int, default=PERCENTS)
    parser.add_argument("--systems", nargs="*", choices=list(SYSTEMS), default=COMPARED)
    parser.add_argument("--seed", type=int, default=0, help="of the random graphs")
    parser.add_argument("--time-limit", type=float, help="seconds a cell")
    options = parser.parse_args()
    if serve_child(options, solve):
        return
    options.output.mkdir(parents=True, exist_ok=True)
    limit = options.time_limit or (600.0 if options.full else 30.0)
    requests = []
    for label in options.graphs or (GRAPHS if options.full else QUICK):
        shape = GRAPHS[label]
        source = {"shape": shape, "seed": options.seed} if isinstance(shape, tuple) else {"path": network_file(shape)}
        requests += [
            {"graph": label, "percent": percent, "system": system, "time_limit": limit, **source}
            for percent in options.percents
            for system in options.systems
        ]
    run_systems(__file__, options.output, requests, name, lambda r: f"{r['graph']} {r['percent']}% {r['system']}")
    write_results(options.output)


def name(request: dict) -> str:
    """Of a cell's file."""
    graph = "".join(c if c.isalnum() else "-" for c in request["graph"]).strip("-").replace("--", "-")
    seed = f"-seed{request['seed']}" if request.get("seed") else ""
    return f"cell-{graph}{seed}-{request['percent']}-{request['system']}"


def solve(request: dict) -> dict:
    """What a child does."""
    from checkmate_tf.files.graphs import read_graph
    from checkmate_tf.strategies.random_graphs import layered

    graph = layered(*request["shape"], request["seed"]) if "shape" in request else read_graph(ROOT / request["path"])
    return solve_cell(graph, request["percent"], request["system"], request["time_limit"])


def write_results(output: Path) -> None:
    """A CSV and a Markdown table of all cells in the folder."""
    cells = [json.loads(path.read_text()) for path in output.glob("cell-*.json")]
    cells.sort(key=lambda c: (list(GRAPHS).index(c["graph"]), -c["percent"], list(SYSTEMS).index(c["system"])))
    if not cells:
        return
    rows = []
    lines = [
        "| graph | budget | system | overhead | peak, % of budget | seconds to it / in all | status | published |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for c in cells:
        known = PUBLISHED.get((c["graph"], c["percent"]))  # of 90 and 80%
        milp, theirs = known or (None, None)
        found = {"moccasin": theirs, "problem9-highs": milp}.get(c["system"])
        none = "none" if known and c["system"] == "problem9-highs" else ""
        published = f"{found[0]}%, {found[1]:.0f} s" if found else none
        constant, best = c["constant_bytes"], best_seconds(c)
        filled = (c["peak_bytes"] - constant) / (c["budget_bytes"] - constant) if "cost" in c else None
        rows.append(
            {key: c.get(key) for key in ("graph", "nodes", "edges", "percent", "system", "solver", "status", "cost")}
            | {key: c.get(key) for key in ("base_cost", "overhead", "lower_bound", "budget_bytes", "peak_bytes")}
            | {"best_seconds": best, "seconds": c["seconds"], "time_limit": c["time_limit"]}
            | {"solver_bytes": c["solver_bytes"], "published": published}
        )
        reached = "| | |" if best is None else f"| {c['overhead']:.2%} | {filled:.1%} |"
        status = "optimal for its C" if c["system"] == "moccasin" and "optimal" in c.get("solver", "") else c["status"]
        lines.append(
            f"| {c['graph']} | {c['percent']}% | {SYSTEMS[c['system']][0]} {reached} "
            f"{'-' if best is None else f'{best:.1f}'} / {c['seconds']:.1f} | {status} | {published} |"
        )
    lines += ["", f"Published: increase of the duration and seconds on 16 cores; time limit here {limits(cells)} s."]
    write_table(output, "\n".join(lines))
    with (output / "cells.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    print("\n".join(lines))


def limits(cells: list[dict]) -> str:
    """The time limits of the cells."""
    return ", ".join(f"{limit:.0f}" for limit in sorted({c["time_limit"] for c in cells}))


if __name__ == "__main__":
    main()
