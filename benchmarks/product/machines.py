"""Does it work on other machines than the one that wrote it? The suite, and three networks, in a matrix of settings.

A cell is one setting of processor, cores, neighbours and versions. In each the whole test suite is run, and three
networks of `budget_holds.py` train at 60% of their activation peak, which have to stay within the budget
and equal the plain model bit by bit. What came of it is kept in `results/machines/`, a file a cell, with the commit;
the table is written into `docs/machines.md`. A cell that passed at this commit is not run again.

    python benchmarks/product/machines.py                        # all cells: some hours on two cores
    python benchmarks/product/machines.py --cells avx2 one-core  # only these
    python benchmarks/product/machines.py --suite                # only the suite; --networks: only the networks
    python benchmarks/product/machines.py --table                # only write the table, from what is there
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.lib.paths import RESULTS, ROOT
from benchmarks.lib.provenance import commit, processor

KEPT = RESULTS / "machines"
PAGE = ROOT / "docs" / "machines.md"
SCRATCH = ROOT / ".machines"  # logs, and the environment of the oldest versions
BEGIN, END = "<!-- matrix: made by benchmarks/product/machines.py -->\n", "<!-- end of the matrix -->\n"
NETWORKS = ("mobilenet", "unet", "lstm")
SHARE = 0.6  # of the activation peak
SHOWN = ("tensorflow", "keras", "numpy", "numba", "ortools", "gurobipy")
CAPPED = "sixteen_bits"  # a marker of tests; see tests/conftest.py


@dataclass(frozen=True)
class Cell:
    """A setting.

    Attributes
    ----------
    title : str
    environment : mapping
        Variables for all that is run.
    one_core : bool
        Else all that this process may use.
    busy : bool
        Beside as many processes that only compute as there are cores.
    oldest : bool
        The oldest versions that `setup.py` admits, without gurobipy; else those of this environment.
    """

    title: str
    environment: Mapping[str, str] = field(default_factory=dict)
    one_core: bool = False
    busy: bool = False
    oldest: bool = False

    @property
    def capped(self) -> bool:
        """Whether oneDNN is held below what TensorFlow believes of the processor: 16-bit kernels are missing then."""
        return "ONEDNN_MAX_CPU_ISA" in self.environment


CELLS = {
    "own": Cell("the machine as it is, newest versions"),
    "sse41": Cell("oneDNN at SSE4.1", {"ONEDNN_MAX_CPU_ISA": "SSE41"}),
    "avx2": Cell("oneDNN at AVX2", {"ONEDNN_MAX_CPU_ISA": "AVX2"}),
    "avx512": Cell("oneDNN at AVX-512 (core)", {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"}),
    "no-onednn": Cell("oneDNN off", {"TF_ENABLE_ONEDNN_OPTS": "0"}),
    "one-core": Cell("one core", one_core=True),
    "busy": Cell("beside processes that keep all cores busy", busy=True),
    "oldest": Cell("oldest versions, without gurobipy", oldest=True),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", nargs="+", choices=CELLS, default=list(CELLS), metavar="CELL", help=", ".join(CELLS))
    parser.add_argument("--suite", action="store_true", help="run the suite, and not the networks")
    parser.add_argument("--networks", action="store_true", help="run the networks, and not the suite")
    parser.add_argument("--table", action="store_true", help="run nothing")
    options = parser.parse_args()
    parts = {"suite": run_suite, "networks": run_networks}
    if options.suite or options.networks:
        parts = {name: part for name, part in parts.items() if getattr(options, name)}
    for name in [] if options.table else options.cells:
        for part, run in parts.items():
            here = commit()
            if good(read(name).get(part)) and read(name)[part]["commit"] == here and not here.endswith("+"):
                print(f"{name}, {part}: passed before", flush=True)
                continue
            begun = time.perf_counter()
            with prepared(CELLS[name]) as (python, environment):
                found = {"commit": commit(), **machine(python, environment), **run(name, python, environment)}
            found["minutes"] = round((time.perf_counter() - begun) / 60, 1)
            write(name, {**read(name), part: found})
            write_page()
            print(f"{name}, {part}: {json.dumps(found)}", flush=True)
    print("\n".join(write_page()))
    sys.exit(not all(good(read(name).get(part)) for name in options.cells for part in parts))


@contextlib.contextmanager
def prepared(cell: Cell) -> Iterator[tuple[Path, dict[str, str]]]:
    """The interpreter and the environment of a cell, while its neighbours compute and its core is the only one."""
    python = oldest_python() if cell.oldest else Path(sys.executable)
    environment = {**os.environ, **cell.environment, "TF_CPP_MIN_LOG_LEVEL": "2"}
    cores = os.sched_getaffinity(0)
    neighbours = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in cores if cell.busy]
    if cell.one_core:
        os.sched_setaffinity(0, {max(cores)})  # what is started inherits it
    try:
        yield python, environment
    finally:
        os.sched_setaffinity(0, cores)
        for process in neighbours:
            process.kill()
            process.wait()


def oldest_python() -> Path:
    """An interpreter with the oldest versions that `setup.py` admits, resolved by uv, and without gurobipy."""
    folder = SCRATCH / "oldest"
    python, stamp = folder / "bin" / "python", folder / "setup.py"
    wanted = (ROOT / "setup.py").read_text(encoding="utf-8")
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != wanted:
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "uv"]
        subprocess.run(pip, check=True)
        uv = [str(python), "-m", "uv", "pip"]
        within = {**os.environ, "VIRTUAL_ENV": str(folder)}
        asked = ["--resolution", "lowest-direct", "--editable", ".[test,demo]"]
        subprocess.run([*uv, "install", "--quiet", *asked], check=True, cwd=ROOT, env=within)
        subprocess.run([*uv, "uninstall", "--quiet", "gurobipy"], check=True, cwd=ROOT, env=within)
        stamp.write_text(wanted, encoding="utf-8")
    return python


def run_suite(name: str, python: Path, environment: Mapping[str, str]) -> dict[str, Any]:
    """Outcomes of all tests, counted; those that failed, and why some were skipped."""
    SCRATCH.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, (SCRATCH / f"{name}.log").open("w") as log:
        command = ["make", "--keep-going", "pytest", f"BIN={python.parent}", f"RESULTS={folder}"]
        if CELLS[name].capped:
            command.append(f"MARKED=not {CAPPED}")
        subprocess.run(command, cwd=ROOT, env=dict(environment), stdout=log, stderr=log, check=False)
        return outcomes(*(Path(folder) / f"{part}.xml" for part in ("solvers", "others")))


def outcomes(*paths: Path) -> dict[str, Any]:
    """What files that `pytest --junitxml` wrote say; a file that is missing is a failure of its own."""
    counts, failed, skipped = {"passed": 0, "failed": 0, "skipped": 0}, [], {}
    for path in paths:
        if not path.exists():
            counts["failed"] += 1
            failed.append(f"no outcome: {path.name}")
            continue
        for case in ElementTree.parse(path).iter("testcase"):
            kinds = {child.tag: child for child in case}
            if kinds.keys() & {"failure", "error"}:
                counts["failed"] += 1
                failed.append(f"{case.get('classname')}::{case.get('name')}")
            elif "skipped" in kinds:
                counts["skipped"] += 1
                why = kinds["skipped"].get("message", "")
                skipped[why] = skipped.get(why, 0) + 1
            else:
                counts["passed"] += 1
    return {**counts, "which_failed": failed, "why_skipped": skipped}


def run_networks(name: str, python: Path, environment: Mapping[str, str]) -> dict[str, Any]:
    """The networks at a share of their activation peak: budget, peaks, and whether all bits are equal."""
    found = []
    SCRATCH.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, (SCRATCH / f"{name}-networks.log").open("w") as log:
        command = [str(python), "benchmarks/product/budget_holds.py", "--no-limits", "--no-itself", "--output", folder]
        command += ["--fractions", str(SHARE), "--networks", *NETWORKS]
        subprocess.run(command, cwd=ROOT, env=dict(environment), stdout=log, stderr=log, check=False)
        for network in NETWORKS:
            path = Path(folder) / f"cell-{network}-{SHARE}.json"
            cell = json.loads(path.read_text()) if path.exists() else {"failed": "was not run"}
            kept = ("budget", "peak_bytes", "fit_peak_bytes", "bit_equal", "overhead", "infeasible", "failed", "stderr")
            found.append({"network": network, **{key: cell[key] for key in kept if key in cell}})
    return {"cells": found}


def good(found: Mapping[str, Any] | None) -> bool:
    """Whether a part of a cell was run, and nothing in it failed."""
    if found is None:
        return False
    return all(within_budget(cell) for cell in found["cells"]) if "cells" in found else not found["failed"]


def within_budget(cell: Mapping[str, Any]) -> bool:
    """Whether a network trained within its budget, and exactly."""
    return bool(cell.get("bit_equal")) and max(cell["peak_bytes"], cell["fit_peak_bytes"]) <= cell["budget"]


def machine(python: Path, environment: Mapping[str, str]) -> dict[str, Any]:
    """Processor, cores and versions."""
    every = "{d.name.lower(): d.version for d in m.distributions()}"
    ask = f"import importlib.metadata as m, json; print(json.dumps({every}))"
    told = subprocess.run([str(python), "-c", ask], capture_output=True, text=True, check=True, env=dict(environment))
    versions = json.loads(told.stdout)
    shown = {name: versions.get(name, "absent") for name in SHOWN}
    return {
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        **shown,
    }


def read(name: str) -> dict[str, Any]:
    path = KEPT / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def write(name: str, found: Mapping[str, Any]) -> None:
    KEPT.mkdir(parents=True, exist_ok=True)
    (KEPT / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def write_page() -> list[str]:
    """The lines of the table in the page, made anew."""
    lines = table({name: read(name) for name in CELLS})
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8"), lines), encoding="utf-8")
    return lines


def table(results: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The table's lines, in Markdown."""
    lines = [
        "| cell | versions | suite: passed, failed, skipped | networks at 60%: peak of the budget, bits | commit |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, found in results.items():
        suite, networks = found.get("suite"), found.get("networks")
        some = suite or networks or {}
        versions = f"TensorFlow {some['tensorflow']}, Keras {some['keras']}" if some else ""
        if some.get("gurobipy") == "absent":
            versions += ", no gurobipy"
        said = f"{suite['passed']}, {suite['failed']}, {suite['skipped']}" if suite else "not run"
        if suite and CELLS[name].capped:
            said += " (16-bit types left out)"
        trained = "; ".join(_trained(cell) for cell in networks["cells"]) if networks else "not run"
        commits = sorted({part["commit"] for part in found.values()})
        lines.append(f"| `{name}`: {CELLS[name].title} | {versions} | {said} | {trained} | {', '.join(commits)} |")
    return lines


def _trained(cell: Mapping[str, Any]) -> str:
    if "peak_bytes" not in cell:
        return f"{cell['network']} {'refused' if 'infeasible' in cell else cell.get('failed', 'not run')}"
    share = max(cell["peak_bytes"], cell["fit_peak_bytes"]) / cell["budget"]
    return f"{cell['network']} {share:.0%}, {'equal' if cell['bit_equal'] else 'NOT EQUAL'}"


def table_in(text: str) -> list[str]:
    """The lines between the two marks of the page."""
    return text.split(BEGIN)[1].split(END)[0].strip().splitlines()


def with_table(text: str, lines: list[str]) -> str:
    """The page with another table."""
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n" + "\n".join(lines) + f"\n\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    main()
