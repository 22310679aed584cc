"""Which nodes run as soon as what they read is there.

Small operations are not told to wait for their turn (see `emit.emit`). So they run when they can, wherever a plan has
them: the gradient of a small filter, say, which reads an activation and takes as long as a large one's.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .ops import FUSED_LATER, is_stateful
from .program import SMALL, Program

__all__ = ["ungated"]


def ungated(program: Program) -> NDArray[np.bool_]:
    """(n,) which nodes of a program's graph run as soon as what they read is there.

    All operations of such a node are small, without effects, and wait for nothing that they do not read. Padding is
    left out: a convolution may do it, later.
    """
    found = np.zeros(len(program.graph), bool)
    for node, operations in enumerate(program.nodes):
        found[node] = bool(operations) and all(
            program.classes[op] == SMALL
            and op.type not in FUSED_LATER
            and not is_stateful(op)
            and not program.step.controls_of(op)
            for op in operations
        )
    return found
