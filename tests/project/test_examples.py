"""What lies in examples/ runs: each script, and the cells of each notebook, in a process of its own as a reader's."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPTS = sorted(path.name for path in EXAMPLES.glob("*.py"))
NOTEBOOKS = sorted(path.name for path in EXAMPLES.glob("*.ipynb"))
MOST_LINES = 80


def output_of(*arguments: object, folder: Path) -> str:
    """What a Python process prints that runs in a folder; it has to end well."""
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=folder,
        env=os.environ | {"MPLBACKEND": "Agg"},  # pictures are drawn, and shown to nobody
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def numbers_after(label: str, text: str) -> list[float]:
    """All numbers in the line of a report that begins with a label."""
    line = re.search(rf"^{label}\s+(.*)$", text, re.MULTILINE)
    assert line, f"no line {label!r} in:\n{text}"
    return [float(number) for number in re.findall(r"\d+(?:\.\d+)?", line[1])]


def check_report(text: str) -> None:
    """It tells a budget, a peak that is no larger as measured, and that something is computed again.

    In bytes of values a schedule may take more: it does not know all that is computed in place.
    """
    budget, again = (numbers_after(name, text)[0] for name in ("budget", "recomputation"))
    measured = numbers_after("peak", text)[-1]
    assert 0 < measured <= budget
    assert again > 0


def code_of(name: str) -> list[str]:
    cells = json.loads((EXAMPLES / name).read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def test_there_are_examples():
    assert SCRIPTS
    assert NOTEBOOKS


@pytest.mark.long
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_runs_and_reports(name, tmp_path):
    printed = output_of(EXAMPLES / name, folder=tmp_path)
    check_report(printed)
    assert re.search(r"^(step \d+: )?loss \d", printed, re.MULTILINE), printed


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_is_short(name):
    assert len((EXAMPLES / name).read_text(encoding="utf-8").splitlines()) < MOST_LINES


@pytest.mark.long
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_the_cells_of_a_notebook_run_in_order(name, tmp_path):
    printed = output_of(__file__, name, folder=tmp_path)
    check_report(printed)
    overheads = [float(share) for share in re.findall(r"^budget \d+%: ([\d.]+)% more", printed, re.MULTILINE)]
    assert len(overheads) > 1
    assert overheads[-1] > overheads[0] > 0  # less memory costs more


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_is_well_formed_and_carries_no_outputs(name):
    notebook = json.loads((EXAMPLES / name).read_text(encoding="utf-8"))
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert notebook["metadata"]["language_info"]["name"] == "python"
    cells = notebook["cells"]
    assert len({cell["id"] for cell in cells}) == len(cells)
    for cell in cells:
        assert cell["cell_type"] in ("code", "markdown")
        assert "".join(cell["source"]).strip()
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None)


if __name__ == "__main__":
    names: dict[str, object] = {"__name__": "__main__"}
    for number, cell in enumerate(code_of(sys.argv[1]), start=1):
        exec(compile(cell, f"{sys.argv[1]}, code cell {number}", "exec"), names)
