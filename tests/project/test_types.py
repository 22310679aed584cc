"""What a type checker sees of the package: it ships `py.typed`, so users' checkers read its annotations."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from test_docs import blocks_of, page

pytest.importorskip("mypy")

ROOT = Path(__file__).parents[2]
SOURCE = """
from checkmate_tf.graph import Graph
from checkmate_tf.schedule import Schedule
from checkmate_tf.strategies import SolveOptions, StrategyFunction


def right(graph: Graph, budget_bytes: int, options: SolveOptions) -> Schedule: ...
def renamed(graph: Graph, budget: int, options: SolveOptions) -> Schedule: ...
def of_text(graph: Graph, budget_bytes: str, options: SolveOptions) -> Schedule: ...
def one_more(graph: Graph, budget_bytes: int, options: SolveOptions, more: int) -> Schedule: ...
def no_schedule(graph: Graph, budget_bytes: int, options: SolveOptions) -> int: ...


accepted: StrategyFunction = right
refused_name: StrategyFunction = renamed
refused_type: StrategyFunction = of_text
refused_count: StrategyFunction = one_more
refused_result: StrategyFunction = no_schedule
"""


def checked(source: str, folder: Path) -> str:
    """What mypy prints of a program, with the repository's settings."""
    path = folder / "program.py"
    path.write_text(source)
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), "--hide-error-context"]
    done = subprocess.run([*command, str(path)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    return done.stdout


def test_a_strategy_of_the_wrong_shape_is_refused(tmp_path):
    """What `registry` relies on: its loaders return strategies as `StrategyFunction`."""
    told = checked(SOURCE, tmp_path)
    lines = SOURCE.splitlines()
    wrong = [lines[int(number) - 1] for number in re.findall(r":(\d+): error: Incompatible types in assignment", told)]
    assert [line.split(":")[0] for line in wrong] == [
        "refused_name", "refused_type", "refused_count", "refused_result",
    ]  # fmt: skip


SOLVERS = """
import numpy as np
from checkmate_tf.solvers import Milp, Report, Solution, Solver, SolverFunction, register


def right(
    milp: Milp, time_limit: float, gap: float = 0.0, start: np.ndarray | None = None, report: Report | None = None
) -> Solution: ...
def short(milp: Milp, time_limit: float) -> Solution: ...


def load_right() -> SolverFunction:
    return right
def load_short() -> SolverFunction:
    return short  # refused
register("right", Solver(load_right, "numpy", integer=True, linear=True))
register("not loaded", Solver(right, "numpy", integer=True, linear=True))  # refused
"""


def test_a_solver_of_the_wrong_shape_is_refused(tmp_path):
    told = checked(SOLVERS, tmp_path)
    lines = SOLVERS.splitlines()
    wrong = [int(number) for number in re.findall(r":(\d+): error: (?:Incompatible return|Argument 1)", told)]
    assert wrong == [k for k, line in enumerate(lines, 1) if line.endswith("# refused")]


def test_the_examples_of_extending_have_types(tmp_path):
    """The page says what the type checker demands. So its own code passes."""
    blocks = [block for block in blocks_of(page("extending")) if block.runs]
    for block in blocks:
        if block.saved_as:
            (tmp_path / block.saved_as).write_text(block.text)
    program = "".join(block.text for block in blocks if not block.saved_as)
    told = checked(program, tmp_path)
    assert "Success" in told, told


PUBLIC = """
import checkmate_tf

graph = checkmate_tf.read_graph("graph.json")
reveal_type(checkmate_tf.solve(graph, "60%").overhead)
checkmate_tf.compile(None, "4GB", batch_size="many")
checkmate_tf.compile(None, budgets="4GB")
checkmate_tf.compil(None, "4GB")
"""


def test_public_names_have_their_types(tmp_path):
    told = checked(PUBLIC, tmp_path)
    assert 'Revealed type is "float"' in told.replace("builtins.", "")
    said = dict(re.findall(r":(\d+): error: (.*)", told))
    assert list(said) == ["6", "7", "8"]
    assert '"batch_size"' in said["6"] and '"budgets"' in said["7"] and '"compil"' in said["8"]
