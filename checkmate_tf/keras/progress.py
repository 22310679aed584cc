"""Progress bars for the stages of `compile`, in a terminal only."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["progress_bars"]

Tell = Callable[[str, float, float, str], None]


@contextmanager
def progress_bars(progress: bool | Tell) -> Iterator[Tell | None]:
    """A function (stage, done, total, text) that draws one bar a stage; None if there is nobody to see it."""
    if callable(progress):
        yield progress
        return
    if not progress or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description:>8}"), BarColumn(), TimeElapsedColumn(), TextColumn("{task.fields[text]}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        tasks: dict[str, TaskID] = {}

        def tell(stage: str, done: float, total: float, text: str) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=total, text=text)
            bars.update(tasks[stage], completed=done, total=total, text=text)

        yield tell
