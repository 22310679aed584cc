"""From a training step to what can be planned: traced, with true sizes, and with costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from ...allocator.workspace import Workspace
from ...costs import cost_unit, op_costs
from ...costs.sizes import num_bytes
from ...costs.workspace import ALONE_SECONDS, op_workspaces
from ...device.distribution import Distribution
from ...device.layout.region import in_one_piece
from ...device.measure import Device
from ...schedule import keep_all
from ...strategies.late_updates import late_updates
from ...trace.order import followers_of, in_order_of
from ...trace.program import Program, build_program
from ...trace.replicas import Replicas, split_replicas
from ...trace.sizes.loops import LOOPS
from ...trace.sizes.seen import MARGIN, Look
from ...trace.sizes.static import StaticStep, with_static_batch
from ...trace.sizes.tapes import places_bytes, pooling_of
from ...trace.step import TracedStep, trace_step
from ..job import Ledger, Subject
from ..options import PlanOptions
from ..policy import POLICY
from .learned import can_learn
from .looking import looked_at

__all__ = ["TAKEN_FIRST", "Tracing", "of_size", "with_workspaces"]

TAKEN_FIRST = frozenset({"SoftmaxCrossEntropyWithLogits", "SparseSoftmaxCrossEntropyWithLogits"})
"""Types whose kernels take what they need for themselves before their outputs. The others take it after them."""


_ROOM = 4  # times what an operation reads and makes: what its kernel may need at a time, all in all


@dataclass(frozen=True)
class Tracing:
    """From a step to what can be planned: its program, and its graph with costs.

    Attributes
    ----------
    batch_size : int
        What an open batch dimension stands for when sizes are counted.
    options : PlanOptions
    name : str
        Of the model, for messages.
    device : Device
    ledger : Ledger
    """

    batch_size: int
    options: PlanOptions
    name: str
    device: Device
    ledger: Ledger

    def trace(
        self, step: Callable[[Any], Any], spec: Any, distribution: Distribution | None
    ) -> tuple[TracedStep, Replicas | None]:
        """Trace the step. Under a distribution: the first replica's, and how the others correspond to it."""
        with self.ledger.timed("trace"):
            self.options.tell("trace", 0, 1, self.name)
            if distribution is None:
                trace = partial(trace_step, step, as_written=self.options.jit_compile)
                traced = trace(spec)  # only this tells whether a known size makes it another one
                loops = any(op.type in LOOPS for op in traced.operations)
                if self.options.same_size and (loops or traced.has_second_order):
                    traced = trace(of_size(spec, self.batch_size))
                return traced, None
            every = len(distribution.devices)
            traced = trace_step(distribution.side_by_side(step), (spec,) * every, devices=every)
            replicas = split_replicas(traced, distribution.devices)
            return replicas.first, replicas

    def subject(
        self,
        traced: TracedStep,
        replicas: Replicas | None = None,
        known: Mapping[tf.Operation, Workspace] | None = None,
    ) -> Subject:
        """The nodes to plan, and their graph with costs.

        Parameters
        ----------
        traced : TracedStep
        replicas : Replicas, optional
            Nodes run on all of them.
        known : mapping from operation to Workspace, optional
            What some operations take for themselves, where that is known already.
        """
        return self._subjects(traced, replicas, lambda program: [program], known or {})[0]

    def orders(self, traced: TracedStep, replicas: Replicas | None = None) -> list[Subject]:
        """The same in each order that is worth planning, the likely best first. The last one is in the order traced."""
        return self._subjects(traced, replicas, lambda program: [*_with_late_updates(program), program], {})

    def _shapes(self, traced: TracedStep) -> list[tf.TensorShape]:
        """Static shapes of the inputs."""
        batch = self.batch_size
        given = self.options.shapes or [tuple(t.shape) for t in traced.inputs]
        return [tf.TensorShape([batch if d is None else d for d in shape]) for shape in given]

    def _look(self, traced: TracedStep, shapes: list[tf.TensorShape]) -> Look | None:
        """What looks at sizes in a step on the user's data; None if there is none."""
        sample = self.options.sample
        if sample is None or [tuple(a.shape) for a in sample] != [tuple(shape) for shape in shapes]:
            return None
        batch = [np.asarray(a).astype(t.dtype.as_numpy_dtype) for a, t in zip(sample, traced.inputs, strict=True)]
        return partial(looked_at, traced, batch, self.device)

    def _subjects(
        self,
        traced: TracedStep,
        replicas: Replicas | None,
        orders: Callable[[Program], list[Program]],
        known: Mapping[tf.Operation, Workspace],
    ) -> list[Subject]:
        with self.ledger.timed("trace"):
            shapes = self._shapes(traced)
            margin = 0.0 if self.options.enlarged else MARGIN
            static = with_static_batch(traced, shapes, self._look(traced, shapes), margin)
        with self.ledger.timed("costs"):
            costs, scratch = _costs(traced, static, self.device, self.options, known)
        with self.ledger.timed("trace"):
            found = []
            for one in orders(build_program(traced, static, self.name, scratch=scratch)):
                graph = one.graph.with_costs(one.node_costs(traced.operations, costs), cost_unit(self.options.costs))
                op_costs = dict(zip(traced.operations, costs.tolist(), strict=True))
                found.append(Subject(one if replicas is None else replicas.all_in(one), graph, op_costs=op_costs))
            self.options.tell("trace", 1, 1, f"{len(found[-1].graph)} nodes of {len(traced.operations)} operations")
        return found


def with_workspaces(subject: Subject, learned: Mapping[tf.Operation, Workspace]) -> Subject:
    """The same step, whose operations take other memory for themselves.

    Parameters
    ----------
    subject : Subject
        Not one of replicas.
    learned : mapping from operation to Workspace
        For every operation of the step.
    """
    program, costs = subject.program, subject.op_costs
    scratch = {op: own for op, own in learned.items() if own.bytes}
    again = build_program(program.step, program.static, program.graph.name, scratch=scratch)
    by_node = again.node_costs(list(costs), np.array(list(costs.values())))
    graph = again.graph.with_costs(by_node, subject.graph.cost_unit)
    return replace(subject, program=again, graph=graph, learned=learned)


def of_size(spec: Any, batch_size: int) -> Any:
    """Specs whose batch dimension is open, with it known.

    Parameters
    ----------
    spec : nest of tf.TensorSpec or None
        Other types stay, and first axes that are known, which are not the batch.
    batch_size : int
    """

    def known(t: Any) -> Any:
        if not isinstance(t, tf.TensorSpec) or not t.shape.rank or t.shape[0] is not None:
            return t
        return tf.TensorSpec([batch_size, *t.shape[1:]], t.dtype)

    return tf.nest.map_structure(known, spec)


def _with_late_updates(program: Program) -> list[Program]:
    """The program with some updates later, if the plain step needs less memory then."""
    step = program.step
    if step.controls or {p for op in step.operations for p in op.control_inputs} - set(step.operations):
        return []  # its order is not that of its control inputs
    graph, (found, _) = program.graph, followers_of(step.operations, program.node_of, step.controls_of)
    found += [set() for _ in range(len(graph) - len(found))]  # nodes without operations: the step's results
    order = late_updates(graph, [later.union(users) for later, users in zip(found, graph.users, strict=True)])
    if order == sorted(order):
        return []
    moved = replace(step, operations=in_order_of(step.operations, program.node_of, order))
    late = build_program(moved, program.static, graph.name, scratch=program.scratch)
    return [late] if keep_all(late.graph).peak_bytes < keep_all(graph).peak_bytes else []


def _taken(kind: str, size: int) -> Workspace:
    """What a kernel of a type takes for itself, of which only the bytes were measured."""
    return Workspace(before=(size,)) if kind in TAKEN_FIRST else Workspace(after=(size,))


def _costs(
    step: TracedStep, static: StaticStep, device: Device, options: PlanOptions, known: Mapping[tf.Operation, Workspace]
) -> tuple[NDArray[np.float64], dict[tf.Operation, Workspace]]:
    """Of each operation its cost, and what its kernel takes for itself: known, or measured if it can be."""
    copies = [static.operations[op] for op in step.operations]
    extra: dict[str, Any] = {"device": device.name} if options.costs in ("profile", "roofline") else {}
    if options.costs == "profile":
        options.tell("costs", 0, 1, "operations are timed")  # who hears it may wait for the device: that takes no time
        extra["progress"] = partial(options.tell, "costs")
    costs = op_costs(copies, options.costs, **extra)
    if not (device.measurable and (options.verify or options.costs == "profile")):
        return costs, {}
    unknown = [op for op in step.operations if op not in known]
    most = max((sum(map(num_bytes, (*op.inputs, *op.outputs))) for op in copies), default=0)
    with in_one_piece(device, _ROOM * most) as exact:
        alone = op_workspaces(
            [static.operations[op] for op in unknown],
            device=device.name,
            progress=partial(options.tell, "kernels"),
            cache=exact,  # else they may be too large, and would be kept
            time_budget=POLICY.alone_seconds if can_learn(device, options) else ALONE_SECONDS,
        )
    scratch = {op: _taken(op.type, size) for op, size in zip(unknown, alone.tolist(), strict=True)}
    for pooling in {pooling_of(op) for op in unknown} & scratch.keys() if device.is_cpu else ():
        kept = places_bytes(static.operations[pooling], scratch[pooling].bytes)
        scratch[pooling] = Workspace(kept=kept) if kept else scratch[pooling]
    scratch |= {op: known[op] for op in step.operations if op in known}
    return costs, {op: own for op, own in scratch.items() if own.bytes or own.kept}
