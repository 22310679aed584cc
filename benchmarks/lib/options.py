"""Options of scripts: what all take, and `--child`, by which a script answers a request in a process of its own."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

from benchmarks.lib.paths import RESULTS

__all__ = ["common_options", "options_for", "serve_child"]


def options_for(doc: str | None, name: str) -> argparse.ArgumentParser:
    """A parser with --output (by default `results/NAME`) and --child; its help is the script's docstring."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=RESULTS / name, help=f"folder (default: results/{name})")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    return parser


def common_options(doc: str | None, name: str, quick: str, full: str) -> argparse.ArgumentParser:
    """As `options_for`, with --quick, --full, --again and --draw."""
    parser = options_for(doc, name)
    parser.add_argument("--quick", action="store_true", help=f"{quick} (the default)")
    parser.add_argument("--full", action="store_true", help=full)
    parser.add_argument("--again", action="store_true", help="run what has a result, too")
    parser.add_argument("--draw", action="store_true", help="run nothing: table and picture of what is in the folder")
    return parser


def serve_child(options: argparse.Namespace, answer: Callable[[dict], dict]) -> bool:
    """In a child process: print the answer to its request. Whether this is one."""
    if not options.child:
        return False
    print("RESULT " + json.dumps(answer(json.loads(options.child))), flush=True)
    return True
