"""MONeT's figures 4 and 5 and tables 5 and 6: what each kind of way saves, memory along the step, and solve times.

The graphs of `monet.py`, each within 53% of its peak without recomputation (the paper's 8 GB of about 15); for the
solve times 60, 70 or 80% where no schedule in the default ways has less.

- Figure 4: our search for ways and schedule, with no further ways, with codes (masks, indices, packed masks), with
  other values (a ReLU's input, a batch normalisation's output, which gives other bits), and with all. Convolution
  algorithms, the paper's fourth kind, are no choice in TensorFlow.
- Figure 5: memory while ResNet-50's step runs, plain, and within the budget with default ways and with all.
- Tables 5 and 6: seconds until the cost is within 5% and 2% of the best bound known in the end, for problem (9) in a
  free solver, MONeT's program without and with further ways, and our search (default ways). Bounds are of what each
  solves: problem (9) and our search share theirs, MONeT's two programs have their own.

    python benchmarks/figures/monet_details.py                     # ResNet-50 and VGG-16, 10 s a solve
    python benchmarks/figures/monet_details.py --full              # five networks, 120 s
    python benchmarks/figures/monet_details.py --networks VGG-16 --time-limit 60
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.lib.cells import FAILED, read_cells, run_cells
from benchmarks.lib.monet_networks import NETWORKS, QUICK, operators_of
from benchmarks.lib.options import common_options, serve_child
from benchmarks.lib.published import published
from benchmarks.lib.systems import differ, problem9_alone, within
from benchmarks.lib.tables import markdown, new_figure, write_table

SHARE = 0.53
KINDS: dict[str, tuple[str, ...] | None] = {
    "no ways": (),
    "codes": ("mask", "index", "packed"),
    "other values": ("input", "output"),
    "all ways": None,
}
SYSTEMS = {
    "problem9": "problem (9), HiGHS",
    "monet-noop": "MONeT-NoOp",
    "monet": "MONeT",
    "checkmate": "ours",
}
PAPER = {"problem9": "checkmate", "monet-noop": "monet-noop", "monet": "monet"}  # names in published.csv
NEAR = {"table5": 0.05, "table6": 0.02}
ALONG = "ResNet-50"
COLORS = {"plain": "#8c8c8c", "no ways": "#0072b2", "all ways": "#009e73"}


def main() -> None:
    parser = common_options(__doc__, "monet_details", "two networks, 10 s a solve", "five networks, 120 s a solve")
    parser.add_argument("--networks", nargs="*", choices=list(NETWORKS), help="only these")
    parser.add_argument("--time-limit", type=float, help="seconds a solve")
    options = parser.parse_args()
    if serve_child(options, answer):
        return
    options.output.mkdir(parents=True, exist_ok=True)
    if not options.draw:
        limit = options.time_limit or (120.0 if options.full else 10.0)
        requests = []
        for network in options.networks or (list(NETWORKS) if options.full else QUICK):
            shared = {"network": network, "batch": NETWORKS[network][1], "limit": limit}
            requests += [{**shared, "run": "ways", "what": kind} for kind in KINDS]
            requests += [{**shared, "run": "pace", "what": system} for system in SYSTEMS]
        named = [{"cell": f"{r['run']}-{r['network']}-{r['what'].replace(' ', '-')}", **r} for r in requests]
        run_cells(__file__, options.output, named, lambda r: 3 * r["limit"] + 120, options.again)
    write(options.output)


# In child processes ---------------------------------------------------------------------------------------------------


def answer(request: dict) -> dict:
    """What a child does with a request."""
    operators = operators_of(request["network"])
    graph = operators.choose().graph
    return (ways if request["run"] == "ways" else pace)(request, operators, graph)


def _budget(graph: Any) -> int:
    from checkmate_tf.schedule import keep_all

    return int(SHARE * keep_all(graph).peak_bytes)


def _possible_budget(graph: Any) -> int:
    """The same, or the least of 60 to 80% that is not below what a single node needs."""
    from checkmate_tf.schedule import keep_all
    from checkmate_tf.strategies.search.minimum_budget import proven_minimum

    plain, least = keep_all(graph).peak_bytes, proven_minimum(graph)[0]
    return next((int(share * plain) for share in (SHARE, 0.6, 0.7, 0.8) if share * plain >= least), plain)


def ways(request: dict, operators: Any, graph: Any) -> dict:
    """Our search with some of the ways; for one network the memory along the step, too."""
    from checkmate_tf.errors import InfeasibleBudgetError
    from checkmate_tf.operators import OperatorGraph
    from checkmate_tf.schedule import keep_all
    from checkmate_tf.strategies import SolveOptions
    from checkmate_tf.strategies.monet import choose_operators

    names = KINDS[request["what"]]
    some = operators
    if names is not None:
        kept = {i: [w for w in found if w.name in names] for i, found in operators.implementations.items()}
        some = OperatorGraph(operators.graph, kept, operators.encodings)
    plain = keep_all(graph)
    shared = {"plain_bytes": plain.peak_bytes, "budget_bytes": _budget(graph)}
    if request["network"] == ALONG and request["what"] == "no ways":
        shared["plain_course"] = course(plain)
    try:
        found = choose_operators(some, _budget(graph), SolveOptions(time_limit=request["limit"]), inexact=True)
    except InfeasibleBudgetError as error:
        return {**shared, "outcome": "too small", "least_bytes": error.minimum_bytes}
    by_name: dict[str, int] = {}
    for i, way in found.chosen.choice.items():
        name = some.ways(i)[way].name
        by_name[name] = by_name.get(name, 0) + 1
    cell = {**shared, "outcome": "solved", "overhead": found.overhead, "ways": by_name}
    cell |= {"peak_bytes": found.schedule.peak_bytes, "status": found.schedule.status}
    if request["network"] == ALONG and request["what"] in COLORS:
        cell["course"] = course(found.schedule)
    return cell


def course(schedule: Any) -> list[list[float]]:
    """(milliseconds since the step began, bytes) when each computation ends."""
    plan, graph = schedule.plan, schedule.graph
    ends = graph.costs[plan.sequence].cumsum() / 1e3
    return [[round(float(end), 3), int(live)] for end, live in zip(ends, schedule.evaluation.memory, strict=True)]


def pace(request: dict, operators: Any, graph: Any) -> dict:
    """The course of one solve: (seconds, cost, its own bound) whenever one of them changed."""
    import time

    from checkmate_tf.errors import InfeasibleBudgetError
    from checkmate_tf.schedule import keep_all
    from checkmate_tf.strategies import SolveOptions, solve
    from checkmate_tf.strategies.monet import monet

    seen: list[tuple[float, float, float]] = []

    def progress(seconds: float, cost: float, bound: float, _: float) -> None:
        if not seen or differ(seen[-1][1], cost) or differ(seen[-1][2], bound):
            seen.append((round(seconds, 2), cost, bound))

    budget, system = _possible_budget(graph), request["what"]
    solver = "highs" if system == "problem9" else "auto"
    options = SolveOptions(time_limit=request["limit"], gap=0.01, solver=solver, progress=progress)
    begun = time.perf_counter()
    try:
        if system == "problem9":
            schedule = problem9_alone(graph, budget, options)
        elif system == "monet":
            schedule = monet(operators, budget, options, inexact=True).schedule
        else:
            schedule = solve(graph, budget, system, options)
    except InfeasibleBudgetError as error:
        found = {"outcome": "proved too small" if error.proven else "nothing", "reason": str(error)}
    else:
        found = {"outcome": "solved", "cost": schedule.cost, "overhead": schedule.cost / graph.base_cost - 1}
        seen.append((round(time.perf_counter() - begun, 2), schedule.cost, schedule.lower_bound))
    finite = [[value if math.isfinite(value) else None for value in point] for point in seen]
    shared = {"budget_bytes": budget, "plain_bytes": keep_all(graph).peak_bytes, "base_cost": graph.base_cost}
    return {**shared, **found, "course": finite, "seconds": time.perf_counter() - begun}


# Results --------------------------------------------------------------------------------------------------------------


def write(output: Path) -> None:
    """Tables and pictures of what is in the folder."""
    order = list(NETWORKS)
    kinds = [c for c in read_cells(output, "ways-") if c.get("outcome") != FAILED]
    paces = [c for c in read_cells(output, "pace-") if c.get("outcome") != FAILED]
    if not kinds and not paces:
        raise SystemExit(f"there is no result in {output}")
    kinds.sort(key=lambda c: (order.index(c["network"]), list(KINDS).index(c["what"])))
    paces.sort(key=lambda c: (order.index(c["network"]), list(SYSTEMS).index(c["what"])))
    text = "\n".join((of_kinds(kinds), of_paces(paces)))
    write_table(output, text)
    draw_kinds(output / "ablation.png", kinds)
    draw_along(output / "along.png", kinds)
    print(text)


def _networks(cells: Sequence[dict]) -> list[str]:
    return list(dict.fromkeys(c["network"] for c in cells))


def of_kinds(cells: Sequence[dict]) -> str:
    """Figure 4: overheads by kind of way."""
    rows = []
    for network in _networks(cells):
        mine = {c["what"]: c for c in cells if c["network"] == network}
        rows.append((network, *(_overhead(mine.get(kind)) for kind in KINDS)))
    head = (f"overhead at {SHARE:.0%} of the plain peak", *KINDS)
    return "## Figure 4\n\nIn brackets how many nodes take another way.\n\n" + markdown(head, rows)


def _overhead(cell: dict | None) -> str:
    if cell is None:
        return "not run"
    if cell["outcome"] != "solved":
        return f"nothing below {cell['least_bytes'] / cell['plain_bytes']:.0%}"
    taken = ", ".join(f"{count} {name}" for name, count in cell["ways"].items())
    return f"{cell['overhead']:.1%}" + (f" ({taken})" if taken else "")


def of_paces(cells: Sequence[dict]) -> str:
    """Tables 5 and 6: seconds to within 5 and 2%, published hours in brackets."""
    texts = []
    for table, share in NEAR.items():
        theirs = {(row["network"], row["metric"]): row["value"] for row in published(table, "monet")}
        rows = []
        for network in _networks(cells):
            mine = {c["what"]: c for c in cells if c["network"] == network}
            some = next(iter(mine.values()))
            row = [f"{network}, {some['budget_bytes'] / some['plain_bytes']:.0%} of {some['plain_bytes'] / 1e9:.1f} GB"]
            for system in SYSTEMS:
                paper = theirs.get((network, f"hours {PAPER.get(system, '')}"))
                row.append(_reached(mine, system, share) + (f" ({paper} h)" if paper else ""))
            rows.append(row)
        title = f"## Table {table[-1]}: seconds to within {share:.0%} of the best bound (published, 8 GB)\n\n"
        texts.append(title + markdown(("network", *SYSTEMS.values()), rows))
    return "\n".join(texts)


def _reached(cells: dict[str, dict], system: str, share: float) -> str:
    """Seconds, or how far it was at its end."""
    if system not in cells:
        return "not run"
    cell = cells[system]
    if cell["outcome"] != "solved":
        return f"{cell['outcome']} in {cell['seconds']:.0f} s"
    alike = [system] if system.startswith("monet") else ["problem9", "checkmate"]  # they solve the same
    told = [bound for name in alike if name in cells for *_, bound in cells[name]["course"] if bound is not None]
    least = 0.0 if system == "monet" else cell["base_cost"]  # with ways a choice may cost less than the default
    bound = max([least, *told])
    if not bound:
        return f"no bound in {cell['seconds']:.0f} s"
    seconds = within(cell, bound, share)
    if seconds is not None:
        return f"{seconds:.1f} s"
    return f"never, {cell['cost'] / bound - 1:.0%} in {cell['seconds']:.0f} s"


def draw_kinds(path: Path, cells: Sequence[dict]) -> None:
    """Figure 4."""
    networks = _networks(cells)
    if not networks:
        return
    figure = new_figure(max(6.5, 2.0 + 2.2 * len(networks)), 4.4)
    axes = figure.add_subplot()
    colors = ("#8c8c8c", "#56b4e9", "#e69f00", "#009e73")
    for k, (kind, color) in enumerate(zip(KINDS, colors, strict=True)):
        mine = {c["network"]: c for c in cells if c["what"] == kind}
        for g, network in enumerate(networks):
            x, cell = g + (k - 1.5) * 0.2, mine.get(network)
            label = kind if not g else None
            if cell is None or cell["outcome"] != "solved":
                axes.bar(x, 0, 0.18, color=color, label=label)
                said = "not run" if cell is None else "nothing fits"
                axes.annotate(said, (x, 0), (0, 3), textcoords="offset points", rotation=90, ha="center", fontsize=8)
                continue
            value = 100 * cell["overhead"]
            axes.bar(x, value, 0.18, color=color, label=label)
            axes.annotate(f"{value:.1f}", (x, value), (0, 2), textcoords="offset points", ha="center", fontsize=8)
    axes.set_xticks(range(len(networks)), [f"{n}, batch {NETWORKS[n][1]}" for n in networks])
    axes.set_ylabel("overhead (%)")
    axes.set_title(f"Our search at {SHARE:.0%} of the plain peak, by kind of way", loc="left", fontsize=11)
    axes.grid(axis="y", alpha=0.25)
    axes.set_axisbelow(True)
    axes.margins(y=0.12)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    figure.savefig(path, dpi=150)


def draw_along(path: Path, cells: Sequence[dict]) -> None:
    """Figure 5: memory while the step runs."""
    mine = {c["what"]: c for c in cells if c["network"] == ALONG}
    courses = {kind: cell["course"] for kind, cell in mine.items() if "course" in cell}
    plain = next((c["plain_course"] for c in mine.values() if "plain_course" in c), None)
    if plain is None:
        return
    figure = new_figure(8.5, 4.4)
    axes = figure.add_subplot()
    budget = next(iter(mine.values()))["budget_bytes"]
    for name, points in {"plain": plain, **courses}.items():
        x, y = zip(*points, strict=True)
        axes.step(x, [live / 1e9 for live in y], where="pre", color=COLORS[name], linewidth=1.2, label=name)
    axes.axhline(budget / 1e9, color="#d55e00", linestyle="--", linewidth=1, label=f"budget, {budget / 1e9:.2f} GB")
    axes.set_xlabel("time in the step (ms, modelled V100 costs)")
    axes.set_ylabel("memory (GB)")
    axes.set_ylim(bottom=0)
    axes.set_title(f"{ALONG}, batch {NETWORKS[ALONG][1]}: memory along the step", loc="left", fontsize=11)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
