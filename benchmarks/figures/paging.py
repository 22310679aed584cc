"""Overhead against the memory budget: recomputation, paging, and both. V100 costs and PCIe 3.

VGG16 at batch 256, MobileNet at 512, U-Net at 32 and ResNet50 at 256: the layer graphs of `budget_sweep.py`, with
modelled V100 kernel costs. A copy between the V100 and its host moves 12 GB/s each way (published for PCIe 3 x16 with
pinned memory) after 10 us. Copies run beside the computations, in one engine each way.

- *recomputation*: the default strategy on the graph without copies;
- *paging*: nothing may be computed again, so that values can only be copied to the host and brought back;
- *both*: the default strategy on the graph with copies.

Budgets are evenly spaced from the least that recomputation has a schedule for to the peak of the plain step, which is
left out. So the first column is where recomputation costs most.

    python benchmarks/figures/paging.py         # six budgets, 20 s a solve
    python benchmarks/figures/paging.py --full  # twelve budgets, 60 s; resumes what is in the folder
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.lib.cells import FAILED, at_once, read_cells, run_cells
from benchmarks.lib.layer_graphs import SOLVED, TOO_SMALL, answer_any, graph_file, most_seconds, network_range
from benchmarks.lib.options import common_options, serve_child
from benchmarks.lib.tables import markdown, new_figure, write_csv, write_table

BATCHES = {"VGG16": 256, "MobileNet": 512, "U-Net": 32, "ResNet50": 256}
COSTS = "v100"
RATE = 12e9  # bytes a second, each way
LATENCY = 10.0  # us
SYSTEMS = ("recomputation", "paging", "both")
STYLES = {"recomputation": ("#0072b2", "-", "o"), "paging": ("#e69f00", "--", "s"), "both": ("#009e73", "-", "D")}
COLUMNS = (
    "network", "batch", "nodes", "system", "budget_bytes", "outcome", "overhead", "bound_overhead", "computing",
    "copied_values", "copied_bytes", "peak_bytes", "peak_bytes_plain", "seconds", "limit", "reason",
)  # fmt: skip


def main() -> None:
    parser = common_options(__doc__, "paging", "six budgets, 20 s a solve", "twelve budgets, 60 s")
    parser.add_argument("--networks", nargs="*", choices=list(BATCHES), default=list(BATCHES), help="only these")
    parser.add_argument("--budgets", type=int, help="how many")
    parser.add_argument("--time-limit", type=float, help="seconds a solve")
    options = parser.parse_args()
    if serve_child(options, answer):
        return
    options.output.mkdir(parents=True, exist_ok=True)
    if not options.draw:
        solve_all(options)
    cells = [c for c in read_cells(options.output) if c.get("outcome") != FAILED]
    if not cells:
        raise SystemExit(f"there is no result in {options.output}")
    write(options.output, cells)


def solve_all(options: Any) -> None:
    """Graphs, their ranges, and every system in every budget."""
    limit = options.time_limit or (60.0 if options.full else 20.0)
    count = options.budgets or (12 if options.full else 6)
    for network in options.networks:
        known = network_range(__file__, options.output, network, BATCHES[network], COSTS)
        if known is None:
            continue
        least, peak = known["least_bytes"], known["peak_bytes"]
        budgets = [least + (peak - least) * k // count for k in range(count)]
        requests = [_request(known, system, budget, limit) for budget in budgets for system in SYSTEMS]
        run_cells(__file__, options.output, requests, most_seconds, options.again, jobs=at_once(2))


def _request(known: dict, system: str, budget_bytes: int, limit: float) -> dict:
    keys = ("network", "batch", "graph", "nodes", "constant_bytes", "base_cost")
    return {
        **{key: known[key] for key in keys}, "cell": f"cell-{known['network']}-{system}-{budget_bytes}",
        "run": "solve", "system": system, "budget_bytes": budget_bytes, "peak_bytes_plain": known["peak_bytes"],
        "limit": limit,
    }  # fmt: skip


def answer(request: dict) -> dict:
    """One system within one budget; or what `network_range` asks."""
    if request["run"] != "solve":
        return answer_any(request)
    from dataclasses import replace

    import numpy as np

    from checkmate_tf.errors import InfeasibleBudgetError
    from checkmate_tf.files.graphs import read_graph
    from checkmate_tf.paging import timeline, with_host
    from checkmate_tf.strategies import SolveOptions, solve

    graph = read_graph(graph_file(request))
    if request["system"] == "paging":
        graph = replace(graph, recompute_until=np.zeros(len(graph), np.int64))
    if request["system"] != "recomputation":
        graph = with_host(graph, RATE / 1e6, RATE / 1e6, latency=LATENCY)
    begun = time.perf_counter()
    try:
        found = solve(graph, request["budget_bytes"], options=SolveOptions(time_limit=request["limit"], gap=1e-3))
    except InfeasibleBudgetError as error:
        return {"outcome": TOO_SMALL, "reason": str(error), "seconds": time.perf_counter() - begun}
    copied = [graph.inputs[k][0] for k in found.sequence.tolist() if k >= graph.first_copy]
    return {
        "outcome": SOLVED,
        "overhead": found.overhead,
        "bound_overhead": max(0.0, found.lower_bound / graph.base_cost - 1),
        "computing": timeline(graph, found.plan).computing / graph.base_cost - 1,
        "copied_values": len(copied),
        "copied_bytes": int(graph.sizes[copied].sum()),
        "peak_bytes": found.peak_bytes,
        "seconds": time.perf_counter() - begun,
    }


# Results --------------------------------------------------------------------------------------------------------------


def write(output: Path, cells: list[dict]) -> None:
    """CSV, tables and picture."""
    order = list(BATCHES)
    cells.sort(key=lambda c: (order.index(c["network"]), SYSTEMS.index(c["system"]), c["budget_bytes"]))
    write_csv(output / "cells.csv", COLUMNS, cells)
    text = "\n".join(tables(cells))
    write_table(output, text)
    draw(output / "paging.png", cells)
    print(text)


def tables(cells: Sequence[dict]) -> list[str]:
    """Overheads, a table a network; with paging, the bytes that are copied to the host."""
    found = []
    for network in (n for n in BATCHES if any(c["network"] == n for c in cells)):
        mine = [c for c in cells if c["network"] == network]
        budgets = sorted({c["budget_bytes"] for c in mine})
        rows: list[tuple[str, ...]] = []
        for system in SYSTEMS:
            row = {c["budget_bytes"]: c for c in mine if c["system"] == system}
            rows.append((system, *(_entry(row.get(b), "overhead") for b in budgets)))
            if system != "recomputation":
                rows.append(("- copied to the host", *(_copied(row.get(b)) for b in budgets)))
        proofs = {c["budget_bytes"]: c for c in mine if c["system"] == "both" and c["outcome"] == SOLVED}
        rows.append(("*both, proved: at least*", *(_entry(proofs.get(b), "bound_overhead") for b in budgets)))
        head = ("overhead in", *(f"{b / 1e9:.1f} GB" for b in budgets))
        plain = mine[0]["peak_bytes_plain"] / 1e9
        found.append(f"## {network}, batch {mine[0]['batch']}, {plain:.1f} GB plain\n\n" + markdown(head, rows))
    return found


def _entry(cell: dict | None, key: str) -> str:
    if cell is None:
        return ""
    return f"{cell[key]:.1%}" if cell["outcome"] == SOLVED else "-"


def _copied(cell: dict | None) -> str:
    if cell is None or cell["outcome"] != SOLVED:
        return ""
    return f"{cell['copied_bytes'] / 1e9:.1f} GB"


def draw(path: Path, cells: Sequence[dict]) -> None:
    """A panel a network."""
    networks = [n for n in BATCHES if any(c["network"] == n for c in cells)]
    figure = new_figure(4.4 * len(networks), 4.4)
    panels = figure.subplots(1, len(networks), squeeze=False)[0]
    handles: dict[str, Any] = {}
    for axes, network in zip(panels, networks, strict=True):
        mine = [c for c in cells if c["network"] == network and c["outcome"] == SOLVED]
        for system in SYSTEMS:
            points = [(c["budget_bytes"] / 1e9, 100 * c["overhead"]) for c in mine if c["system"] == system]
            color, line, marker = STYLES[system]
            if points:
                (handles[system],) = axes.plot(*zip(*points, strict=True), color=color, linestyle=line, marker=marker)
        proofs = [(c["budget_bytes"] / 1e9, 100 * c["bound_overhead"]) for c in mine if c["system"] == "both"]
        if proofs:
            x, y = zip(*proofs, strict=True)
            handles["proved impossible for all three"] = axes.fill_between(x, 0, y, color="#dddddd", linewidth=0)
        axes.axvline(mine[0]["peak_bytes_plain"] / 1e9, color="#999999", linewidth=1)
        axes.set_ylim(0, 1.2 * max(100 * c["overhead"] for c in mine if c["system"] != "paging"))
        axes.set_xlabel("memory budget (GB); line: the plain step")
        axes.set_ylabel("step over the plain one (% more)")
        axes.set_title(f"{network}, batch {BATCHES[network]}", loc="left", fontsize=11)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=len(handles), frameon=False)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
