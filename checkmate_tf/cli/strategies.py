"""`checkmate-tf strategies`: every strategy with its traits (Checkmate, Table 1)."""

from __future__ import annotations

from ..strategies import STRATEGIES, Trait
from .console import print_json, stdout

__all__ = ["run_strategies"]


def run_strategies(json: bool) -> None:
    """Print the table, or with `json` a list of objects: name, title, source and traits (true, false or "partly")."""
    if json:
        told = ("title", "source", "general", "cost_aware", "memory_aware", "proves")
        print_json([{"name": name, **{key: getattr(s, key) for key in told}} for name, s in STRATEGIES.items()])
        return
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for column in ("strategy", "any graph", "cost", "memory", "proves", "what it does", "source"):
        table.add_column(column, no_wrap=column == "strategy")
    for name, s in STRATEGIES.items():
        traits = (_word(t) for t in (s.general, s.cost_aware, s.memory_aware, s.proves))
        table.add_row(name, *traits, s.title, s.source)
    stdout().print(table)


def _word(trait: Trait) -> str:
    return trait if isinstance(trait, str) else "yes" if trait else "no"
