"""Layer graphs of the papers' networks, and strategies on them: requests, and what child processes answer.

A script makes a network's graph and finds its range of budgets (`network_range`), and then asks for schedules
(`solve_request`); its `--child` answers with `answer_any`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.lib.cells import FAILED, run_cells

__all__ = [
    "NOT_FOR",
    "SOLVED",
    "TOO_SMALL",
    "answer_any",
    "answer_graph",
    "answer_range",
    "best_within",
    "graph_file",
    "most_seconds",
    "network_range",
    "solve",
    "solve_request",
]

SOLVED, TOO_SMALL, NOT_FOR = "solved", "too small", "does not apply"
_LOOK = 20.0  # seconds to look for the least budget


def network_range(script: str, output: Path, network: str, batch: int, costs: str) -> dict | None:
    """A network's layer graph as a file, and its range of budgets; what failed is said, and then there is None.

    Parameters
    ----------
    script : str
        Its `--child` answers "graph" and "range" with `answer_graph` and `answer_range`.
    network : str
        In `models.py`.
    batch : int
    costs : str
        Of `layer_graph`.

    Returns
    -------
    dict or None
        The range's cell.
    """
    slug = f"{network}-{batch}-{costs}".replace(", ", "-").replace(" ", "-")
    shared = {"network": network, "batch": batch, "costs": costs, "graph": f"graph-{slug}.json"}
    making = [{**shared, "cell": f"made-{slug}", "run": "graph"}]
    made = run_cells(script, output, making, most_seconds, again=not (output / shared["graph"]).exists())[0]
    if made.get("outcome") == FAILED:
        return None
    looking = {**shared, "cell": f"range-{slug}", "run": "range", "limit": _LOOK}
    looking["retained_peak_bytes"] = made["retained_peak_bytes"]
    known = run_cells(script, output, [looking], most_seconds)[0]
    return None if known.get("outcome") == FAILED else known


def answer_graph(request: dict) -> dict:
    """Write the layer graph of a network in `models.py`; its peak as the papers count it."""
    from benchmarks.lib.models import graph_of, retained_peak_bytes
    from checkmate_tf.files.graphs import write_graph

    graph = graph_of(request["network"], request["batch"], request["costs"])
    write_graph(graph, graph_file(request))
    retained = graph.constant_bytes + retained_peak_bytes(graph)
    return {"nodes": len(graph), "edges": len(graph.edges), "retained_peak_bytes": retained}


def graph_file(request: dict) -> Path:
    """Where a child finds the graph of its request."""
    return Path(request["folder"]) / request["graph"]


def answer_range(request: dict) -> dict:
    """The least budget with a known schedule, and the peak without recomputation."""
    from checkmate_tf.files.graphs import read_graph
    from checkmate_tf.schedule import keep_all
    from checkmate_tf.strategies import minimum_budget

    graph = read_graph(graph_file(request))
    proven, least, _ = minimum_budget(graph, request["limit"])
    return {
        "nodes": len(graph),
        "constant_bytes": graph.constant_bytes,
        "proven_least_bytes": proven,
        "least_bytes": least,
        "peak_bytes": keep_all(graph).peak_bytes,
        "base_cost": graph.base_cost,
        "cost_unit": graph.cost_unit,
    }


# Strategies on them -------------------------------------------------------------------------------------------------

_LINEAR = ("lp-rounding", "lp-rounding-random", "milp")  # the relaxation takes much longer than the search
_PATIENCE = 4.0  # times the limit for those


def solve_request(known: dict, strategy: str, budget_bytes: int, limit: float) -> dict:
    """The request to solve a graph whose range is known; `answer_solve` answers it."""
    slug = known["cell"].removeprefix("range-")
    keys = ("network", "batch", "costs", "graph", "nodes", "constant_bytes", "base_cost")
    return {
        **{key: known[key] for key in keys}, "cell": f"cell-{slug}-{strategy}-{budget_bytes}", "run": "solve",
        "peak_bytes_plain": known["peak_bytes"],
        "solve": strategy, "strategy": strategy, "budget": budget_bytes, "budget_bytes": budget_bytes,
        "limit": limit * (_PATIENCE if strategy in _LINEAR else 1.0),
    }  # fmt: skip


def answer_solve(request: dict) -> dict:
    """One strategy within one budget."""
    from checkmate_tf.files.graphs import read_graph

    return solve(read_graph(graph_file(request)), request)


def answer_any(request: dict) -> dict:
    """What a child process does with a request of this module."""
    return {"graph": answer_graph, "range": answer_range, "solve": answer_solve}[request["run"]](request)


def most_seconds(request: dict) -> float:
    """Of a request of this module: what is taken before a child is ended."""
    return 600.0 if request["run"] != "solve" else 6 * request["limit"]


def best_within(cells: Sequence[dict], budget_bytes: int) -> dict | None:
    """The cheapest schedule among a strategy's cells that fits: what was found for less memory serves as well."""
    fitting = [c for c in cells if c.get("outcome") == "solved" and c["peak_bytes"] <= budget_bytes]
    return min(fitting, key=lambda c: c["cost"], default=None)


def solve(graph: Any, request: dict) -> dict:
    """One strategy, one budget."""
    import numpy as np

    from checkmate_tf.errors import InfeasibleBudgetError, StrategyError
    from checkmate_tf.strategies import SolveOptions
    from checkmate_tf.strategies import solve as run

    begun = time.perf_counter()
    options = SolveOptions(time_limit=request["limit"], gap=0.0)
    try:
        schedule = run(graph, request["budget"], request["solve"], options)
    except InfeasibleBudgetError as error:
        seconds, proven = time.perf_counter() - begun, bool(error.proven)
        return {"outcome": TOO_SMALL, "reason": str(error), "proven": proven, "seconds": seconds}
    except StrategyError as error:
        return {"outcome": NOT_FOR, "reason": str(error), "seconds": time.perf_counter() - begun}
    seconds = time.perf_counter() - begun
    in_order = schedule.frontier_advancing and np.array_equal(np.nonzero(schedule.R)[1], schedule.sequence)
    lower = max(schedule.lower_bound, graph.base_cost)
    return {
        "outcome": SOLVED,
        "overhead": schedule.overhead,
        "bound_overhead": lower / graph.base_cost - 1,
        "cost": schedule.cost,
        "base_cost": graph.base_cost,
        "lower_bound": lower,
        "peak_bytes": schedule.peak_bytes,
        "staged": bool(in_order),
        "seconds": seconds,
    }
