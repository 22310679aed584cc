"""Small nodes made of operations, drawn by Hypothesis, and a plain model of what they allocate."""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np
from hypothesis import strategies as st

from checkmate_tf.allocator.sequence import Kernels
from checkmate_tf.allocator.workspace import NOTHING, Workspace


@st.composite
def kernels_and_sequences(draw, most_nodes=5, most_computations=9, most_operations=3):
    """Kernels of a few nodes, and a sequence of them: each after what it reads, some computed again."""
    nodes = draw(st.integers(1, most_nodes))
    operations, outputs, reads, read = [0], [0], [0], []
    sizes, pieces, kept, takes_over, own = [], [], [], [], []
    for _ in range(nodes):
        for _ in range(draw(st.integers(0, most_operations))):
            earlier = list(range(len(sizes)))
            read += draw(st.lists(st.sampled_from(earlier), max_size=3, unique=True)) if earlier else []
            reads.append(len(read))
            count = draw(st.integers(0, 2))
            for _ in range(count):
                sizes.append(draw(st.sampled_from([0, 100, 600, 600, 1800])))
                pieces.append(draw(st.sampled_from([1, 1, 1, 3])))
                kept.append(draw(st.sampled_from([False, False, True])))
            outputs.append(len(sizes))
            takes_over.append(draw(st.integers(-1, count - 1)))
            chunks = st.lists(st.sampled_from([300, 900]), max_size=2).map(tuple)
            own.append(draw(st.just(NOTHING) | st.builds(Workspace, chunks, chunks)))
        operations.append(len(takes_over))
    sequence = list(range(nodes))
    for _ in range(draw(st.integers(0, most_computations - nodes))):
        at = draw(st.integers(1, len(sequence)))
        sequence.insert(at, draw(st.sampled_from(sequence[:at])))
    return kernels(operations, outputs, reads, read, sizes, pieces, kept, takes_over, own), sequence


def kernels(operations, outputs, reads, read, sizes, pieces=None, kept=(), takes_over=None, own=None):
    """As `Kernels`, from lists. By default nothing is kept, taken over or in pieces, and kernels take nothing."""
    m, b = len(outputs) - 1, len(sizes)
    columns = [operations, outputs, reads, read, sizes, pieces or [1] * b, kept or [False] * b]
    own = own or [NOTHING] * m
    workspaces = np.cumsum([0, *(len(one.before) + len(one.after) for one in own)])
    columns += [takes_over or [-1] * m, workspaces, [len(one.before) for one in own]]
    columns += [[size for one in own for size in (*one.before, *one.after)]]
    return Kernels(*(np.array(column, bool if k == 6 else np.int64) for k, column in enumerate(columns)))


def chain(sizes, after=(), **more):
    """Nodes of one operation each, of which each reads the one before it. `after`: bytes that each takes for itself."""
    n = len(sizes)
    if after:
        more["own"] = [Workspace(after=(size,)) if size else NOTHING for size in after]
    return kernels(range(n + 1), range(n + 1), [0, *range(n)], range(n - 1), sizes, **more)


class Plain:
    """What operations allocate, with dicts and counts of references: events are (name of a chunk, bytes or -1)."""

    def __init__(self, given, sequence):
        self.given = given
        self.runs = []
        newest, self.left = {}, Counter()
        for position, node in enumerate(sequence):
            for k in range(given.operations[node], given.operations[node + 1]):
                read = [newest[b] for b in given.read[given.reads[k] : given.reads[k + 1]] if b in newest]
                made = [(b, len(self.runs)) for b in range(given.outputs[k], given.outputs[k + 1])]
                newest |= {b: (b, run) for b, run in made}
                self.left.update(read)
                self.runs.append((k, position, read, made))
        self.left.update(copy for b, copy in newest.items() if given.kept[b])
        self.kept = {copy for b, copy in newest.items() if given.kept[b]}
        self.chunks = defaultdict(list)
        self.events = []

    def begin(self, run):
        k, _, read, made = self.runs[run]
        chunks = self.given.workspace[self.given.workspaces[k] : self.given.workspaces[k + 1]].tolist()
        self._take(("before", run), chunks[: self.given.before[k]])
        over = made[self.given.takes_over[k]] if self.given.takes_over[k] >= 0 else None
        for copy in read if over else ():
            mine = [size for _, size in self.chunks[copy]]
            alike = sum(mine) == self.given.bytes[over[0]] and len(mine) == self.given.pieces[over[0]]
            if self.left[copy] == 1 and alike:
                self.chunks[over] = self.chunks.pop(copy)
                break
        else:
            over = None
        for copy in made:
            if copy != over and self.given.bytes[copy[0]]:
                self._allocate(copy, self.given.bytes[copy[0]], self.given.pieces[copy[0]])
        self._take(("after", run), chunks[self.given.before[k] :])

    def end(self, run):
        _, _, read, made = self.runs[run]
        self._free(("before", run))
        self._free(("after", run))
        for copy in read:
            self.left[copy] -= 1
        for copy in [*read, *made]:
            if not self.left[copy]:
                self._free(copy)

    def _allocate(self, copy, size, count):
        self._take(copy, [size // count] * count)

    def _take(self, copy, sizes):
        self.chunks[copy] = [((copy, i), size) for i, size in enumerate(sizes)]
        self.events += self.chunks[copy]

    def _free(self, copy):
        self.events += [(name, -1) for name, _ in self.chunks.pop(copy, [])]


def plain_runs(given, sequence):
    """(operation, computation, copies read, copies made) of each run; a copy is (buffer, run that made it)."""
    return Plain(given, sequence).runs


def plain_events(given, sequence, moments=None):
    """(ids, sizes) of the plain model; by default in strict order."""
    model = Plain(given, sequence)
    order = moments if moments is not None else [m for run in range(len(model.runs)) for m in (run, ~run)]
    for moment in order:
        model.begin(moment) if moment >= 0 else model.end(~moment)
    numbers = {}
    ids = [numbers.setdefault(name, len(numbers)) for name, _ in model.events]
    return ids, [int(size) for _, size in model.events]


def all_interleavings(given, sequence, waits, threads=2):
    """Every order of begins and ends that reads, waits and threads allow."""
    runs = plain_runs(given, sequence)
    stack = [((), frozenset(), frozenset())]  # moments, running, ended
    while stack:
        moments, running, ended = stack.pop()
        if len(ended) == len(runs):
            yield list(moments)
        stack += [((*moments, ~run), running - {run}, ended | {run}) for run in running]
        if len(running) < threads:
            stack += [
                ((*moments, run), running | {run}, ended)
                for run in range(len(runs))
                if run not in running | ended and may_begin(runs, run, ended, waits)
            ]


def may_begin(runs, run, ended, waits):
    """Whether all has ended that a run reads and waits for."""
    _, position, read, _ = runs[run]
    awaited = {r for r, other in enumerate(runs) if other[1] < waits[position]}
    return awaited | {maker for _, maker in read} <= set(ended)
