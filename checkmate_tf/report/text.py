"""What a report says in words: a row of a name and a text for each thing, all of them or the ten that matter most."""

from __future__ import annotations

from collections.abc import Sequence

from ..files.results import BOUND_ORDERS
from ..units import format_bytes
from .facts import Facts

__all__ = ["brief", "lines", "rows"]

Row = tuple[str, str]


def lines(given: Sequence[Row]) -> str:
    """Rows as lines of equal columns."""
    width = max(len(name) for name, _ in given)
    return "\n".join(f"{name:<{width}}  {text}" for name, text in given)


def brief(report: Facts) -> list[Row]:
    """At most ten rows."""
    peaks = [f"{format_bytes(report.predicted_peak_bytes)} predicted"]
    if report.placed_peak_bytes is not None:
        peaks.append(f"{format_bytes(report.placed_peak_bytes)} placed")
    if report.measured_peak_bytes is None:
        peaks.append(f"not measured: {report.not_measured}")
    else:
        peaks.append(f"{format_bytes(report.measured_peak_bytes)} measured")
        peaks.append(_verdict(report.measured_peak_bytes, report))
    return [
        _model(report),
        _budget(report),
        ("plain step", f"{format_bytes(report.plain_peak_bytes)} predicted"),
        ("peak", ", ".join(peaks)),
        *_training(report),
        ("recomputation", f"{_again(report)}; step {report.step_ratio:.2f}x expected"),
        _proven(report),
        *_besides(report),
        _solved(report),
        ("time", f"{sum(v for k, v in report.seconds.items() if k != 'solved before'):.1f} s"),
    ]


def rows(report: Facts) -> list[Row]:
    """All rows."""
    paged = report.paged
    found = [
        _model(report),
        _budget(report),
        (
            "plain step",
            f"{format_bytes(report.plain_peak_bytes)} predicted, of it {format_bytes(report.variable_bytes)} variables "
            f"and {format_bytes(report.input_bytes)} inputs",
        ),
        ("predicted peak", format_bytes(report.predicted_peak_bytes)),
        *_placed(report),
        ("measured peak", _measured(report)),
    ]
    if report.expected_bytes:
        peaks = ", ".join(format_bytes(b) for b in report.expected_bytes)
        found.append(("room for data", f"made before training, which would have taken {peaks}"))
    if report.exceeded_bytes:
        peaks = ", ".join(format_bytes(b) for b in report.exceeded_bytes)
        found.append(("planned again", f"for {peaks} while training, over the budget"))
    found += _training(report)
    if len(report.attempts) > 1:
        found.append(("plans tried", _tries(report)))
    waits = ", waits for copies included" * (paged is not None)
    found.append(("recomputation", f"{_again(report)} ({report.costs}{waits})"))
    if paged is not None:
        text = f"{paged.values} values wait on the host, {format_bytes(paged.host_bytes)} at most"
        found.append(("paging", f"{text}; computations wait for copies in {paged.waiting:.2%} of the step"))
    if report.encodings:
        kinds = ", ".join(f"{count} {kind}" for kind, count in report.encodings.items())
        found.append(("operators", f"{sum(report.encodings.values())} gradients read codes ({kinds}), exactly"))
    if report.strict:
        took = "" if report.strict_cost is None else f", {report.strict_cost:.2f} times the seconds, measured"
        found.append(
            ("order", f"computations keep one strict order{took}; step {report.step_ratio:.2f}x expected"),
        )
    found += [_proven(report), _solved(report)]
    found.append(("time", ", ".join(f"{k} {v:.1f} s" for k, v in report.seconds.items())))
    return found


# Rows -----------------------------------------------------------------------------------------------------------------


def _model(report: Facts) -> Row:
    where = report.device if report.replicas == 1 else f"each of {report.replicas} devices"
    return "model", f"{report.model}, batch {report.batch_size}, on {where}"


def _budget(report: Facts) -> Row:
    return "budget", f"{format_bytes(report.budget_bytes)} (asked: {report.asked})"


def _placed(report: Facts) -> list[Row]:
    """What the allocator's model says, as far as there is one."""
    found = []
    if report.packed_peak_bytes is not None:
        text = f"{format_bytes(report.packed_peak_bytes)}, if each value had the best address that was found"
        found.append(("best packing", text))
    if report.placed_peak_bytes is not None:
        text = f"{format_bytes(report.placed_peak_bytes)}, as the allocator places values"
        known = report.memory_map
        if known is not None:
            text += f"; with the holes between them it reaches {format_bytes(known.range_bytes)}"
            text += "; OUT OF MEMORY: a request finds no room" * known.out_of_memory
        found.append(("placed peak", text))
    return found


def _measured(report: Facts) -> str:
    if report.measured_peak_bytes is None:
        return f"not measured: {report.not_measured}"
    text = f"{format_bytes(report.measured_peak_bytes)}, {_verdict(report.measured_peak_bytes, report)}"
    if (report.sure_bytes or 0) > report.measured_peak_bytes:
        text += f", at most {format_bytes(report.sure_bytes or 0)} expected"
    if report.foreign_bytes > 1e6:
        text += f" ({format_bytes(report.foreign_bytes)} of it other tenants of the device)"
    return text


def _training(report: Facts) -> list[Row]:
    peak = report.training_peak_bytes
    return [] if peak is None else [("while training", f"{format_bytes(peak)}, {_verdict(peak, report)}")]


def _tries(report: Facts) -> str:
    return "; ".join(
        f"{format_bytes(a.predicted_bytes)} predicted{' with codes' * (a.codes > 0)}{' with copies' * (a.copies > 0)}, "
        + (f"{format_bytes(a.placed_bytes)} placed, " if a.placed_bytes is not None else "")
        + (f"{a.peak} measured" if a.peak is not None else "out of memory")
        for a in report.attempts
    )


def _proven(report: Facts) -> Row:
    schedule = report.schedule
    these = "with these operators " if report.encodings else ""
    these += BOUND_ORDERS[schedule.bound_order]
    budget = format_bytes(schedule.budget_bytes or report.budget_bytes)
    text = f"no schedule {these} within {budget} by prediction costs less than {report.proven_overhead:.2%} more"
    return "proven", f"{text}; gap {schedule.gap:.2%}"


def _besides(report: Facts) -> list[Row]:
    """In one row, what `rows` has rows for."""
    codes, paged = sum(report.encodings.values()), report.paged
    told = ["strict order"] * report.strict
    told += [f"{codes} gradients read codes"] * bool(codes)
    told += [] if paged is None else [f"{paged.values} values wait on the host"]
    told += [f"{len(report.attempts)} plans tried"] * (len(report.attempts) > 1)
    told += [f"planned again {report.replanned} times"] * bool(report.replanned)
    return [("besides", ", ".join(told))] if told else []


def _solved(report: Facts) -> Row:
    schedule = report.schedule
    text = f"{schedule.strategy} ({schedule.solver or 'no solver'}), {schedule.status}"
    return "solved by", text + (f"; from {schedule.origin}" if schedule.origin else "")


def _again(report: Facts) -> str:
    return f"{report.recomputations} of {report.nodes} nodes again, {report.overhead:.2%} of the step's cost"


def _verdict(peak: int, report: Facts) -> str:
    return f"{'within' if peak <= report.budget_bytes else 'OVER'} the budget"
