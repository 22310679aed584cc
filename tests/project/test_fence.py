"""The fence: which room may import which. Late imports and those for types are arrows, too.

The way of the data is from the top of `MAY_IMPORT` to its bottom; a room may only import what stands above it.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import networkx
import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "checkmate_tf"
MOST_FILES = 12  # at the top of a room
VALUES = "errors units graph"  # what every room may import
PLANS = f"{VALUES} statements files draw plan schedule operators"

MAY_IMPORT = {
    "errors": "",
    "units": "errors",
    "graph": "errors",
}
