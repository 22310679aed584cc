"""The fence: which room may import which. Late imports, and those for types, are arrows too."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from pathlib import Path

import networkx
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))

import architecture

ROOT = Path(__file__).parents[2]
MOST_FILES = 12  # at the top of a room
VALUES = "errors units graph statements paging evaluator files draw plan schedule operators report"

MAY_IMPORT = {
    "errors": "",
    "version": "",
    "numba_jit": "machine",
    "machine": "",
    "units": "errors",
    "graph": "errors units",
    "statements": "errors graph",
    "allocator": "errors numba_jit units graph",
    "paging": "errors graph statements",
    "evaluator": "errors graph statements paging",
    "files": "errors units graph statements evaluator",
    "draw": "errors units graph statements evaluator files",
    "plan": "errors units graph statements evaluator files",
    "schedule": "errors units graph statements evaluator files draw plan",
    "operators": "errors units graph plan schedule",
    "interchange": "files",
    "report": "errors units graph statements paging evaluator files draw plan schedule allocator",
    "solvers": "errors units machine",
    "strategies": "errors units graph statements paging evaluator files draw plan schedule operators solvers machine "
    "numba_jit",
    "trace": "errors graph allocator",
    "costs": "errors files trace machine",
    "layers": "errors units graph operators costs",
    "emit": "errors graph statements paging evaluator plan trace",
    "device": "errors report trace allocator machine",
    "fit": f"{VALUES} version numba_jit allocator strategies trace costs emit device machine",
    "keras": f"{VALUES} strategies trace costs emit device fit",
    "callbacks": f"{VALUES} fit keras",
    "profiles": f"{VALUES} trace costs layers device keras",
    "check": f"{VALUES} costs device fit keras machine",
    "largest_batch": f"{VALUES} strategies costs layers device keras machine",
    "checkmate_tf": f"{VALUES} version strategies layers keras callbacks largest_batch",
    "cli": "everything",
}


def test_rooms_import_what_lies_below_them():
    graph = architecture.rooms()
    assert set(graph) == set(MAY_IMPORT), "a new room: say here and in docs/architecture.py where it lies"
    allowed = {
        name: set(MAY_IMPORT) if names == "everything" else set(names.split()) for name, names in MAY_IMPORT.items()
    }
    beyond = [f"{a} -> {b}" for a, b in graph.edges if b not in allowed[a]]
    assert not beyond


def test_no_circles():
    assert networkx.is_directed_acyclic_graph(architecture.rooms())
    files = networkx.DiGraph(pair for pair in architecture.imports() if pair[0] != pair[1])
    assert [sorted(circle) for circle in networkx.simple_cycles(files)] == []


@pytest.mark.parametrize("folder", sorted({path.parent for path in architecture.modules().values()}))
def test_a_room_can_be_looked_over(folder):
    assert len(list(folder.glob("*.py"))) <= MOST_FILES
    assert (folder / "__init__.py").read_text(encoding="utf-8").startswith('"""'), "a room says what it is for"


def test_the_page_shows_the_rooms_as_they_are():
    text = architecture.PAGE.read_text(encoding="utf-8")
    assert "\n".join(architecture.table()) in text, "run: python docs/architecture.py"
    picture = architecture.PICTURE.read_text(encoding="utf-8")
    assert all(f"<!-- {name} -->" in picture for name in architecture.ROOMS)


def test_the_fence_sees_late_imports_and_those_for_types(monkeypatch, tmp_path):
    """Or it would be cosmetic."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "__init__.py").write_text("")
    (tmp_path / "a" / "__init__.py").write_text("")
    (tmp_path / "b" / "__init__.py").write_text("X = Y = 1")
    late = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ..b import X\n"
    (tmp_path / "a" / "one.py").write_text(late)
    (tmp_path / "a" / "two.py").write_text("def f():\n    from checkmate_tf.b import Y\n    return Y\n")
    monkeypatch.setattr(architecture, "PACKAGE", tmp_path)
    assert sorted(architecture.imports()) == [("a.one", "b"), ("a.two", "b")]


@functools.cache
def _names(path):
    """What a file defines or imports at its top, or behind a condition there."""
    found = set()
    for node in ast.walk(ast.Module([n for n in ast.parse(path.read_text()).body if not _is_scope(n)], [])):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found.update(alias.asname or alias.name.partition(".")[0] for alias in node.names)
    return found | {n.name for n in ast.walk(ast.parse(path.read_text())) if _is_scope(n)}


def _is_scope(node):
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)


@functools.cache
def _file_of(module):
    """The file of a module of ours; None if it is of somebody else, or a folder."""
    for folder in (ROOT, ROOT / "tests", ROOT / "docs"):
        for path in (folder / (module.replace(".", "/") + ".py"), folder / module.replace(".", "/") / "__init__.py"):
            if path.is_file():
                return path
    return None


def _missing(text):
    """Names that a program takes from modules of ours, late imports too, and that are not there."""
    nodes = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.ImportFrom) and not n.level and n.module]
    for node in nodes:
        home = _file_of(node.module)
        if home is None:
            continue
        for alias in node.names:
            if alias.name not in _names(home) and _file_of(f"{node.module}.{alias.name}") is None:
                yield f"{node.module}.{alias.name}"


@pytest.mark.parametrize("folder", ["benchmarks", "tests", "docs", "examples"])
def test_what_programs_import_of_ours_is_there(folder):
    """Many of them do so late, in processes that no test starts. Type checkers look after the package itself."""
    missing = {str(p): found for p in (ROOT / folder).rglob("*.py") if (found := list(_missing(p.read_text())))}
    assert not missing


def test_what_is_not_there_is_found():
    text = "def f():\n    from checkmate_tf.graph import Graph, Giraffe\n    from checkmate_tf import fit, solve\n"
    assert list(_missing(text)) == ["checkmate_tf.graph.Giraffe"]
    assert list(_missing("from benchmarks.lib import cells, sells\nfrom cases import CASES, arrays")) == [
        "benchmarks.lib.sells", "cases.arrays",
    ]  # fmt: skip


def test_importing_the_package_imports_neither_tensorflow_nor_a_solver():
    heavy = "{'tensorflow', 'keras', 'gurobipy', 'ortools', 'highspy', 'scipy', 'numba', 'pandas', 'matplotlib'}"
    code = f"import sys, checkmate_tf; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
