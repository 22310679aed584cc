"""The values import downwards only: what is below knows nothing of what is above it, not even inside a function."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import checkmate_tf

ROOT = Path(checkmate_tf.__file__).parent

# From bottom to top.
ORDER = [
    *("errors", "units", "graph", "statements", "evaluator"),
    *("files.jsonfile", "files.graphs", "files.arrays", "files.results", "files.answers", "files.schedules"),
    *("draw.canvas", "draw.plots", "draw.cost_plot", "draw.graph_plot", "draw.report_plot"),
    *("plan", "schedule", "interchange", "report.report", "report", "report.html", "report.page"),
]


def path_of(module: str) -> Path:
    path = ROOT.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def imported(module: str) -> set[str]:
    """The package's modules that a module imports, wherever in it: at the top, in functions, for types only."""
    path = path_of(module)
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = path.parents[node.level - 1]
            base = base.joinpath(*(node.module or "").split(".")) if node.module else base
            for target in [base, *(base / alias.name for alias in node.names)]:
                if target != ROOT and (target.is_dir() or target.with_suffix(".py").is_file()):
                    found.add(".".join(target.relative_to(ROOT).parts))
    return found - {module.rpartition(".")[0]} if path.name != "__init__.py" else found


@pytest.mark.parametrize("module", ORDER)
def test_imports_point_downwards(module):
    below = ORDER[: ORDER.index(module)] + ["files", "draw"]  # the folders themselves import nothing
    assert sorted(imported(module) - set(below)) == []


@pytest.mark.parametrize("room", ["files", "draw", "report"])
def test_every_module_has_its_place(room):
    modules = {f"{room}.{path.stem}" for path in (ROOT / room).glob("*.py") if path.stem != "__init__"}
    assert modules <= set(ORDER)


@pytest.mark.parametrize("room", ["files", "draw"])
def test_rooms_below_import_nothing_by_themselves(room):
    assert not imported(room)
