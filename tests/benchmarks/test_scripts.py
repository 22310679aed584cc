"""Each script of the benchmarks says what it is for and how it is run, and begins at once, from anywhere."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted(
    path
    for folder in ("figures", "product")
    for path in (ROOT / "benchmarks" / folder).glob("*.py")
    if path.name != "__init__.py"
)
CHILD_SCRIPTS = [ROOT / "benchmarks" / "lib" / name for name in ("graph_files.py", "turns.py")]
LIBRARIES = sorted(path for path in (ROOT / "benchmarks" / "lib").glob("*.py"))
FREE = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

# Runs a script as `python SCRIPT --help` does, and says on the standard error what it imported that is slow to start.
HELP = """
import runpy, sys
script = sys.argv[1]
sys.argv, sys.path[0] = [script, "--help"], script.rpartition("/")[0]
try:
    runpy.run_path(script, run_name="__main__")
finally:
    print(*sorted({"tensorflow", "keras", "pandas", "matplotlib"} & set(sys.modules)), file=sys.stderr)
"""


def name(path: Path) -> str:
    return str(path.relative_to(ROOT / "benchmarks"))


def docstring(path: Path) -> str:
    return ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""


def imports(path: Path) -> set[str]:
    """All modules of `benchmarks` that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("benchmarks"):
            found.add(node.module)
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def test_there_are_scripts():
    assert len(SCRIPTS) > 20


@pytest.mark.parametrize("script", SCRIPTS, ids=name)
def test_a_script_shows_its_help_from_anywhere_and_at_once(script, tmp_path):
    command = [sys.executable, "-c", HELP, str(script)]
    done = subprocess.run(command, cwd=tmp_path, env=FREE, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert docstring(script).splitlines()[0] in done.stdout
    assert done.stderr.strip() == ""


@pytest.mark.parametrize("script", SCRIPTS, ids=name)
def test_a_script_says_what_it_does_and_how_it_is_run(script):
    says = docstring(script)
    assert len(says.splitlines()[0]) > 40
    assert f"\n    python benchmarks/{name(script)}" in says


@pytest.mark.parametrize("path", [*SCRIPTS, *LIBRARIES], ids=name)
def test_only_libraries_are_imported(path):
    """No script imports another one, and no library a script."""
    assert not {module for module in imports(path) if module.startswith(("benchmarks.figures", "benchmarks.product"))}


def test_libraries_import_each_other_in_one_direction():
    """Imports within functions count, too."""
    libraries = {f"benchmarks.lib.{path.stem}": imports(path) for path in LIBRARIES}
    left = {module: {m for m in wanted if m in libraries} for module, wanted in libraries.items()}
    while left:
        free = {module for module, wanted in left.items() if not wanted & left.keys()}
        assert free, f"a circle among {sorted(left)}"
        left = {module: wanted for module, wanted in left.items() if module not in free}


@pytest.mark.parametrize("path", CHILD_SCRIPTS, ids=name)
def test_libraries_that_are_scripts_of_children_find_the_others(path, tmp_path):
    command = [sys.executable, "-c", f"import runpy; runpy.run_path({str(path)!r}, run_name='child')"]
    subprocess.run(command, cwd=tmp_path, env=FREE, check=True, timeout=120)
