"""Steps of a U-Net that an H200 ran, from its allocator's record: what is kept of kernels is enough to place them.

Each record has the events of one step in strict order: an allocation or a free, the bytes that were asked for, where
the chunk lies and its bytes, the bytes in use after it, and the operation. `own` tells the memory that a kernel took
for itself.
"""

from __future__ import annotations

from itertools import count
from pathlib import Path

import numpy as np
import pytest

from checkmate_tf.allocator.bfc import FREE, Bfc, Events, place
from checkmate_tf.allocator.held import held_while_running
from checkmate_tf.allocator.workspace import Workspace

RECORDS = sorted((Path(__file__).parent / "records").glob("*.npz"))
CARD = Bfc(8 * 10**9, growth=False, collecting=True)


class Record:
    """The events of one step."""

    def __init__(self, path):
        with np.load(path) as columns:
            self.allocates, self.bytes, self.address, self.in_use, self.operation, self.own, self.chunk = (
                columns[name] for name in ("allocates", "requested", "address", "in_use", "operation", "own", "chunk")
            )
        self.before = int(self.in_use[0]) - int(self.chunk[0]) * (1 if self.allocates[0] else -1)
        self.who, lies = [], {}  # of each event: the event that allocated; None if that came before the record
        for k, (allocation, where) in enumerate(zip(self.allocates, self.address.tolist(), strict=True)):
            self.who.append(k if allocation else lies.pop(where, None))
            if allocation:
                lies[where] = k

    @property
    def workspaces(self):
        roles = np.where(self.own, "temp", "output").tolist()
        one_thread = np.zeros(len(self.own), np.int64)
        return held_while_running(
            self.allocates, self.bytes, self.address, one_thread, self.operation.tolist(), roles
        )  # fmt: skip

    def run_from(self, k):
        """The end of the run of an operation that begins at an event, and what it allocated."""
        mine, end = [], k
        while end < len(self.who):
            if self.allocates[end] and self.operation[end] == self.operation[k]:
                mine.append(end)
            elif self.allocates[end] or self.who[end] not in mine:
                break
            end += 1
        return end, mine

    def events(self, workspaces):
        """The step again, where each kernel takes no more of its own than that, and makes its results once."""
        events, others, k = [], count(len(self.who)), 0
        while k < len(self.who):
            end, mine = self.run_from(k) if self.allocates[k] and self.operation[k] else (k, [])
            own = workspaces.get(self.operation[k], Workspace())
            if not (mine and own.bytes):
                end = max(end, k + 1)
                events += [self._event(j) for j in range(k, end) if self.who[j] is not None]
            else:
                freed = [self.who[j] for j in range(k, end) if not self.allocates[j]]
                results, gone = [j for j in mine if j not in freed], []
                room = sum(int(self.bytes[j]) for j in mine if not self.own[j]) - int(self.bytes[results].sum())
                for j in reversed(freed):
                    if self.bytes[j] <= room:
                        gone.append(j)
                        room -= int(self.bytes[j])
                before, after = ([(next(others), size) for size in sizes] for sizes in (own.before, own.after))
                events += before + [(j, int(self.bytes[j])) for j in sorted(results + gone)] + after
                events += [(name, FREE) for name, _ in before + after] + [(j, FREE) for j in gone]
            k = end
        return events

    def _event(self, j):
        return self.who[j], int(self.bytes[j]) if self.allocates[j] else FREE

    def peak(self, events):
        there = next(count(10**6))
        ids, sizes = zip((there, self.before), *events, strict=True)
        return int(place(CARD, Events(np.array(ids), np.array(sizes))).bytes_in_use.max())


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_the_peak_is_that_of_the_card(path):
    record = Record(path)
    found = record.workspaces
    assert sum(bool(own.before) for own in found.values()) >= 15, "results that are made last"
    assert record.peak(record.events(found)) == pytest.approx(record.in_use.max(), rel=1e-3)


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_where_workspaces_lie_decides(path):
    """All in one chunk after the results, they would be some percent off."""
    record = Record(path)
    together = {name: Workspace(after=(own.bytes,)) for name, own in record.workspaces.items() if own.bytes}
    assert abs(record.peak(record.events(together)) / record.in_use.max() - 1) > 0.05
