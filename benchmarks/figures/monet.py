"""MONeT's figure 3 and tables 1, 3 and 7: memory against overhead where gradients may be computed in several ways.

Five networks at the paper's batches, layer graphs whose gradients read what kernels read (`trace/layer_operators.py`),
modelled V100 costs. Budgets are shares of the peak without recomputation, and overheads are told against computing
everything once in the default ways. Each program ran on its own:

- checkmate: our default strategy, every gradient in its default way;
- monet-noop: MONeT's program on the same graph;
- monet: MONeT's program with all ways, batch normalisations from their outputs (not the same bits) among them;
- chosen: our search for ways and schedule, exact ways only; chosen-inexact: all ways.

Beside them the least memory at 10% overhead is sought in the layer graph of Checkmate's paper (`layers/graph.py`).
There a gradient reads its layer's output and those of its readers, and nothing computes in place.

    python benchmarks/figures/monet.py         # ResNet-50 and VGG-16, three budgets, 5 s a solve
    python benchmarks/figures/monet.py --full  # five networks, nine budgets and four halvings towards 10%, 120 s
    python benchmarks/figures/monet.py --networks U-Net --systems chosen --shares 50 40
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.lib.cells import FAILED, at_once, read_cells, run_cells
from benchmarks.lib.monet_networks import NETWORKS, QUICK, operators_of
from benchmarks.lib.options import common_options, serve_child
from benchmarks.lib.published import published
from benchmarks.lib.tables import markdown, new_figure, write_csv, write_table

SYSTEMS = {
    "checkmate": ("#000000", "-", "*"),
    "monet-noop": ("#56b4e9", ":", "v"),
    "monet": ("#0072b2", "--", "D"),
    "chosen": ("#009e73", "-", "^"),
    "chosen-inexact": ("#e69f00", "-", "o"),
}
QUICK_SHARES, FULL_SHARES = (75, 60, 45), (90, 80, 70, 60, 50, 45, 40, 35, 30)  # percent of the plain peak
MOST_OVERHEAD = 0.10  # table 1
GAP = 1e-4  # proven, at which a solve ends
HALVINGS = 4
LAYER_HALVINGS = 7  # in the layer graph
PROGRAM_BYTES = 10_000_000_000  # table 7
SPARSITY, BITS = 0.5, 16  # of Gist: half of what a ReLU reads is negative where it is symmetric
COLUMNS = (
    "network", "batch", "system", "share", "budget_bytes", "outcome", "overhead", "memory_ratio", "peak_bytes", "cost",
    "base_cost", "status", "ways", "inexact_ways", "seconds", "limit", "reason",
)  # fmt: skip


def main() -> None:
    parser = common_options(__doc__, "monet", "two networks, three budgets, 5 s a solve", "all of it, 120 s a solve")
    parser.add_argument("--networks", nargs="*", choices=list(NETWORKS), help="only these")
    parser.add_argument("--systems", nargs="*", choices=list(SYSTEMS), default=list(SYSTEMS), help="only these")
    parser.add_argument("--shares", nargs="*", type=float, help="budgets, percent of the peak without recomputation")
    parser.add_argument("--time-limit", type=float, help="seconds a solve")
    options = parser.parse_args()
    if serve_child(options, answer):
        return
    options.output.mkdir(parents=True, exist_ok=True)
    if not options.draw:
        solve_all(options)
    bases = [c for c in read_cells(options.output, "base-") if c.get("outcome") != FAILED]
    if not bases:
        raise SystemExit(f"there is no result in {options.output}")
    bases.sort(key=lambda c: list(NETWORKS).index(c["network"]))
    layers = [c for c in read_cells(options.output, "layers-") if c.get("outcome") != FAILED]
    write(options.output, bases, read_cells(options.output), {c["network"]: c for c in layers})


def solve_all(options: Any) -> None:
    """Each network as it is, with Gist, and with every system in every budget."""
    limit = options.time_limit or (120.0 if options.full else 5.0)
    shares = options.shares or (FULL_SHARES if options.full else QUICK_SHARES)
    for network in options.networks or (list(NETWORKS) if options.full else QUICK):
        shared = {"network": network, "batch": NETWORKS[network][1]}
        asked = {**shared, "cell": f"base-{network}", "run": "base"}
        base = run_cells(__file__, options.output, [asked], _seconds, options.again)[0]
        asked = {**shared, "cell": f"layers-{network}", "run": "layers", "limit": limit}
        run_cells(__file__, options.output, [asked], _seconds, options.again)
        if base.get("outcome") == FAILED:
            continue
        shared |= {"peak_bytes_plain": base["peak_bytes"], "limit": limit, "run": "solve"}
        requests = [_solve(shared, system, share) for share in shares for system in options.systems]
        run_cells(__file__, options.output, requests, _seconds, options.again, jobs=at_once(2))
        if options.full:
            for system in options.systems:
                halve(options, shared, system)


def halve(options: Any, shared: dict, system: str) -> None:
    """Budgets between the last that costs too much and the first that does not."""
    for _ in range(HALVINGS):
        mine = [
            c for c in read_cells(options.output) if (c["network"], c["system"]) == (shared["network"], system)
        ]  # fmt: skip
        enough = min((c["share"] for c in mine if _cheap(c)), default=100.0)
        little = max((c["share"] for c in mine if not _cheap(c) and c["share"] < enough), default=0.0)
        asked = [_solve(shared, system, round((enough + little) / 2, 1))]
        run_cells(__file__, options.output, asked, _seconds, options.again, jobs=at_once(2))


def _solve(shared: dict, system: str, share: float) -> dict:
    budget = int(share / 100 * shared["peak_bytes_plain"])
    cell = f"cell-{shared['network']}-{system}-{share:g}"
    return {**shared, "cell": cell, "system": system, "share": share, "budget_bytes": budget}


def _seconds(request: dict) -> float:
    solves = {"solve": 6, "layers": 2 * LAYER_HALVINGS}
    return solves[request["run"]] * request["limit"] + 120 if request["run"] in solves else 600.0


def _cheap(cell: dict) -> bool:
    return cell.get("outcome") == "solved" and cell["overhead"] <= MOST_OVERHEAD


# In child processes ---------------------------------------------------------------------------------------------------


def answer(request: dict) -> dict:
    """What a child does with a request."""
    return {"base": describe, "layers": in_layers, "solve": solve_one}[request["run"]](request)


def describe(request: dict) -> dict:
    """The graph, Gist's two points, and the sizes of MONeT's programs."""
    from checkmate_tf.graph import FORWARD
    from checkmate_tf.operators import OperatorGraph
    from checkmate_tf.schedule import keep_all
    from checkmate_tf.strategies import minimum_budget
    from checkmate_tf.strategies.monet import gist
    from checkmate_tf.strategies.monet.formulation import monet_program

    operators = operators_of(request["network"])
    graph = operators.choose().graph
    peak = keep_all(graph).peak_bytes
    encoded = operators_of(request["network"], sparsity=SPARSITY, bits=BITS)
    points = {"lossless": gist(encoded), f"{BITS} bits": gist(encoded, reduced=True)}
    programs = {"monet-noop": OperatorGraph(graph, {}), "monet": operators}
    sizes = {name: monet_program(of, PROGRAM_BYTES).milp.matrix.shape for name, of in programs.items()}
    return {
        "nodes": len(graph),
        "forward": int((graph.kinds == FORWARD).sum()),
        "nodes_with_codes": len(operators),
        "peak_bytes": peak,
        "constant_bytes": graph.constant_bytes,
        "least_bytes": minimum_budget(graph, 10.0)[1],
        "floor_bytes": operators.least_bytes,
        "base_cost": graph.base_cost,
        "gist": {k: {"memory_ratio": p.schedule.peak_bytes / peak, "overhead": p.overhead} for k, p in points.items()},
        "programs": {name: {"rows": rows, "variables": columns} for name, (rows, columns) in sizes.items()},
    }


def in_layers(request: dict) -> dict:
    """The least memory at 10% overhead in the layer graph of Checkmate's paper."""
    from benchmarks.lib.models import MODELS
    from checkmate_tf.errors import InfeasibleBudgetError
    from checkmate_tf.layers.graph import layer_graph
    from checkmate_tf.schedule import keep_all
    from checkmate_tf.strategies import SolveOptions, solve

    name, batch = NETWORKS[request["network"]]
    graph = layer_graph(MODELS[name](), batch, "v100")
    best = keep_all(graph)
    little, enough = 0, best.peak_bytes
    for _ in range(LAYER_HALVINGS):
        budget = (little + enough) // 2
        try:
            found = solve(graph, budget, options=SolveOptions(time_limit=request["limit"], gap=GAP))
        except InfeasibleBudgetError:
            little = budget
            continue
        if found.overhead <= MOST_OVERHEAD:
            best, enough = found, found.peak_bytes
        else:
            little = budget
    return {
        "nodes": len(graph),
        "peak_bytes_plain": keep_all(graph).peak_bytes,
        "peak_bytes": best.peak_bytes,
        "overhead": best.overhead,
    }


def solve_one(request: dict) -> dict:
    """One system within one budget."""
    import time

    from checkmate_tf.errors import InfeasibleBudgetError
    from checkmate_tf.strategies import SolveOptions, solve
    from checkmate_tf.strategies.monet import choose_operators, monet

    operators = operators_of(request["network"])
    graph = operators.choose().graph
    system, budget = request["system"], request["budget_bytes"]
    options = SolveOptions(time_limit=request["limit"], gap=GAP)
    begun = time.perf_counter()
    choice: dict[int, int] = {}
    try:
        if system in ("checkmate", "monet-noop"):
            schedule = solve(graph, budget, system, options)
        else:
            inexact = system == "chosen-inexact"
            found = (
                monet(operators, budget, options, inexact=True)
                if system == "monet"
                else choose_operators(operators, budget, options, inexact=inexact)
            )
            schedule, choice = found.schedule, dict(found.chosen.choice)
    except InfeasibleBudgetError as error:
        return {"outcome": "too small", "reason": str(error), "seconds": time.perf_counter() - begun}
    return {
        "outcome": "solved",
        "overhead": schedule.cost / graph.base_cost - 1,
        "memory_ratio": schedule.peak_bytes / request["peak_bytes_plain"],
        "peak_bytes": schedule.peak_bytes,
        "cost": schedule.cost,
        "base_cost": graph.base_cost,
        "status": schedule.status,
        "ways": len(choice),
        "inexact_ways": sum(bool(operators.ways(i)[way].error) for i, way in choice.items()),
        "seconds": time.perf_counter() - begun,
    }


# Results --------------------------------------------------------------------------------------------------------------


def write(output: Path, bases: Sequence[dict], cells: Sequence[dict], layers: dict[str, dict]) -> None:
    """CSV, tables and picture."""
    order = [base["network"] for base in bases]
    known = [c for c in cells if c["network"] in order]
    known.sort(key=lambda c: (order.index(c["network"]), list(SYSTEMS).index(c["system"]), -c["share"]))
    write_csv(output / "cells.csv", COLUMNS, known)
    first = (at_ten_percent(bases, known), accountings(bases, known, layers))
    text = "\n".join((*first, of_gist(bases), of_programs(bases), *of_budgets(bases, known)))
    write_table(output, text)
    draw(output / "monet.png", bases, known)
    print(text)


def at_ten_percent(bases: Sequence[dict], cells: Sequence[dict]) -> str:
    """Table 1: the least memory at an overhead of 10%, over that of the plain step; in brackets the published one."""
    theirs, rows = _table1(), []
    for base in bases:
        network = base["network"]
        plain, *less = theirs[network]
        row = [network, f"{base['peak_bytes'] / 1e9:.2f} GB ({plain} GB)"]
        row.append(f"{base['floor_bytes'] / base['peak_bytes']:.2f}")
        for system in SYSTEMS:
            mine = [c for c in cells if (c["network"], c["system"]) == (network, system)]
            ratio = _least(mine)
            said = "not run" if not mine else "none" if ratio is None else f"{ratio:.2f}"
            paper = {"checkmate": less[0] / plain, "monet": less[1] / plain}.get(system)
            row.append(said + (f" ({paper:.2f})" if paper else ""))
        rows.append(row)
    head = ("memory at 10% overhead", "plain", "floor", *SYSTEMS)
    about = (
        "Ours (published), over plain; of the budgets that were run. Floor: what one operation alone takes, in any way."
    )
    return f"## Table 1\n\n{about}\n\n" + markdown(head, rows)


def _table1() -> dict[str, list[float]]:
    """GB of PyTorch, Checkmate and MONeT, as published."""
    return {
        row["network"].replace("UNet", "U-Net"): [float(value) for value in row["value"].split(" / ")]
        for row in published("table1", "monet")
    }


def _share(some: float, of: float) -> str:
    return f"{some:.1f} of {of:.1f} ({some / of:.2f})"


def _least(cells: Sequence[dict]) -> float | None:
    """The least memory of those that cost little, over the plain step's."""
    return min((c["memory_ratio"] for c in cells if _cheap(c)), default=None)


def accountings(bases: Sequence[dict], cells: Sequence[dict], layers: dict[str, dict]) -> str:
    """Checkmate's memory at an overhead of 10%: published, in our graph, and in that of its paper."""
    theirs, rows = _table1(), []
    for base in (one for one in bases if one["network"] in layers):
        network, layer = base["network"], layers[base["network"]]
        plain, less, _ = theirs[network]
        ratio = _least([c for c in cells if (c["network"], c["system"]) == (network, "checkmate")])
        whole = base["peak_bytes"] / 1e9
        rows.append(
            (
                network,
                _share(less, plain),
                "-" if ratio is None else _share(ratio * whole, whole),
                _share(layer["peak_bytes"] / 1e9, layer["peak_bytes_plain"] / 1e9),
            )
        )
    head = ("Checkmate at 10% overhead, GB", "published", "gradients read what kernels read", "Checkmate's layer graph")
    return "## Accountings\n\n" + markdown(head, rows)


def of_gist(bases: Sequence[dict]) -> str:
    """Table 3."""
    theirs = {(row["network"], row["metric"]): row["value"] for row in published("table3", "monet")}
    rows = []
    for base in bases:
        points = [f"{p['memory_ratio']:.2f}, {p['overhead']:.0%}" for p in base["gist"].values()]
        paper = [
            f"{theirs[base['network'], f'memory ratio {name}']}, {theirs[base['network'], f'overhead {name}']}%"
            for name in ("gist", "monet")
        ]
        rows.append((base["network"], *points, *paper))
    head = ("memory ratio, overhead", "Gist, lossless", f"Gist, {BITS} bits", "published Gist", "published MONeT")
    return "## Table 3\n\n" + markdown(head, rows)


def of_programs(bases: Sequence[dict]) -> str:
    """Table 7, before presolve."""
    theirs = {(row["network"], row["metric"]): row["value"] for row in published("table7", "monet")}
    rows = []
    for base in bases:
        network, row = base["network"], [base["network"], f"{base['forward']}"]
        row[-1] += f" ({theirs[network, 'forward operators']})"
        for name, size in base["programs"].items():
            row.append(f"{size['rows']:,} ({int(theirs[network, f'constraints {name}']):,})")
            row.append(f"{size['variables']:,} ({int(theirs[network, f'variables {name}']):,})")
        rows.append(row)
    columns = [f"{what}, {name}" for name in ("MONeT-NoOp", "MONeT") for what in ("rows", "variables")]
    about = "Ours before presolve (published, after presolve), 10 GB.\n\n"
    return "## Table 7\n\n" + about + markdown(("network", "forward nodes", *columns), rows)


def of_budgets(bases: Sequence[dict], cells: Sequence[dict]) -> list[str]:
    """Overheads, a table a network."""
    found = []
    for base in bases:
        mine = [c for c in cells if c["network"] == base["network"]]
        shares = sorted({c["share"] for c in mine}, reverse=True)
        rows = []
        for system in dict.fromkeys(c["system"] for c in mine):
            by_share = {c["share"]: c for c in mine if c["system"] == system}
            rows.append((system, *(_entry(by_share.get(share)) for share in shares)))
        title = f"## Overhead of {base['network']}, batch {base['batch']}\n\n"
        head = ("budget over plain", *(f"{share / 100:.3g}" for share in shares))
        found.append(title + markdown(head, rows))
    return found


def _entry(cell: dict | None) -> str:
    if cell is None:
        return ""
    if cell["outcome"] != "solved":
        return {"too small": "-"}.get(cell["outcome"], cell["outcome"])
    return f"{cell['overhead']:.1%}" + (f" ({cell['ways']} ways)" if cell["ways"] else "")


def draw(path: Path, bases: Sequence[dict], cells: Sequence[dict]) -> None:
    """Figure 3, a panel a network."""
    figure = new_figure(max(4.6 * len(bases), 8.0), 5.0)
    panels = figure.subplots(1, len(bases), squeeze=False)[0]
    handles: dict[str, Any] = {}
    for axes, base in zip(panels, bases, strict=True):
        network = base["network"]
        for system, (color, line, marker) in SYSTEMS.items():
            mine = [c for c in cells if (c["network"], c["system"], c["outcome"]) == (network, system, "solved")]
            points = sorted((c["memory_ratio"], 100 * c["overhead"]) for c in mine)
            if points:
                x, y = zip(*points, strict=True)
                (handles[system],) = axes.plot(x, y, color=color, linestyle=line, marker=marker, markersize=5)
        for (name, point), marker in zip(base["gist"].items(), "sP", strict=True):
            (handles[f"Gist, {name}"],) = axes.plot(
                point["memory_ratio"], 100 * point["overhead"], marker, color="#cc79a7", linestyle="none"
            )
        handles["plain"] = axes.axvline(1.0, color="#999999", linewidth=1)
        handles["10%"] = axes.axhline(100 * MOST_OVERHEAD, color="#999999", linewidth=1, linestyle=":")
        most = 100 * max(point["overhead"] for point in base["gist"].values())
        axes.set_ylim(-3, max(40.0, 1.15 * most))  # a program that ends at its start may cost many times that
        axes.set_xlabel("memory over the plain step's")
        axes.set_ylabel("overhead (%)")
        axes.set_title(f"{network}, batch {base['batch']}", loc="left", fontsize=11)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=5, frameon=False, fontsize=9)
    figure.suptitle("Overhead against memory, modelled V100 costs (far above Gist's overhead: not shown)", fontsize=12)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
