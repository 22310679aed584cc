"""The README and the guide in docs/: their Python runs and prints what they say it prints; links lead somewhere.

The guide leaves out no error and no public name, and the README stays short enough to be read.

The blocks of a page are one program, run in order. A block of `output` right after one of Python is what that prints;
`...` stands for anything. A comment above a block, `<!-- not run: the reason -->`, keeps it from being run. Below
`<!-- saved as: name.py -->` a block is a file beside the program, for it to import.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import itertools
import re
import subprocess
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import checkmate_tf
from checkmate_tf import errors

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(path.stem for path in DOCS.glob("*.md"))
WITH_CODE = ["README", *PAGES]
LINKING = sorted(
    path.relative_to(ROOT).as_posix() for folder in ("", "docs", "benchmarks") for path in (ROOT / folder).glob("*.md")
)
MOST_LINES = 200  # of the README: five minutes
FENCE = re.compile(r"(?P<above>[^\n]*\n)?^```(?P<language>[^\n`]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
NOT_RUN = re.compile(r"<!-- not run: (?P<reason>.+) -->")
SAVED = re.compile(r"<!-- saved as: (?P<file>\w+\.py) -->")
LINK = re.compile(r"\[(?:[^\[\]]|\[[^\]]*\])*\]\((?P<target>[^()\s]+)\)")
HEADING = re.compile(r"^#{1,6} (?P<title>.+)$", re.MULTILINE)
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@dataclass(frozen=True)
class Block:
    """A fenced block of a page.

    Attributes
    ----------
    line : int
        Of its first line in the page, from 1.
    language, text : str
    above : str
        The line before the fence.
    """

    line: int
    language: str
    text: str
    above: str

    @property
    def runs(self) -> bool:
        return self.language == "python" and not NOT_RUN.fullmatch(self.above)

    @property
    def saved_as(self) -> str:
        """Name of the file that it is; empty if it is a part of the program."""
        match = SAVED.fullmatch(self.above)
        return match["file"] if match else ""


def blocks_of(text: str) -> Iterator[Block]:
    for match in FENCE.finditer(text):
        line = text.count("\n", 0, match.start("text")) + 1
        yield Block(line, match["language"], match["text"], (match["above"] or "").strip())


def run(text: str, source: str) -> None:
    """Run the Python of a page, and compare what it prints."""
    names: dict[str, object] = {"__name__": "__main__"}
    printed = ""
    for block in blocks_of(text):
        if block.saved_as:
            Path(block.saved_as).write_text(block.text, encoding="utf-8")
        elif block.runs:
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(compile("\n" * (block.line - 1) + block.text, source, "exec"), names)
            printed = out.getvalue()
        elif block.language == "output":
            wanted = doctest.Example("", block.text)
            if not doctest.OutputChecker().check_output(block.text, printed, FLAGS):
                difference = doctest.OutputChecker().output_difference(wanted, printed, FLAGS)
                pytest.fail(f"{source}, line {block.line}: {difference}", pytrace=False)


def place(name: str) -> Path:
    return ROOT / "README.md" if name == "README" else DOCS / f"{name}.md"


def page(name: str) -> str:
    return place(name).read_text(encoding="utf-8")


@pytest.mark.long(but=("README",))
@pytest.mark.parametrize("name", [name for name in WITH_CODE if any(block.runs for block in blocks_of(page(name)))])
def test_the_code_of_a_page_runs(name, tmp_path):
    """In a process of its own, as a reader's: models of other tests would share the device with it."""
    child = [sys.executable, __file__, name]
    done = subprocess.run(child, cwd=tmp_path, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


GOOD = """
```python
print("one", 2)
```

```output
one ...
```

<!-- not run: there is no such name -->
```python
nobody
```
"""


def test_what_is_printed_is_compared():
    run(GOOD, "page")
    with pytest.raises(pytest.fail.Exception, match="page, line 7"):
        run(GOOD.replace("one ...", "two ..."), "page")


def test_a_block_can_be_a_file_to_import(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    text = "<!-- saved as: its_file.py -->\n```python\nX = 7\n```\n```python\nfrom its_file import X\nprint(X)\n```\n"
    run(text + "\n```output\n7\n```\n", "page")


def test_what_fails_says_where():
    with pytest.raises(NameError) as error:
        run(GOOD.replace("not run: ", ""), "page")
    last = traceback.extract_tb(error.tb)[-1]
    assert (last.filename, last.lineno) == ("page", 12)


@pytest.mark.parametrize("name", WITH_CODE)
def test_fences_are_closed_and_known(name):
    text = page(name)
    blocks = list(blocks_of(text))
    assert text.count("```") == 2 * len(blocks)
    known = {"python", "output", "console", "json", "{toctree}", "{eval-rst}"}
    assert {block.language for block in blocks} <= known
    assert all(NOT_RUN.fullmatch(b.above) or SAVED.fullmatch(b.above) for b in blocks if b.above.startswith("<!--"))


def test_every_page_is_in_the_table_of_contents():
    listed = [line for block in blocks_of(page("index")) for line in block.text.splitlines() if line in PAGES]
    assert sorted([*listed, "index"]) == PAGES


def test_the_readme_can_be_read_in_five_minutes():
    assert len(page("README").splitlines()) <= MOST_LINES


def without_blocks(text: str) -> str:
    return FENCE.sub(lambda match: match["above"] or "", text)


def without_code(text: str) -> str:
    return re.sub(r"`[^`\n]*`", "code", without_blocks(text))


def links_of(text: str) -> list[str]:
    """Targets of a page's links and pictures that lead to files of the project."""
    targets = [match["target"] for match in LINK.finditer(without_code(text))]
    return [target for target in targets if not re.match(r"[a-z]+:", target)]


def anchors_of(text: str) -> set[str]:
    """What headings are called in links, as GitHub and MyST have it."""
    found: set[str] = set()
    for match in HEADING.finditer(without_blocks(text)):
        title = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", match["title"].strip())
        slug = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
        again = next(number for number in itertools.count() if (f"{slug}-{number}" if number else slug) not in found)
        found.add(f"{slug}-{again}" if again else slug)
    return found


def dead_links(path: Path) -> list[str]:
    dead = []
    for link in links_of(path.read_text(encoding="utf-8")):
        file, _, anchor = link.partition("#")
        target = path.parent / file if file else path
        if not target.exists() or (anchor and anchor not in anchors_of(target.read_text(encoding="utf-8"))):
            dead.append(link)
    return dead


@pytest.mark.parametrize("name", LINKING)
def test_links_lead_to_files_and_headings(name):
    assert dead_links(ROOT / name) == []


def test_dead_links_are_found(tmp_path):
    (tmp_path / "other.md").write_text("# One\n\n## `two.py`: a, b_c & d\n\n## One\n")
    good = "[a](other.md) [b](other.md#one) [c](other.md#two-py-a) [`d`](other.md#twopy-a-b_c--d) ![e](other.md#one-1)"
    text = f"# Here\n{good} [f](no.md) [g](#here) [h](#there)\n[i](https://x.y) `[j](k.md)`\n```json\n[k](l.md)\n```\n"
    (tmp_path / "page.md").write_text(text)
    assert dead_links(tmp_path / "page.md") == ["other.md#two-py-a", "no.md", "#there"]


def raised() -> list[str]:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    return [kind.__name__ for kind in kinds if issubclass(kind, errors.CheckmateError) and kind.__subclasses__() == []]


@pytest.mark.parametrize("name", raised())
def test_every_error_is_explained_and_shown(name):
    """Each has a section, with a program that catches it."""
    sections = re.split(r"^## ", page("troubleshooting"), flags=re.MULTILINE)
    section = next((s for s in sections if s.startswith(f"`{name}`")), "")
    shown = "".join(block.text for block in blocks_of(section) if block.runs)
    assert f"except checkmate_tf.{name}" in shown


def test_every_public_name_is_in_the_reference():
    missing = [name for name in checkmate_tf.__all__ if not re.search(rf":: checkmate_tf\.{name}$", page("api"), re.M)]
    assert not missing


if __name__ == "__main__":
    sys.path.insert(0, "")  # as for a program that lies where it runs
    run(page(sys.argv[1]), str(place(sys.argv[1])))
