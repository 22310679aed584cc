"""Figure 8 of Checkmate (appendix): roundings of the relaxation, each sample by its cost and its memory.

For each network the relaxation of problem (9) is solved once, under 90% of the budget (section 5.2), and rounded:

- in two phases: S = [S* > 1/2], or S = 1 with probability S*; then the least R for that S. Every sample is a schedule,
  whose cost and peak are the evaluator's;
- naively, entry by entry, R* and S* alike. A sample is no schedule but by luck: it is told how many constraints of
  problem (9) it breaks, its sum of costs, and, as an estimate, the most that it keeps and computes in a stage.

Beside them the best schedule known with its proven bound, checkpoint-all, and Chen's sqrt(n) schedule (with points of
articulation). Batches and V100 costs (modelled) as in figure 4; the budget is the V100's 16 GB, or, where that would
hold everything, half of the way from the least budget to the peak.

    python benchmarks/figures/rounding.py                  # VGG16, MobileNet and U-Net, 64 draws: ten minutes
    python benchmarks/figures/rounding.py --full           # and ResNet50, 256 draws; resumes what is in the folder
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.lib.cells import FAILED, at_once, read_cells, run_cells
from benchmarks.lib.layer_graphs import answer_graph, answer_range, graph_file, network_range
from benchmarks.lib.options import common_options, serve_child
from benchmarks.lib.tables import markdown, new_figure, write_csv, write_table

BATCHES = {"VGG16": 256, "MobileNet": 512, "U-Net": 32, "ResNet50": 256}
QUICK_NETWORKS = ("VGG16", "MobileNet", "U-Net")
MEMORY = 16_000_000_000
COLUMNS = (
    "network", "batch", "costs", "budget_bytes", "kind", "draw", "cost", "base_cost", "overhead", "memory_bytes",
    "fits", "broken_constraints",
)  # fmt: skip
KINDS = {
    "two-phase deterministic": ("#0072b2", "o", 9),
    "two-phase random": ("#d55e00", "o", 4),
    "naive deterministic": ("#000000", "s", 7),
    "naive random": ("#777777", "o", 4),
}
REFERENCES = {
    "best known": ("#000000", "*", 14),
    "checkpoint-all": ("#009e73", "s", 7),
    "AP sqrt(n)": ("#cc79a7", "P", 8),
}


def main() -> None:
    parser = common_options(__doc__, "rounding", "three networks, 64 draws, 120 s a relaxation", "four, 256, 1800 s")
    parser.add_argument("--networks", nargs="*", choices=list(BATCHES), help="only these")
    parser.add_argument("--draws", type=int, help="random samples of each kind")
    parser.add_argument("--time-limit", type=float, help="seconds for a relaxation")
    parser.add_argument("--costs", default="v100", help="of layers: v100 (default), artifact, ...")
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
    """Graphs, budgets, relaxations, roundings and references, in this order."""
    output, again = options.output, options.again
    limit = options.time_limit or (1800.0 if options.full else 120.0)
    draws = options.draws or (256 if options.full else 64)
    for network in options.networks or (BATCHES if options.full else QUICK_NETWORKS):
        known = network_range(__file__, output, network, BATCHES[network], options.costs)
        if known is None:
            continue
        base = {key: known[key] for key in ("network", "batch", "costs", "graph")}
        base |= {"budget_bytes": budget(known), "limit": limit}
        slug = known["cell"].removeprefix("range-")
        relaxed = {**base, "cell": f"relaxed-{slug}", "run": "relax", "file": f"relaxed-{slug}.npz"}
        (solved,) = run_cells(__file__, output, [relaxed], lambda r: 2 * r["limit"], again)
        requests = [{**base, "cell": f"cell-{slug}-references", "run": "references"}]
        if solved.get("solved"):
            requests += [
                {**base, "cell": f"cell-{slug}-{kind.replace(' ', '-')}", "run": "round", "kind": kind,
                 "draws": draws if kind.endswith("random") else 1, "file": relaxed["file"]}
                for kind in KINDS
            ]  # fmt: skip
        run_cells(__file__, output, requests, lambda r: 6 * r["limit"], again, jobs=at_once(2))


def budget(known: dict) -> int:
    """The V100's memory, or half of the way to the peak where nothing has to be computed again in it."""
    least, peak = known["least_bytes"], known["peak_bytes"]
    return MEMORY if least <= MEMORY < peak else (least + peak) // 2


# Child processes ------------------------------------------------------------------------------------------------------


def answer(request: dict) -> dict:
    """What a child process does."""
    children = {
        "graph": answer_graph, "range": answer_range, "relax": relax, "round": round_samples, "references": references,
    }  # fmt: skip
    return children[request["run"]](request)


def relax(request: dict) -> dict:
    """Solve the relaxation and keep R* and S* in a file."""
    from dataclasses import replace

    import numpy as np

    from checkmate_tf.files.graphs import read_graph
    from checkmate_tf.solvers import solve_milp
    from checkmate_tf.strategies.programs.formulation import problem9
    from checkmate_tf.strategies.programs.rounding import ACCURACY, EPSILON

    begun = time.perf_counter()
    graph = read_graph(graph_file(request))
    program = problem9(graph, int((1 - EPSILON) * request["budget_bytes"]))
    solution = solve_milp(replace(program.milp, integer=None), "auto", request["limit"], ACCURACY)
    found = {
        "status": solution.status, "solver": solution.solver, "detail": solution.detail,
        "solved": solution.x is not None, "seconds": time.perf_counter() - begun,
        "rows": program.milp.matrix.shape[0], "variables": program.milp.matrix.shape[1],
    }  # fmt: skip
    if solution.x is not None:
        R, S = program.unpack(solution.x)
        np.savez_compressed(Path(request["folder"]) / request["file"], R=R, S=S)
        found |= {"relaxed_cost": solution.objective * graph.base_cost, "bound": solution.bound * graph.base_cost}
        found |= {"fractional": int((np.minimum(S, 1 - S) > 1e-3).sum()), "entries": len(graph) * (len(graph) - 1) // 2}
    return found


def round_samples(request: dict) -> dict:
    """Round R* and S* in one way, once or many times."""
    import numpy as np

    from checkmate_tf.files.graphs import read_graph
    from checkmate_tf.strategies.programs.rounding import (
        least_computation,
        round_naively,
        round_naively_at_random,
        violations,
    )

    graph = read_graph(graph_file(request))
    with np.load(Path(request["folder"]) / request["file"], allow_pickle=False) as file:
        R, S = file["R"], file["S"]
    random = np.random.default_rng(0)
    samples, kind = [], request["kind"]
    for _ in range(request["draws"]):
        if kind == "two-phase deterministic":
            rounded = least_computation(graph, S > 0.5)
        elif kind == "two-phase random":
            rounded = least_computation(graph, random.random(S.shape) < S)
        elif kind == "naive deterministic":
            rounded = round_naively(R, S)
        else:
            rounded = round_naively_at_random(R, S, random)
        samples.append(sample(graph, *rounded, violations(graph, *rounded)))
    return {"base_cost": graph.base_cost, "cost_unit": graph.cost_unit, "samples": samples}


def sample(graph: Any, R: Any, S: Any, broken: int) -> dict:
    """Cost and memory: of the schedule, or, if it is none, of what the matrices say."""
    from checkmate_tf.schedule import Schedule

    if broken:
        stages = S @ graph.sizes + R @ graph.sizes
        cost, memory = float((R @ graph.costs).sum()), int(graph.constant_bytes + stages.max())
    else:
        schedule = Schedule.from_matrices(graph, R, S)
        cost, memory = schedule.cost, schedule.peak_bytes
    return {"cost": cost, "memory_bytes": memory, "broken_constraints": broken}


def references(request: dict) -> dict:
    """What the samples are compared with: the default strategy, checkpoint-all, Chen's sqrt(n) with its own peak."""
    from checkmate_tf.errors import CheckmateError
    from checkmate_tf.files.graphs import read_graph
    from checkmate_tf.schedule import keep_all
    from checkmate_tf.strategies import SolveOptions, solve

    graph = read_graph(graph_file(request))
    limit = min(request["limit"], 60.0)
    plain = keep_all(graph)
    found = [{"kind": "checkpoint-all", "cost": plain.cost, "memory_bytes": plain.peak_bytes}]
    best = solve(graph, request["budget_bytes"], "checkmate", SolveOptions(time_limit=limit, gap=0.0))
    found.append({"kind": "best known", "cost": best.cost, "memory_bytes": best.peak_bytes, "bound": best.lower_bound})
    try:  # one schedule, whatever the budget: ask just below the peak
        ap = solve(graph, plain.peak_bytes - 1, "ap-sqrt", SolveOptions(time_limit=limit))
        found.append({"kind": "AP sqrt(n)", "cost": ap.cost, "memory_bytes": ap.peak_bytes})
    except CheckmateError as error:
        found.append({"kind": "AP sqrt(n)", "none": str(error)})
    return {"base_cost": graph.base_cost, "cost_unit": graph.cost_unit, "references": found}


# Results --------------------------------------------------------------------------------------------------------------


def write(output: Path, cells: list[dict]) -> None:
    """CSV (a row a sample), table and picture."""
    costs = sorted({cell["costs"] for cell in cells})
    if len(costs) > 1:
        raise SystemExit(f"{output} has cells with costs {' and '.join(costs)}: give each another --output")
    order = list(BATCHES)
    relaxed = {c["network"]: c for c in read_cells(output, "relaxed-")}
    rows: list[dict] = []
    for cell in sorted(cells, key=lambda c: order.index(c["network"])):
        shared = {key: cell[key] for key in ("network", "batch", "costs", "budget_bytes", "base_cost")}
        for k, one in enumerate(cell.get("samples", ())):
            rows.append({**shared, "kind": cell["kind"], "draw": k, **one})
        rows += [{**shared, **one, "broken_constraints": 0} for one in cell.get("references", ()) if "cost" in one]
    for row in rows:
        row["overhead"] = row["cost"] / row["base_cost"] - 1
        row["fits"] = not row["broken_constraints"] and row["memory_bytes"] <= row["budget_bytes"]
    write_csv(output / "samples.csv", COLUMNS, rows)
    text = as_table(rows, relaxed)
    write_table(output, text)
    draw(output / "rounding.png", rows)
    print(text)


def as_table(rows: Sequence[dict], relaxed: dict[str, dict]) -> str:
    """A row a network and kind of sample."""
    lines = []
    for network in dict.fromkeys(r["network"] for r in rows):
        mine = [r for r in rows if r["network"] == network]
        best = next((r["cost"] for r in mine if r["kind"] == "best known"), None)
        for kind in (k for k in (*KINDS, *REFERENCES) if any(r["kind"] == k for r in mine)):
            some = [r for r in mine if r["kind"] == kind]
            fitting = [r["cost"] for r in some if r["fits"]]
            ratio = f"{min(fitting) / best:.3f}" if fitting and best else ""
            lines.append(
                (
                    network, f"{mine[0]['budget_bytes'] / 1e9:.1f}", kind, len(some),
                    sum(not r["broken_constraints"] for r in some), len(fitting),
                    spread([r["overhead"] for r in some], 100, "%"),
                    spread([r["memory_bytes"] for r in some], 1e-9, ""),
                    spread([r["broken_constraints"] for r in some], 1, ""), ratio,
                )
            )  # fmt: skip
    head = ("network", "budget, GB", "kind", "samples", "schedules", "that fit", "more cost", "memory, GB",
            "constraints broken", "cheapest that fits over best known")  # fmt: skip
    notes = [
        f"- {name}: relaxation {c['status']} ({c['solver']}, {c['seconds']:.0f} s, {c['variables']:,} variables)"
        + (
            f", {c['fractional']} of {c['entries']} entries of S* fractional"
            if "fractional" in c
            else f" {c['detail']}"
        )
        for name, c in relaxed.items()
        if "status" in c
    ]
    said = "Median (least to most) of the samples. Memory and cost of samples that break constraints are estimates.\n"
    return markdown(head, lines) + "\n" + said + "\n" + "\n".join(notes) + "\n\n" + PUBLISHED


PUBLISHED = """\
Published: figure 8 is a picture of samples, without numbers, for the same kinds of rounding in two phases.
"""


def spread(values: Sequence[float], scale: float, unit: str) -> str:
    """Median, least and most."""
    from statistics import median

    least, middle, most = (scale * v for v in (min(values), median(values), max(values)))
    if most - least < 0.005 * max(abs(most), 1e-12):
        return f"{middle:.3g}{unit}"
    return f"{middle:.3g}{unit} ({least:.3g} to {most:.3g})"


def draw(path: Path, rows: Sequence[dict]) -> None:
    """A column a network: above, schedules by memory and cost; below, naive samples by broken constraints and cost."""
    networks = list(dict.fromkeys(r["network"] for r in rows))
    figure = new_figure(max(5.2 * len(networks), 7.0), 8.2)
    panels = figure.subplots(2, len(networks), squeeze=False)
    handles: dict[str, Any] = {}
    for (above, below), network in zip(panels.T, networks, strict=True):
        mine = [r for r in rows if r["network"] == network]
        for kind, (color, marker, size) in {**KINDS, **REFERENCES}.items():
            some = [r for r in mine if r["kind"] == kind]
            naive = kind.startswith("naive")
            if not some:
                continue
            axes = below if naive else above
            x = [r["broken_constraints"] if naive else r["memory_bytes"] / 1e9 for r in some]
            y = [100 * r["overhead"] for r in some]
            (handles[kind],) = axes.plot(
                x, y, linestyle="", color=color, marker=marker, markersize=size, alpha=0.6 if len(some) > 1 else 1,
                zorder=3 if len(some) == 1 else 2, markeredgewidth=0.4, markeredgecolor="white", label=kind,
            )  # fmt: skip
            if kind == "two-phase random":
                mean = sum(y) / len(y)
                handles["its mean"] = above.axhline(mean, color=color, linestyle=":", linewidth=1.2)
        handles["budget"] = above.axvline(mine[0]["budget_bytes"] / 1e9, color="#444444", linewidth=1.2)
        above.set_title(f"{network}, batch {mine[0]['batch']}", loc="left", fontsize=11)
        above.set_xlabel("peak memory (GB)")
        below.set_xlabel("constraints broken")
        below.set_title("rounded naively: a schedule only if nothing is broken", loc="left", fontsize=9)
        for axes in (above, below):
            axes.set_ylabel("more cost (%)")
            axes.grid(alpha=0.25)
            axes.spines[["top", "right"]].set_visible(False)
    columns = min(2 * len(networks) + 1, 5)
    figure.legend(
        handles.values(), handles.keys(), loc="outside lower center", ncols=columns, frameon=False, fontsize=9
    )
    figure.suptitle("Roundings of the relaxation of problem (9)", fontsize=12)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
