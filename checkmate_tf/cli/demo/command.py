"""`checkmate-tf demo`: trains one network plainly and compiled, under a limit that is too low for the plain one.

Three runs, each in a process of its own:

1. plain, without a limit: the reference for memory, time and losses;
2. plain, under a hard limit of the allocator: runs out of memory;
3. compiled by `checkmate_tf.compile` for the budget, under the same limit: trains.

The budget is 60% of the first run's measured peak. The hard limit is 10% above the budget: an allocator cannot use its
last bytes, since free memory lies in pieces between tensors. If these pieces are too small even for the compiled run,
it is run once more with 75% of the budget under the same limit. The demo says so.
"""

from __future__ import annotations

import json as jsonlib
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ...device.process import MARGIN, Outcome, Tell, run_child
from ...units import format_bytes
from ..console import BadInput, print_json, stderr, stdout
from .run import Run

__all__ = ["DEMO", "QUICK", "SHARE", "Demo", "run_demo"]

SHARE = 0.60
ROOMS = (1.0, 0.75)  # shares of the budget: the second is tried if free memory lies in too small pieces for the first

DEMO = Run("ResNet50", image_size=96, batch_size=32, steps=16)
QUICK = Run("MobileNet", image_size=96, batch_size=32, steps=10, time_limit=10.0)


@dataclass(frozen=True)
class Demo:
    """What the three runs have shown.

    Attributes
    ----------
    run : Run
    reference, plain, compiled : Outcome
    budget_bytes, limit_bytes : int
    picture : Path
    seconds : float
    """

    run: Run
    reference: Outcome
    plain: Outcome
    compiled: Outcome
    budget_bytes: int
    limit_bytes: int
    picture: Path
    seconds: float

    @property
    def shown(self) -> bool:
        """True if the plain run failed for want of memory and the compiled one trained."""
        return self.plain.out_of_memory and self.compiled.trained

    @property
    def loss_difference(self) -> float | None:
        """Largest relative difference of the compiled run's losses from the reference's, over all steps."""
        if self.reference.result is None or self.compiled.result is None:
            return None
        pairs = zip(self.reference.result["losses"], self.compiled.result["losses"], strict=True)
        return max(abs(a - b) / max(abs(a), 1e-12) for a, b in pairs)


def run_demo(output: Path, quick: bool, json: bool) -> None:
    """Run the demo, show a table, write the picture and the figures.

    Raises
    ------
    BadInput
        If the folder cannot be written, scikit-learn is missing, or the reference run itself fails.
    """
    run = QUICK if quick else DEMO
    _check(output)
    begun = time.perf_counter()
    console = stderr()
    images = f"{run.batch_size} images of {run.image_size} x {run.image_size}"
    console.print(f"{run.model}, {run.steps} steps of {images}: handwritten digits", highlight=False)
    with _progress(console) as follow:
        reference = _train(run, None, follow("1  plain, no limit"), output / "plain.log")
        if reference.result is None:
            raise BadInput(f"the plain run without a limit failed, so there is nothing to compare: {reference.failure}")
        peak = reference.result["peak_bytes"]
        budget = int(SHARE * peak)
        limit_mib = int(budget * (1 + MARGIN)) // 2**20
        console.print(
            f"measured peak {format_bytes(peak)}; budget {format_bytes(budget)} ({SHARE:.0%}), "
            f"hard limit {format_bytes(limit_mib * 2**20)} (budget and {MARGIN:.0%})",
            highlight=False,
        )
        plain = _train(run, limit_mib, follow("2  plain, under the limit"), output / "plain-limited.log")
        console.print(f"plain under the limit: {_ending(plain)}", highlight=False)
        for number, room in enumerate(ROOMS):
            wanted = replace(run, budget_bytes=int(room * budget))
            name = f"3  compiled, under the limit, budget {format_bytes(room * budget)}"
            compiled = _train(wanted, limit_mib, follow(name), output / f"compiled-{number + 1}.log")
            console.print(f"compiled under the limit: {_ending(compiled)}", highlight=False)
            if not compiled.out_of_memory:
                break
        budget = wanted.budget_bytes or budget
    picture = output / "memory.png"
    seconds = time.perf_counter() - begun
    demo = Demo(run, reference, plain, compiled, budget, limit_mib * 2**20, picture, seconds)
    _draw(demo)
    document = _document(demo)
    (output / "demo.json").write_text(jsonlib.dumps(document, indent=2) + "\n", encoding="utf-8")
    if json:
        print_json(document)
    else:
        _show(demo)


def _train(run: Run, limit_mib: int | None, tell: Tell, log: Path) -> Outcome:
    return run_child(Run.__module__, asdict(run), limit_mib, tell, log)


def _check(output: Path) -> None:
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"--output {str(output)!r} cannot be made: {error}") from error
    if not os.access(output, os.W_OK):
        raise BadInput(f"--output {str(output)!r} cannot be written: choose another folder")
    try:
        import sklearn.datasets  # noqa: F401 - is it there?
    except ImportError as error:
        raise BadInput("the demo's images come with scikit-learn: pip install scikit-learn") from error


class _progress:  # noqa: N801 - reads as a context
    """One bar a run in a terminal, a line a stage elsewhere."""

    def __init__(self, console: Any) -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        self.console = console
        columns = ("{task.description}", BarColumn(20), TimeElapsedColumn(), TextColumn("{task.fields[text]}"))
        self.bars = Progress(*columns, console=console) if console.is_terminal else None

    def __enter__(self) -> Callable[[str], Callable[[str, float, float, str], None]]:
        if self.bars is not None:
            self.bars.start()
        return self.follow

    def __exit__(self, *_: object) -> None:
        if self.bars is not None:
            self.bars.stop()

    def follow(self, name: str) -> Callable[[str, float, float, str], None]:
        """A function that hears of a child's progress."""
        if self.bars is None:
            last = [""]

            def tell(stage: str, done: float, total: float, text: str) -> None:
                if stage != last[0]:
                    last[0] = stage
                    line = f"{name}: {stage} {text}".rstrip()
                    self.console.print(line, highlight=False)

            return tell
        bars = self.bars
        task = bars.add_task(name, total=1.0, text="starting")

        def draw(stage: str, done: float, total: float, text: str) -> None:
            bars.update(task, completed=done, total=max(total, 1e-9), text=f"{stage}: {text}" if text else stage)

        return draw


def _ending(outcome: Outcome) -> str:
    return "trained" if outcome.trained else outcome.failure


def _document(demo: Demo) -> dict[str, Any]:
    """All figures, without the curves' points."""

    def of(outcome: Outcome) -> dict[str, Any]:
        row: dict[str, Any] = {
            "trained": outcome.trained,
            "limit_bytes": outcome.limit_bytes,
            "exit_status": outcome.status,
            "failure": outcome.failure or None,
            "out_of_memory": outcome.out_of_memory,
        }
        left_out = ("memory", "predicted", "predicted_plain", "report_text")
        return row | {k: v for k, v in {**outcome.planned, **(outcome.result or {})}.items() if k not in left_out}

    return {
        "model": demo.run.model,
        "image_size": demo.run.image_size,
        "batch_size": demo.run.batch_size,
        "steps": demo.run.steps,
        "budget_bytes": demo.budget_bytes,
        "limit_bytes": demo.limit_bytes,
        "shown": demo.shown,
        "loss_difference": demo.loss_difference,
        "picture": str(demo.picture),
        "seconds": demo.seconds,
        "runs": {"plain, no limit": of(demo.reference), "plain": of(demo.plain), "compiled": of(demo.compiled)},
    }


def _show(demo: Demo) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("run")
    table.add_column("trained?")
    for name in ("hard limit", "measured peak", "predicted peak", "s a step", "loss"):
        table.add_column(name, justify="right")
    predicted = demo.compiled.planned
    rows = [
        ("plain", demo.reference, predicted.get("predicted_plain")),
        ("plain", demo.plain, predicted.get("predicted_plain")),
        ("compiled", demo.compiled, predicted.get("predicted")),
    ]
    for name, outcome, curve in rows:
        result = outcome.result or {}
        verdict = (
            Text("yes", "green") if outcome.trained else Text("out of memory" if outcome.out_of_memory else "no", "red")
        )
        table.add_row(
            name,
            verdict,
            format_bytes(outcome.limit_bytes) if outcome.limit_bytes else "none",
            format_bytes(result["peak_bytes"]) if result else "-",
            format_bytes(curve["peak_bytes"]) if curve else "-",
            f"{result['step_seconds']:.2f}" if result else "-",
            f"{result['losses'][-1]:.4f}" if result else "-",
        )
    out = stdout()
    out.print(table)
    print_line = lambda text: out.print(text, highlight=False, soft_wrap=True)  # noqa: E731
    difference = demo.loss_difference
    if difference is not None and demo.compiled.result is not None:
        print_line(
            f"losses of all {demo.run.steps} steps agree with the plain model's within {difference:.1e} (relative)"
        )
    if demo.compiled.result is not None:
        over = demo.compiled.result["peak_bytes"] / demo.budget_bytes - 1
        kept = "within the budget" if over <= 0 else f"{over:.1%} OVER the budget, within the hard limit,"
        print_line(f"the compiled model's peak in training was {kept} of {format_bytes(demo.budget_bytes)}")
    if predicted:
        print_line(predicted["report_text"])
    print_line(f"picture: {demo.picture}   figures: {demo.picture.with_name('demo.json')}   took {demo.seconds:.0f} s")


def _draw(demo: Demo) -> None:
    from ...draw.plots import BLUE, ORANGE, Curve, measured_curve, plot_memory

    curves = []
    predicted = demo.compiled.planned
    for name, outcome, key, color in (
        ("plain", demo.reference, "predicted_plain", ORANGE),
        ("compiled", demo.compiled, "predicted", BLUE),
    ):
        if outcome.result is not None:
            curves.append(measured_curve(outcome.result["memory"], f"{name}, measured", color))
        if key in predicted:
            curve = predicted[key]
            curves.append(Curve(f"{name}, predicted", curve["ms"], curve["bytes"], False, color))
    run = demo.run
    title = (
        f"Memory over one training step: {run.model}, {run.batch_size} images of {run.image_size} x {run.image_size}"
    )
    plot_memory(curves, demo.picture, budget_bytes=demo.budget_bytes, limit_bytes=demo.limit_bytes, title=title)
