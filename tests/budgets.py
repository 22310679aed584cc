"""Budgets that mean the same on every machine and version: shares of the way from the least peak to the plain step's.

Graphs differ from one version of Keras to another, and what kernels take for themselves from one processor to another.
A test that needs "a budget under which something is recomputed" asks for a share, and never for so many bytes.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from cases import Case, compile_quickly, make, program_of

from checkmate_tf.graph import Graph
from checkmate_tf.schedule import keep_all
from checkmate_tf.strategies.search.minimum_budget import minimum_budget

__all__ = ["Peaks", "measured_plain_bytes", "peaks_of", "peaks_of_graph"]

_SECONDS = 3.0  # to look for the least peak: the graphs have tens of nodes


@dataclass(frozen=True)
class Peaks:
    """Between what the step of a model's batch needs at the least, as far as is known, and what it takes plain.

    Attributes
    ----------
    least_bytes, plain_bytes : int
        Constants included.
    """

    least_bytes: int
    plain_bytes: int

    def span(self, share: float = 1.0) -> int:
        """So much of the difference, in bytes."""
        return int(share * (self.plain_bytes - self.least_bytes))

    def at(self, share: float) -> int:
        """The least, and so much of the difference: 0 is the least, 1 the plain peak, and above it lies room."""
        return self.least_bytes + self.span(share)


def peaks_of_graph(graph: Graph) -> Peaks:
    """Those of a graph, with the workspaces that it has."""
    return Peaks(minimum_budget(graph, _SECONDS)[1], keep_all(graph).peak_bytes)


@functools.cache
def peaks_of(case: Case) -> Peaks:
    """By prediction, on a device whose kernels take nothing for themselves: those of `allocators.py`."""
    return peaks_of_graph(program_of(make(case), case).graph)


@functools.cache
def measured_plain_bytes(case: Case) -> int:
    """What the allocator of this machine says of the plain step, and of all that is there beside it."""
    return compile_quickly(make(case), case, verify=True, budget="10GB").checkmate.measured_peak_bytes
