"""What the order of computation is worth: four systems at the same budgets, and the least that each needs.

- "fixed": the order traced, as in the paper's problem (9).
- "order": nothing is recomputed; the order of least peak that is found (`least-peak`).
- "moccasin": retention intervals in any order (`moccasin-free`).
- "free": what `compile` does. Updates of large layers come late where the plain step needs less memory then, and the
  search may change the order of first computations.

Budgets are shares of the activations of the plain step in the order traced, on top of what is constant. The bound holds
for any order. Costs are modelled, by a roofline of fixed rates: cells have processes of their own, and measured rates
would differ. A cell is what one system recomputes in a network, the network's bounds, or its least budgets. Random
layered graphs, as Moccasin is measured on, have a table of their own: they have no backward pass.

Where "order" or "moccasin" finds nothing, smaller budgets are not tried: what fits them would fit here, too.

    python benchmarks/product/orders.py                            # VGG16, a quarter of an hour
    python benchmarks/product/orders.py --full                     # sixteen networks, hours
    python benchmarks/product/orders.py --networks xception --shares 0.5 --time-limit 10 --output DIR
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.lib.cells import FAILED, read_cells, run_cells
from benchmarks.lib.options import common_options, serve_child
from benchmarks.lib.tables import markdown, write_rows, write_table
from benchmarks.lib.traced_graphs import networks, traced_graphs

NETWORKS = (
    "vgg16", "mobilenet", "transformer", "lstm", "unet", "resnet50", "inception", "densenet121", "efficientnet",
    "adversarial", "experts", "towers", "wired1", "wired2", "vae", "xception",
)  # fmt: skip
SHARES = (0.5, 0.4, 0.3, 0.2)
LAYERED = ("layered100", "layered250", "layered500", "layered1000")
LAYERED_SHARES = (0.9, 0.8, 0.7, 0.6)
RIVALS = ("order", "moccasin")
BOUND, LEASTS = "bound", "least"
SYSTEMS = {"fixed": "checkmate", "order": "least-peak", "moccasin": "moccasin-free", "free": "checkmate"}
LEAST = ("fixed", "order", "free", "any")
COLUMNS = (
    "network",
    "nodes",
    "share",
    "time_limit",
    "outcome",
    "reason",
    "moved",
    "constant",
    "plain_peak",
    *(f"{name}_least" for name in LEAST),
    *(f"{name}_overhead" for name in SYSTEMS),
    "bound",
)
GRAPH = ("nodes", "constant", "plain_peak")  # what tells a network's graph from that of another trace
_MEMORY = 6 * 10**9  # bytes of a solver's process


def main() -> None:
    parser = common_options(__doc__, "orders", "VGG16", "sixteen networks")
    parser.add_argument("--networks", nargs="*", choices=(*NETWORKS, *LAYERED), help="only these")
    parser.add_argument("--shares", nargs="*", type=float, help="budgets, of activations")
    parser.add_argument("--time-limit", type=float, default=60.0, help="seconds of solving, each (default 60)")
    options = parser.parse_args()
    if serve_child(options, answer):
        return
    options.output.mkdir(parents=True, exist_ok=True)
    names = () if options.draw else options.networks or ((*NETWORKS, *LAYERED) if options.full else NETWORKS[:1])
    requests = [
        {
            "cell": f"cell-{name}-{part}",
            "network": name,
            "part": part,
            "shares": sorted(options.shares or (LAYERED_SHARES if name in LAYERED else SHARES), reverse=True),
            "time_limit": options.time_limit,
        }
        for name in names
        for part in (LEASTS, BOUND, *SYSTEMS)
    ]
    run_cells(__file__, options.output, requests, lambda _: 7200.0, options.again)
    write(options.output)


def answer(request: dict) -> dict:
    """The part of a network's row that is asked for: bounds and least budgets, or what a system recomputes."""
    from checkmate_tf.schedule import keep_all

    *late, traced = graphs(request["network"])
    best = (*late, traced)[0]
    constant, plain = traced.constant_bytes, keep_all(traced).peak_bytes
    budgets = [int(constant + share * (plain - constant)) for share in request["shares"]]
    found: dict[str, Any] = {"outcome": "solved", "nodes": len(traced), "moved": bool(late)}
    found |= {"constant": constant, "plain_peak": plain}
    if request["part"] == LEASTS:
        return found | leasts(best, traced, request["time_limit"])
    if request["part"] == BOUND:
        return found | {"bound": [bound(best, budget, request["time_limit"]) for budget in budgets]}
    system = request["part"]
    tried = [best, traced] if system == "free" and late else [traced]  # late where it fits, as in `compile`
    return found | {f"{system}_overhead": overheads(system, tried, budgets, request["time_limit"])}


def leasts(best: Any, traced: Any, seconds: float) -> dict:
    """The least budgets known with and without an order of one's own, and what any order needs."""
    from checkmate_tf.strategies.ordering.least_peak import least_peak
    from checkmate_tf.strategies.search.minimum_budget import proven_minimum, tightest

    low = proven_minimum(best, "free")[0]
    return {
        "fixed_least": tightest(traced, proven_minimum(traced)[0], 60.0)[0],
        "order_least": least_peak(traced, min(10.0, seconds)).peak_bytes,
        "free_least": min(
            tightest(g, low, 60.0, order="free")[0] for g in ([traced] if best is traced else [best, traced])
        ),
        "any_least": low,
    }


def bound(graph: Any, budget: int, seconds: float) -> float | None:
    """What is recomputed at least in any order, as a share of the base cost; None if no schedule fits."""
    from checkmate_tf.strategies.programs.any_order import any_order_bound
    from checkmate_tf.strategies.programs.bound_process import BoundProcess

    best = any_order_bound(graph, budget)
    if math.isfinite(best):
        with BoundProcess(graph, budget, seconds, _MEMORY, relaxed=True, fixed=False, free=True) as process:
            running = True
            while running:
                running = process.running  # what it said before its end is heard after that
                best = max([best, *(news.get("any_order", 0.0) for news in process.news(1.0))])
    return best / graph.base_cost - 1 if math.isfinite(best) else None


def overheads(system: str, tried: list[Any], budgets: list[int], seconds: float) -> list[float | None]:
    """What a system recomputes within each budget, the largest first; None where it finds nothing."""
    from checkmate_tf.errors import InfeasibleBudgetError
    from checkmate_tf.strategies import SolveOptions, solve

    order = "free" if system == "free" else "fixed"
    limits = SolveOptions(time_limit=seconds, gap=0.001, order=order, memory_limit=_MEMORY)

    def overhead(budget: int) -> float | None:
        for graph in tried:
            try:
                return solve(graph, budget, SYSTEMS[system], limits).overhead
            except InfeasibleBudgetError:
                continue
        return None

    found: list[float | None] = []
    for budget in budgets:
        hopeless = system in RIVALS and found[-1:] == [None]
        found.append(None if hopeless else overhead(budget))
    return found


def graphs(name: str) -> list[Any]:
    """With late updates, if they help, and as traced; a random layered one as it is."""
    if name in LAYERED:
        from checkmate_tf.strategies.random_graphs import layered, usual_edges

        nodes = int(name.removeprefix("layered"))
        return [layered(nodes, usual_edges(nodes), seed=1)]
    return traced_graphs(name)


def write(output: Path) -> None:
    """CSV and tables of what is in the folder."""
    titles = {name: network.title for name, network in networks().items()}
    titles |= {name: f"random layered, {name.removeprefix('layered')} nodes" for name in LAYERED}
    cells, rows, tables = joined(read_cells(output)), [], []
    for heading, names in (("Training steps", NETWORKS), ("Random layered graphs", LAYERED)):
        mine = sorted((c for c in cells if c["network"] in names), key=lambda c: names.index(c["network"]))
        shares = sorted({share for c in mine for share in c["shares"]}, reverse=True)
        lines = []
        for c in mine:
            found = rows_of(c)
            rows += found
            if c["outcome"] == FAILED:
                lines.append((titles[c["network"]], f"failed: {c['reason']}", *[""] * (1 + len(shares))))
                continue
            activations = c["plain_peak"] - c["constant"]
            least = " / ".join(f"{(c[f'{name}_least'] - c['constant']) / activations:.3f}" for name in LEAST)
            texts = {row["share"]: " / ".join(percent(row[f"{name}_overhead"]) for name in SYSTEMS) for row in found}
            for row in found:
                texts[row["share"]] += " (proven)" if row["bound"] is None else f" (≥ {row['bound']:.1%})"
            lines.append((titles[c["network"]], f"{c['nodes']}", least, *(texts.get(share, "") for share in shares)))
        if lines:
            tables.append(f"## {heading}\n")
            tables.append(markdown(("network", "nodes", "least budget", *(f"{share:.0%}" for share in shares)), lines))
    write_rows(output, COLUMNS, rows)
    write_table(output, "\n".join(tables))
    print("\n".join(tables))


def joined(parts: list[dict]) -> list[dict]:
    """Of each network whose parts are all there, one cell: that of the part that failed, if one did."""
    cells = []
    for name in dict.fromkeys(part["network"] for part in parts):
        mine = {part["part"]: part for part in parts if part["network"] == name}
        if len({(*part["shares"], part["time_limit"]) for part in mine.values()}) > 1:
            raise SystemExit(
                f"the cells of {name} have other budgets or time limits: give another --output, or --again"
            )
        failed = [part for part in mine.values() if part["outcome"] == FAILED]
        solved = [part for part in mine.values() if part not in failed]
        if len({tuple(part[key] for key in GRAPH) for part in solved}) > 1:
            reason = f"its parts are of different graphs, since the trace has changed: --again --networks {name}"
            failed.append({**solved[0], "outcome": FAILED, "reason": reason})
        if failed or mine.keys() == {LEASTS, BOUND, *SYSTEMS}:
            cells.append(failed[0] if failed else {key: value for part in mine.values() for key, value in part.items()})
    return cells


def rows_of(cell: dict) -> list[dict]:
    """A row for each budget of a cell, or one that says why there is none."""
    rows = []
    for k, share in enumerate(cell["shares"] if cell["outcome"] != FAILED else ()):
        found = {f"{name}_overhead": cell[f"{name}_overhead"][k] for name in SYSTEMS} | {"bound": cell["bound"][k]}
        rows.append({key: cell.get(key) for key in COLUMNS} | {"share": share} | found)
    return rows or [{key: cell.get(key) for key in COLUMNS}]


def percent(overhead: float | None) -> str:
    return "-" if overhead is None else f"{overhead:.1%}"


if __name__ == "__main__":
    main()
