"""Which nodes run as soon as what they read is there, wherever a plan has them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .partition.classes import runs_when_ready
from .program import Program

__all__ = ["ungated"]


def ungated(program: Program) -> NDArray[np.bool_]:
    """(n,) which nodes of a program's graph are made of nothing but operations that run when they are ready."""
    free = [
        bool(group) and all(runs_when_ready(op, program.classes, program.step.controls_of) for op in group)
        for group in program.nodes
    ]
    return np.array(free + [False] * (len(program.graph) - len(free)), bool)
