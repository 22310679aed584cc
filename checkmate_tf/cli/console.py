"""What all commands share: consoles, errors as one block, and the environment that TensorFlow starts in."""

from __future__ import annotations

import importlib
import json as jsonlib
import logging
import math
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import typer

from ..errors import CheckmateError, InfeasibleBudgetError, OutputError
from ..keras.sources import BadInput

__all__ = [
    "BAD_INPUT",
    "INFEASIBLE",
    "BadInput",
    "check_finite",
    "guarded",
    "is_json",
    "prepare_tensorflow",
    "print_json",
    "progress_lines",
    "refuse_options",
    "show_error",
    "stderr",
    "stdout",
]

BAD_INPUT, INFEASIBLE, INTERRUPTED = 2, 3, 130
_WIDE = 140  # columns
_MOST = 1e9  # of a number that is given: of seconds it is thirty years


def stdout() -> Any:
    """A rich console for results; wide where there is no terminal. Names of files and nodes are no markup."""
    from rich.console import Console

    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else _WIDE
    return Console(file=sys.stdout, width=width, markup=False)


def stderr() -> Any:
    """A rich console for progress, notes and errors."""
    from rich.console import Console

    return Console(file=sys.stderr, markup=False)


def print_json(document: Any) -> None:
    """The one JSON document of a command."""
    sys.stdout.write(jsonlib.dumps(document, indent=2) + "\n")
    sys.stdout.flush()


def prepare_tensorflow() -> None:
    """Before TensorFlow is imported: no start-up chatter, and a CPU allocator that keeps statistics.

    The command owns its process. What the user set in the environment stays.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("TF_CPU_ALLOCATOR_USE_BFC", "true")
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    if "tensorflow" in sys.modules:
        return
    with _native_silence(), stderr().status("starting TensorFlow", spinner="dots"):
        importlib.import_module("keras")
        importlib.import_module("tensorflow")


@contextmanager
def _native_silence() -> Iterator[None]:
    """Hide what native code writes to standard error, but not what Python writes. If this fails, all is shown."""
    before = sys.stderr
    try:
        kept = os.dup(2)
        stream = os.fdopen(os.dup(kept), "w", encoding="utf-8", errors="replace", buffering=1)
    except OSError:
        yield
        return
    with tempfile.TemporaryFile() as hidden, stream:
        os.dup2(hidden.fileno(), 2)
        sys.stderr = stream
        try:
            yield
        except BaseException:
            hidden.seek(0)
            os.write(kept, hidden.read())
            raise
        finally:
            sys.stderr = before
            os.dup2(kept, 2)
            os.close(kept)


def guarded(json: bool, command: Callable[[], None]) -> None:
    """Run a command; errors of the package become one block and an exit status, not a traceback.

    Raises
    ------
    typer.Exit
        2 for bad input, 3 for a budget that no schedule fits, 130 after Ctrl-C.
    """
    try:
        command()
    except CheckmateError as error:
        status = INFEASIBLE if isinstance(error, InfeasibleBudgetError) else BAD_INPUT
        show_error(error)
        if json:
            _print_error(error)
        raise typer.Exit(status) from None
    except (TimeoutError, ConnectionError):
        raise
    except OSError as error:
        told = OutputError(f"a file or a stream cannot be read or written: {error}; free room, or choose another place")
        show_error(told)
        if json:
            with suppress(OSError):  # it may be standard output itself
                _print_error(told)
        raise typer.Exit(BAD_INPUT) from None
    except KeyboardInterrupt:
        stderr().print("interrupted", style="yellow")
        raise typer.Exit(INTERRUPTED) from None


def _print_error(error: CheckmateError) -> None:
    """As the one JSON document of the command."""
    print_json({"error": {"type": type(error).__name__, "message": str(error), **_figures(error)}})


def check_finite(**options: float) -> None:
    """Refuse infinite limits, endless ones, and what is no number.

    Raises
    ------
    BadInput
        Names the option.
    """
    for name, value in options.items():
        if not math.isfinite(value) or value > _MOST:
            raise BadInput(f"--{name.replace('_', '-')} is {value}: give a number of at most {_MOST:.0e}")


def is_json(source: str) -> bool:
    """Whether a source is a graph or a result in a file, by its name; others are models."""
    return source.lower().endswith(".json")


def refuse_options(why: str, given: Mapping[str, Any]) -> None:
    """Refuse what has no effect here, by its name on the command line: what is not None, and what was switched on.

    Raises
    ------
    BadInput
        Says why, and names them.
    """
    named = [name for name, value in given.items() if value is not None and value is not False]
    if named:
        raise BadInput(f"{why}: leave out {', '.join(named)}")


def _figures(error: CheckmateError) -> dict[str, Any]:
    keys = ("budget_bytes", "minimum_bytes", "proven")
    return {k: getattr(error, k) for k in keys if hasattr(error, k)}


def show_error(error: CheckmateError) -> None:
    """As one block on standard error."""
    from rich.panel import Panel
    from rich.text import Text

    stderr().print(Panel(Text(str(error)), title=type(error).__name__, title_align="left", border_style="red"))


def progress_lines() -> Callable[[str, float, float, str], None]:
    """Progress where there is no terminal: one line on standard error when a stage begins."""
    console, seen = stderr(), set()

    def tell(stage: str, done: float, total: float, text: str) -> None:
        if stage not in seen:
            seen.add(stage)
            console.print(f"{stage} {text}".rstrip() + " ...", highlight=False)

    return tell
