"""What the rooms of solving may import: strategies know nothing of TensorFlow, and solvers nothing of strategies."""

import ast
from pathlib import Path

import pytest

import checkmate_tf

PACKAGE = Path(checkmate_tf.__file__).parent
VALUES = {"errors", "graph", "operators", "plan", "schedule", "units"}
MAY = {
    "solvers": {"solvers", "errors"},
    "strategies": {"strategies", "solvers", "files", *VALUES},
}


def imported(path):
    """The rooms, or modules at the top, that a file imports from anywhere in it."""
    here = path.relative_to(PACKAGE).parts[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = here[: len(here) - node.level + 1]
            for name in [node.module] if node.module else [alias.name for alias in node.names]:
                yield (*base, *name.split("."))[0]
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names = [node.module] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            for name in names:
                assert name.split(".")[0] not in ("checkmate_tf", "tensorflow", "keras"), (path, name)


@pytest.mark.parametrize("room", MAY)
def test_a_room_imports_only_what_lies_below(room):
    for path in (PACKAGE / room).rglob("*.py"):
        assert set(imported(path)) <= MAY[room], path


def test_a_room_has_at_most_twelve_files_at_its_top():
    for room in ("solvers", "strategies", "largest_batch"):
        assert len(list((PACKAGE / room).glob("*.py"))) <= 12
