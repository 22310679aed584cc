"""`checkmate-tf check`, with what it found kept as JSON and Markdown: does everything hold on this machine?

For each device: allocator statistics, its limit, budgets of six networks, step times, bits, other precisions, XLA,
Keras's own recomputation. The page of the benchmarks says what each line means.

    python benchmarks/product/device_check.py --name cpu                     # every device here, ten minutes each
    python benchmarks/product/device_check.py --name card --device GPU:0     # only this one
    python benchmarks/product/device_check.py --name card --merge A.json B.json     # checks made elsewhere, in parts
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.lib.options import options_for
from benchmarks.lib.paths import ROOT

FORMAT = "checkmate-check/1"


def main() -> int:
    parser = options_for(__doc__, "device_check")
    parser.add_argument("--name", required=True, help="of the files that are written")
    parser.add_argument("--device", nargs="*", default=[], help="only these")
    parser.add_argument("--network", nargs="*", default=[], help="only these")
    parser.add_argument("--memory", help="what plain steps fill")
    parser.add_argument("--seconds", help="for each device (default 600)")
    parser.add_argument("--merge", nargs="*", type=Path, help="run nothing: join these files of `check --output`")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    page, data = (options.output / f"{options.name}{end}" for end in (".md", ".json"))
    if options.merge:
        document = merged([json.loads(path.read_text(encoding="utf-8")) for path in options.merge])
        data.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        page.write_text(as_markdown(document), encoding="utf-8")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        asked = [part for device in options.device for part in ("--device", device)]
        asked += [part for network in options.network for part in ("--network", network)]
        for name in ("memory", "seconds"):
            asked += [f"--{name}", getattr(options, name)] if getattr(options, name) else []
        command = [sys.executable, "-m", "checkmate_tf", "check", "--output", folder, *asked]
        status = subprocess.run(command, cwd=ROOT, check=False).returncode
        for found, kept in (("check.json", data), ("check.md", page)):
            if (Path(folder) / found).read_text(encoding="utf-8"):
                shutil.copy(Path(folder) / found, kept)
    return status


def merged(documents: Sequence[dict]) -> dict:
    """One document of several about the same machine: of lines about the same thing the first counts."""
    lines: dict[tuple[str, str], dict] = {}
    for document in documents:
        if document.get("format") != FORMAT:
            raise SystemExit(f"not a {FORMAT} file: its format is {document.get('format')!r}")
        for line in document["lines"]:
            lines.setdefault((line["device"], line["what"]), line)
    seconds = sum(document["seconds"] for document in documents)
    return {**documents[0], "seconds": round(seconds, 1), "lines": list(lines.values())}


def as_markdown(document: dict) -> str:
    """The table of `checkmate-tf check`."""
    from checkmate_tf.check.line import Line
    from checkmate_tf.check.run import Checked
    from checkmate_tf.cli.machine.check import as_markdown as table

    return table(Checked(document["machine"], [Line(**line) for line in document["lines"]], document["seconds"]))


if __name__ == "__main__":
    raise SystemExit(main())
