"""The table of what works in `docs/support.md`: each feature that a test is marked with, and what became of its tests.

A test says what it shows by a marker; words after the name restrict it to some cases of a parametrized test:

    @pytest.mark.feature("Models", "shared layers", name="shared_layers")
    @pytest.mark.feature("Training", "gradient clipping", name=["clipnorm", "clipvalue"], note="plans again")
    @pytest.mark.feature("XLA", "jit_compile=True", refused="the reason, in a few words")

`tests/conftest.py` writes the features of each test into its result, hence into what `pytest --junitxml` writes.
Outcomes are kept in `results/support/outcomes.json`; those of a test file are replaced when it is run again.

    python benchmarks/product/support.py                         # all marked tests, a process a file; write the table
    python benchmarks/product/support.py --files test_models.py  # only these files; the rest is as it was
    python benchmarks/product/support.py --junit a.xml b.xml     # from parts of a run that was made: run nothing
"""

from __future__ import annotations

import argparse
import ast
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.lib.paths import RESULTS, ROOT

TESTS, PAGE = ROOT / "tests", ROOT / "docs" / "support.md"
OUTCOMES = RESULTS / "support" / "outcomes.json"
GROUPS = ("Models", "Training", "XLA", "Many devices and machines", "Schedules that last", "Faults")
BEGIN, END = "<!-- support table: made by benchmarks/product/support.py -->\n", "<!-- end of the support table -->\n"

# outcomes by file, then by test: {"outcome": "passed", "features": ["Models: shared layers"]}
Outcomes = dict[str, dict[str, dict[str, object]]]


@dataclass(frozen=True)
class Feature:
    """A row of the table.

    Attributes
    ----------
    group, name : str
    refused : str
        Why, if it is refused; then its tests show the refusal.
    note : str
    """

    group: str
    name: str
    refused: str = ""
    note: str = ""

    def __str__(self) -> str:
        return f"{self.group}: {self.name}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", nargs="+", help="run only these, by name; default: all that have marked tests")
    parser.add_argument("--junit", nargs="+", type=Path, help="take these results instead of running tests")
    options = parser.parse_args()
    outcomes = read_outcomes()
    if options.junit:
        outcomes |= outcomes_of(*options.junit)
    else:
        for name in options.files or files_with_features():
            print(name, flush=True)
            outcomes |= run_file(name)
            write_outcomes(outcomes)
    write_outcomes({name: outcomes[name] for name in files_with_features() if name in outcomes})
    lines = table(marked_features(), read_outcomes())
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8"), lines), encoding="utf-8")
    bad = [line for line in lines if "**fails**" in line or "not run" in line]
    print("\n".join(bad) or f"{len(lines)} lines, no failure")
    sys.exit(bool(bad))


def features_in(source: str) -> list[tuple[Feature, int]]:
    """The features that a test file is marked with, each with its line.

    Raises
    ------
    ValueError
        If a marker has not a known group and a name, or is not made of constants.
    """
    found = []
    for node in ast.walk(ast.parse(source)) if "mark.feature(" in source else []:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "feature":
            names = [ast.literal_eval(argument) for argument in node.args]
            told = {k.arg: ast.literal_eval(k.value) for k in node.keywords if k.arg in ("refused", "note")}
            if len(names) != 2 or names[0] not in GROUPS:
                raise ValueError(f"line {node.lineno}: give a group ({', '.join(GROUPS)}) and a name, not {names}")
            found.append((Feature(*names, **told), node.lineno))
    return sorted(found, key=lambda pair: pair[1])


def marked_features(folder: Path = TESTS) -> list[Feature]:
    """All marked features in the order of the table: by group, what works before what is refused, then as marked.

    Raises
    ------
    ValueError
        If two markers of one feature disagree on why it is refused.
    """
    features: dict[str, Feature] = {}
    for path in files_of_tests(folder):
        for feature, line in features_in(path.read_text(encoding="utf-8")):
            known = features.setdefault(str(feature), feature)
            if known.refused != feature.refused:
                raise ValueError(
                    f"{path.name}, line {line}: {feature} is refused for another reason, or works, elsewhere"
                )
            if feature.note and not known.note:
                features[str(feature)] = feature
    return sorted(features.values(), key=lambda feature: (GROUPS.index(feature.group), bool(feature.refused)))


def files_of_tests(folder: Path) -> list[Path]:
    """All test files below a folder, by name: their names differ, whatever room they are in."""
    return sorted(folder.rglob("test_*.py"), key=lambda path: path.name)


def files_with_features(folder: Path = TESTS) -> list[str]:
    return [p.name for p in files_of_tests(folder) if features_in(p.read_text(encoding="utf-8"))]


def run_file(name: str) -> Outcomes:
    """Run the marked tests of a file in a process of their own (those with OR-Tools must be apart from TensorFlow)."""
    found = next(path for path in files_of_tests(TESTS) if path.name == name)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "junit.xml"
        command = [sys.executable, "-m", "pytest", "-m", "feature", f"--junitxml={path}", str(found)]
        subprocess.run(command, check=False, cwd=ROOT)
        return outcomes_of(path)


def outcomes_of(*paths: Path) -> Outcomes:
    """Outcomes of the marked tests in files that `pytest --junitxml` wrote, parts of one run of the suite."""
    outcomes: Outcomes = {}
    for case in (case for path in paths for case in ElementTree.parse(path).iter("testcase")):
        features = [p.get("value", "") for p in case.iter("property") if p.get("name") == "feature"]
        if features:
            module = next(part for part in case.get("classname", "").split(".") if part.startswith("test_"))
            kinds = {child.tag for child in case}
            outcome = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
            known = outcomes.setdefault(f"{module}.py", {})
            known[case.get("name", "")] = {"outcome": outcome, "features": features}
    return outcomes


def read_outcomes(path: Path = OUTCOMES) -> Outcomes:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def write_outcomes(outcomes: Outcomes, path: Path = OUTCOMES) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(outcomes, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def table(features: Iterable[Feature], outcomes: Mapping[str, Mapping[str, Mapping[str, object]]]) -> list[str]:
    """The table's lines, in Markdown."""
    lines, group = ["| feature | | tests |", "| --- | --- | --- |"], ""
    for feature in features:
        if feature.group != group:
            group = feature.group
            lines.append(f"| **{group}** | | |")
        found = {
            f"{name}::{test}": told["outcome"]
            for name, tests in outcomes.items()
            for test, told in tests.items()
            if str(feature) in told["features"]  # type: ignore[operator]
        }
        lines.append(f"| {feature.name} | {_verdict(feature, found)} | {len(found)} |")
    return lines


def _verdict(feature: Feature, found: Mapping[str, object]) -> str:
    failed = [name for name, outcome in found.items() if outcome == "failed"]
    if failed:
        return f"**fails**: {', '.join(failed)}"
    if "passed" not in found.values():
        return "skipped here" if found else "not run"
    said = f"refused: {feature.refused}" if feature.refused else "works"
    return f"{said}; {feature.note}" if feature.note else said


def table_in(text: str) -> list[str]:
    """The lines between the two marks of a page.

    Raises
    ------
    ValueError
        If the page does not have each mark once.
    """
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise ValueError(f"the page must have each of these lines once: {BEGIN.strip()} {END.strip()}")
    return text.split(BEGIN)[1].split(END)[0].strip().splitlines()


def with_table(text: str, lines: Iterable[str]) -> str:
    """The page with another table."""
    table_in(text)
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n" + "\n".join(lines) + f"\n\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    main()
