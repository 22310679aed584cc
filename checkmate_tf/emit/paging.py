"""Values that wait in the host's memory, as operations: a plan whose graph has copies (`paging`), emitted.

A value is copied by an Identity on the host that reads it. TensorFlow makes the copy as soon as the value is there,
beside the computations.

    value -> to_host        The plan waits for it at the node that copies: the next barrier comes after it.
    to_host -> fetch        An Identity on the host, so it copies nothing. It waits until all that stands before it in
                            the plan has been given to the device, which does it in that order. Nothing else makes the
                            copy back wait: its source would be there.
    fetch -> from_host      An Identity on the device: the value, for all who read it from now on. Where that is one
                            operation, Grappler may join the two. The copy begins when it would have begun.

Whoever reads the new copy waits for it by reading it. Nothing else does, so computations run while it comes. And as no
barrier is put for a fetch, the order and what Grappler may fuse stay what they are without it.

Only tensors that others read later are copied, and of those the large ones: statistics of a normalisation stay where
they are. Views are emitted again of the copy that came back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from ..errors import PlanError
from ..graph import Graph
from ..plan import Plan
from ..trace.ops import inputs_of
from ..trace.program import Program
from .emit import Emission

__all__ = ["PagedEmission", "Pages", "emit_paged", "pageable"]

_LEAST_BYTES = 16384  # smaller tensors stay on the device: as small a value is no node of its own, either


@dataclass(frozen=True)
class Pages:
    """Between which devices values are copied.

    Attributes
    ----------
    device, host : str
        As TensorFlow names them, "/device:GPU:0".
    """

    device: str
    host: str


def pageable(program: Program) -> dict[int, list[tf.Tensor]]:
    """The tensors to copy of each node whose value can wait on the host.

    Left out are nodes with a value that others read and that is no plain array, such as a list of tensors, and nodes of
    which nobody reads a large tensor.
    """
    read: dict[int, dict[int, tf.Tensor]] = {}
    for source, _ in _read_elsewhere(program):
        read.setdefault(program.node_of[source.op], {})[id(source)] = source
    found = {}
    for node, tensors in read.items():
        large = [t for t in tensors.values() if (program.static.bytes_of(t) or 0) >= _LEAST_BYTES]
        if large and all(map(_is_array, tensors.values())):
            found[node] = large
    return found


def _read_elsewhere(program: Program) -> Iterator[tuple[tf.Tensor, int]]:
    """Each tensor of a node that another node reads, with that. The step's results are read by the last."""
    readers = [(node, t) for node, group in enumerate(program.nodes) for op in group for t in inputs_of(op)]
    for reader, t in [*readers, *((len(program.graph) - 1, t) for t in program.step.outputs)]:
        source = program.source_of(t)
        if program.node_of.get(source.op, reader) != reader:
            yield source, reader


def _is_array(t: tf.Tensor) -> bool:
    """Whether it is a piece of the device's memory. A list of tensors is none, and int32 is the host's on a GPU."""
    kind = t.dtype
    return kind != tf.int32 and (kind.is_floating or kind.is_integer or kind.is_bool or kind.is_complex)


def emit_paged(
    program: Program,
    graph: Graph,
    plan: Plan,
    pages: Pages,
    inputs: Sequence[tf.Tensor],
    checks: Sequence[tf.Operation] = (),
) -> Any:
    """Emit a plan with copies into the graph under construction, in strict order.

    Parameters
    ----------
    program : Program
        The traced step.
    graph : Graph
        The program's, with nodes that copy.
    plan : Plan
        For `graph`.
    pages : Pages
    inputs, checks
        As for `emit`.

    Returns
    -------
    nest
        What the step returns, in its own structure.

    Raises
    ------
    PlanError
        If it copies a value that cannot be copied.
    """
    emission = PagedEmission(program, graph, pages, tf.compat.v1.get_default_graph(), inputs, checks)
    emission.run_strictly(plan)
    return emission.outputs()


class PagedEmission(Emission):
    """The state of an emission with copies."""

    def __init__(
        self,
        program: Program,
        planned: Graph,
        pages: Pages,
        graph: tf.Graph,
        inputs: Sequence[tf.Tensor],
        checks: Sequence[tf.Operation] = (),
    ) -> None:
        super().__init__(program, graph, inputs, checks)
        self.pages = pages
        self.first = len(program.graph)
        self.copied = {copy: value for value, copy in planned.copies.items()}
        self.tensors: Mapping[int, list[tf.Tensor]] = pageable(program)
        self.readers: dict[int, set[int]] = {}  # id of a tensor -> nodes
        for source, reader in _read_elsewhere(program):
            self.readers.setdefault(id(source), set()).add(reader)
        self.last: dict[int, int] = {}  # node -> its last place in the plan
        self.leaving: dict[int, int] = {}  # place in the plan -> the node that copies what is computed there
        self.away: dict[int, list[tuple[tf.Tensor, tf.Tensor]]] = {}  # node -> its tensors, each with that on the host
        self.gone: set[int] = set()  # nodes whose copies were waited for

    def run_strictly(self, plan: Plan) -> None:
        """Emit all computations and copies in one strict order."""
        for place, node in enumerate(plan.sequence):
            if node in self.copied:
                self.leaving[self.last[self.copied[node]]] = node
            self.last[node] = place
        super().run_strictly(plan)

    def _place(self, place: int, node: int, first: bool) -> None:
        if node >= self.first:
            self._wait_for_copy(self.copied[node])
        elif node in self.gone:
            self._fetch(node)
        else:
            super()._place(place, node, first)
            if place in self.leaving:
                self._copy(node, self.last[self.leaving[place]])

    def _copy(self, node: int, until: int) -> None:
        """Let copies begin of those of a node's tensors that are read after a place of the plan."""
        if node not in self.tensors:
            raise PlanError(f"{self.program.graph.names[node]} cannot be copied to the host: it is no plain array")
        read = [t for t in self.tensors[node] if any(self.last[reader] > until for reader in self.readers[id(t)])]
        with self.graph.control_dependencies(None), self.graph.device(self.pages.host):
            self.away[node] = [(t, tf.identity(self.tensor(t), name="checkmate/to_host")) for t in read]

    def _wait_for_copy(self, node: int) -> None:
        """Let all that comes later wait until a node's copies are complete."""
        for t, copy in self.away[node]:
            self.barriers.follow([self.maker.get(id(self.tensor(t)))], copy.op)
        self.gone.add(node)

    def _fetch(self, node: int) -> None:
        """Bring a node's tensors back behind all that stands before this. Only their readers wait for them."""
        trigger = self._put_notice()
        for t, copy in self.away[node]:
            with self.graph.control_dependencies([trigger]), self.graph.device(self.pages.host):
                asked = tf.identity(copy, name="checkmate/fetch")
            with self.graph.control_dependencies(None), self.graph.device(t.op.device or self.pages.device):
                back = tf.identity(asked, name="checkmate/from_host")
            outputs = list(self.current[t.op])
            outputs[t.value_index] = back
            self.current[t.op] = outputs
            self.maker[id(back)] = back.op
            if self.wait:
                self.comes_after[id(back)] = self.wait

    def _put_notice(self) -> tf.Operation:
        """An operation of the host that runs when all before this has been given to the device.

        It reads a number of the device, and a GPU has such numbers in the host's memory. So the host learns of it at
        once. Of a control edge it would learn when the GPU has done what it was given by then, and behind all copies
        to the host that are on their way. A placeholder with a default is what no optimizer folds.
        """
        with self.graph.control_dependencies(None), self.graph.device(self.pages.host):
            zero = tf.raw_ops.PlaceholderWithDefault(input=tf.constant(0), shape=[], name="checkmate/zero")
        with self.graph.control_dependencies(self.barriers.behind()), self.graph.device(self.pages.device):
            given = tf.identity(zero, name="checkmate/given")
        with self.graph.control_dependencies(None), self.graph.device(self.pages.host):
            return tf.raw_ops.PlaceholderWithDefault(input=given, shape=[], name="checkmate/notice").op
