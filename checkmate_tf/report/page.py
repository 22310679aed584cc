"""What a report page says of a graph with its answers, and of a compiled model: tables and pictures as sections."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..draw.canvas import COLORS, short
from ..draw.cost_plot import plot_costs
from ..draw.graph_plot import plot_graph
from ..draw.plots import plain_curve, plot_memory, plot_schedule, predicted_curve, time_unit
from ..draw.report_plot import plot_report
from ..files.answers import Answer
from ..files.results import BOUND_ORDERS
from ..graph import BACKWARD, FORWARD, Graph
from ..paging import without_host
from ..schedule import Schedule, keep_all
from ..units import format_bytes
from . import text
from .html import Picture, Section, Table, picture
from .report import Report

__all__ = ["graph_section", "report_section"]

_MAP = (
    "What lies where in the device's memory, by the model of its allocator. A chunk is a rectangle: from left to right "
    "when it is in use, from bottom to top its addresses."
)
_CELLS = 30_000_000  # at most, of a matrix that is drawn
_NODES = 4_000  # at most, of a graph that is drawn
_ROWS = 25  # at most, of a list of nodes


def graph_section(graph: Graph, answers: Sequence[Answer] = ()) -> Section:
    """A graph, and what is known of its answers, side by side.

    Parameters
    ----------
    graph : Graph
    answers : sequence of Answer
        For this graph.
    """
    schedules = [Schedule(graph, **answer.fields) for answer in answers if answer.fields is not None]
    pictures = [_memory(graph, schedules)]
    for schedule in schedules:
        pictures += _matrices(schedule)
    best = min(schedules, key=lambda s: (s.cost, s.peak_bytes), default=None)
    pictures += _drawn(graph, best)
    return Section(
        graph.name or "graph",
        [f"{answer.source}: {line}" for answer in answers for line in answer.disagreements],
        [_about(graph), *([_answers(graph, answers)] if answers else [])],
        pictures,
        [_again(s) for s in schedules] + [_dearest(graph)],
    )


def report_section(report: Report) -> Section:
    """What `compile` did with a model: the report's own rows, its attempts, and pictures."""
    rows = text.rows(report)
    tables = [Table("", (), rows)]
    if report.attempts:
        tables.append(_attempts(report))
    schedule, graph = report.schedule, without_host(report.schedule.graph)
    shown = [picture(plot_report(report), "Memory over one training step, plain and planned, and its peaks.")]
    if report.memory_map is not None:
        shown.append(picture(report.plot_memory_map(), _MAP))
    return Section(
        f"{report.model}, batch {report.batch_size}",
        (),
        [*tables, _about(graph)],
        [*shown, *_matrices(schedule), *_drawn(graph, schedule)],
        [_again(schedule), _dearest(graph)],
    )


# Tables ---------------------------------------------------------------------------------------------------------------


def _attempts(report: Report) -> Table:
    """Plans tried on the device. What the allocator's model says is a column if there is one."""
    placed = any(a.placed_bytes is not None for a in report.attempts)
    columns = ("predicted peak", *(["placed peak"] if placed else []), "measured peak")
    rows = []
    for k, a in enumerate(report.attempts, 1):
        by_model = "not known" if a.placed_bytes is None else format_bytes(a.placed_bytes)
        rows.append(
            (
                str(k),
                format_bytes(a.target_bytes),
                format_bytes(a.predicted_bytes),
                *([by_model] if placed else []),
                "out of memory or not measured" if a.peak is None else str(a.peak),
                f"{a.overhead:.2%}",
                "all in one order" if a.strict else "as the peak needs",
                str(a.codes or "none"),
            )
        )
    return Table(
        "Plans tried on the device", ("attempt", "had to fit", *columns, "recomputation", "order", "codes"), rows
    )


def _about(graph: Graph) -> Table:
    plain = keep_all(graph)
    of = {kind: int((graph.kinds == kind).sum()) for kind in (FORWARD, BACKWARD)}
    at = plain.evaluation.peak_node
    needs = f"{format_bytes(graph.constant_bytes + int(graph.working_set.max(initial=0)))} (one node with its inputs)"
    rows = [
        ("nodes", f"{len(graph)}: {of[FORWARD]} forward, {of[BACKWARD]} backward"),
        ("edges", str(len(graph.edges))),
        ("constants", format_bytes(graph.constant_bytes)),
        ("cost of a step", _cost(graph.base_cost, graph)),
        ("peak, nothing computed again", f"{format_bytes(plain.peak_bytes)}, at {short(graph.names[at], 60)}"),
        ("no schedule needs less than", needs),
    ]
    return Table("The graph", (), rows)


def _answers(graph: Graph, answers: Sequence[Answer]) -> Table:
    """A column an answer. Cost and peak are those of the replayed plan."""

    def column(answer: Answer) -> list[str]:
        claims, replayed = answer.claims, answer.replayed
        budget, least = claims["budget_bytes"], claims["minimum_budget_bytes"]
        bound, gap = claims["lower_bound"], claims["gap"]
        return [
            claims["strategy"],
            claims["solver"] or "none",
            claims["status"],
            "not said" if budget is None else format_bytes(budget),
            "no plan" if replayed is None else _cost(replayed.cost, graph),
            "no plan" if replayed is None else f"{replayed.overhead:.2%}",
            "not said" if bound is None else _cost(bound, graph),
            "not said" if gap is None else f"{gap:.2%}",
            BOUND_ORDERS[claims["bound_order"]],
            "no plan" if replayed is None else format_bytes(replayed.peak_bytes),
            "no plan" if replayed is None else str(int((replayed.counts - 1).sum())),
            "not said" if least is None else format_bytes(least),
            "not said" if claims["seconds"] is None else f"{claims['seconds']:.1f} s",
        ]

    labels = (
        "strategy", "solver", "status", "budget", "cost, replayed", "more than the plain step", "lower bound (claimed)",
        "gap to it (claimed)", "order (claimed)",
        "peak, replayed", "computations added", "least budget known to do", "solving took",
    )  # fmt: skip
    columns = [column(answer) for answer in answers]
    rows = [(label, *(c[k] for c in columns)) for k, label in enumerate(labels)]
    return Table("Answers", ("", *(answer.source for answer in answers)), rows)


def _again(schedule: Schedule) -> Table:
    """What a schedule computes again, the dearest first."""
    graph, counts = without_host(schedule.graph), schedule.evaluation.counts[: schedule.graph.first_copy]
    added = graph.costs * (counts - 1)
    order = [i for i in _descending(added + 1e-12 * graph.costs.max(initial=0) * (counts - 1)) if counts[i] > 1]
    rows = [
        (
            f"{i}: {graph.names[i]}",
            f"{int(counts[i])} times",
            _cost(added[i], graph),
            f"{added[i] / (graph.base_cost or 1.0):.2%}",
            format_bytes(int(graph.sizes[i])),
        )
        for i in order[:_ROWS]
    ]
    of = f" ({_ROWS} of {len(order)} nodes)" if len(order) > _ROWS else ""
    title = f"Computed again by {schedule.strategy}{of}" if rows else f"{schedule.strategy} computes nothing again"
    return Table(title, ("node", "computed", "cost added", "of the step", "bytes") if rows else (), rows)


def _dearest(graph: Graph) -> Table:
    order = _descending(graph.costs)[:_ROWS]
    kinds = ("forward", "loss", "backward")
    rows = [
        (
            f"{i}: {graph.names[i]}",
            kinds[int(graph.kinds[i])],
            _cost(graph.costs[i], graph),
            f"{graph.costs[i] / (graph.base_cost or 1.0):.2%}",
            format_bytes(int(graph.sizes[i])),
            str(len(graph.inputs[i])),
            str(len(graph.users[i])),
        )
        for i in order
    ]
    head = ("node", "kind", "cost", "of the step", "bytes", "inputs", "readers")
    of = f" ({_ROWS} of {len(graph)})" if len(graph) > _ROWS else ""
    return Table(f"The dearest nodes{of}", head, rows)


def _descending(values: NDArray[np.float64]) -> list[int]:
    order: list[int] = np.argsort(-values, kind="stable").tolist()
    return order


def _cost(cost: float, graph: Graph) -> str:
    unit, scale = time_unit(graph)
    return f"{cost * scale:.5g} {unit}"


# Pictures -------------------------------------------------------------------------------------------------------------


def _memory(graph: Graph, schedules: Sequence[Schedule]) -> Picture:
    """All schedules in one picture, beside the plain step."""
    curves = [plain_curve(graph)]
    for k, schedule in enumerate(schedules):
        curves.append(predicted_curve(schedule, short(schedule.strategy), COLORS[k % len(COLORS)]))
    budgets = {s.budget_bytes for s in schedules}
    budget = budgets.pop() if len(budgets) == 1 else None
    title = f"{short(graph.name, 60)}: predicted memory over the step"
    figure = plot_memory(curves, budget_bytes=budget, unit=time_unit(graph)[0], title=title, size_inches=(12.0, 4.8))
    return picture(figure, "Memory over the step by the evaluator, constants included.")


def _matrices(schedule: Schedule) -> list[Picture]:
    n = len(schedule.graph)
    if max(n, len(schedule.sequence)) * n > _CELLS:
        return []
    rows = "A row is a stage" if schedule.frontier_advancing else "A row is a computation"
    caption = f"{schedule.strategy}: what is computed (orange: again) and what is kept. {rows}, a column a node."
    return [picture(plot_schedule(schedule), caption)]


def _drawn(graph: Graph, schedule: Schedule | None) -> list[Picture]:
    counts = None if schedule is None else schedule.evaluation.counts[: len(graph)]
    by = "" if schedule is None else f" Computed again: by {schedule.strategy}."
    found = [picture(plot_costs(graph, counts=counts), f"Cost and size by layer, in the order of the graph.{by}")]
    if len(graph) <= _NODES:
        caption = f"The graph: area is the size of a value, colour its cost. A ring: computed again.{by}"
        found.append(picture(plot_graph(graph, counts=counts), caption))
    return found
