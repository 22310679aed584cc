"""The rematerialized step for XLA: recomputations that its compiler can neither merge with the originals nor move.

XLA drops control edges, merges equal operations and chooses an order of its own, so the order of `emit` is lost on it:
a recomputation has the inputs of the original, and is merged with it. JAX puts an optimization barrier over the kept
values and the incoming gradient (Frostig et al., SysML 2018; `jax.checkpoint`). On a CPU that is not enough: XLA
removes its barriers (`cse_barrier_expander`) before the last merging of equal operations and before it schedules.

What no pass can remove is data. A *token* is a number that is zero when the program runs, which the compiler cannot
know: bits of what was computed just before, and a zero that comes in as an argument. A kept value with the token's bits
or-ed into it is the same value, bit by bit, but

- another expression than the original, so what is computed from it is not merged with what was;
- there only after the gradients from which the token was made, so it cannot run ahead of them.

A run of recomputations, and the first computations up to the next run, share a token. Within a run XLA is free: it
schedules for little memory. Later readers read the tied value, so that the kept one dies and its buffer is taken over.

**What this does badly.** Each run reads and writes a kept value once more, unless XLA fuses that. XLA fuses a copy
with other neighbours than the original, and rounds otherwise then (a product and a sum become one instruction): results
agree with those of a plain XLA step to rounding, not bit by bit. What XLA fuses away is never in memory, so a plan's
predicted peak is not XLA's: measure it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from ..plan import Plan
from ..trace.ops import inputs_of
from ..trace.partition.classes import LARGE, SMALL, SOURCE
from ..trace.program import Program
from .emit import Emission

__all__ = ["XlaEmission", "emit_compiled", "emit_for_xla", "recomputed_runs"]

_CAPTURED = 256  # elements; up to 128 are captured by value
_BITS = {1: tf.uint8, 2: tf.uint16, 4: tf.uint32, 8: tf.uint64}


def emit_compiled(
    program: Program, plan: Plan, inputs: Sequence[tf.Tensor], checks: Sequence[tf.Operation] = ()
) -> Any:
    """Emit a plan as the call of a function that XLA compiles, into the graph under construction.

    Parameters
    ----------
    program, plan, inputs
        As for `emit.emit`.
    checks : sequence of tf.Operation
        The call comes after these, which TensorFlow runs: XLA leaves assertions out.

    Returns
    -------
    nest
        As `emit.emit`.
    """
    step = tf.function(lambda *batch: emit_for_xla(program, plan, batch), autograph=False, jit_compile=True)
    with tf.control_dependencies(list(checks)):
        return step(*inputs)


def emit_for_xla(program: Program, plan: Plan, inputs: Sequence[tf.Tensor]) -> Any:
    """Emit a plan into a function under construction that XLA will compile. Arguments and result as `emit_compiled`."""
    emission = XlaEmission(program, tf.compat.v1.get_default_graph(), inputs)
    emission.run_tied(plan, recomputed_runs(plan))
    return emission.outputs()


def recomputed_runs(plan: Plan) -> list[int]:
    """For each COMPUTE statement the run it belongs to: 0, 0, 1, 1, ...

    A run begins with a recomputation that follows a first computation, or that is the run's second of a node.
    """
    runs: list[int] = []
    computed: set[int] = set()
    members: set[int] = set()
    run, again_before = 0, False
    for node in plan.sequence:
        again = node in computed
        if again and (not again_before or node in members):
            run, members = run + 1, set()
        runs.append(run)
        computed.add(node)
        members.add(node)
        again_before = again
    return runs


class XlaEmission(Emission):
    """An emission in which data ties each recomputation to what was computed before its run."""

    def __init__(
        self,
        program: Program,
        graph: tf.Graph,
        inputs: Sequence[tf.Tensor],
        checks: Sequence[tf.Operation] = (),
    ) -> None:
        super().__init__(program, graph, inputs, checks)
        self.updated_in_part = set()  # XLA reads and writes variables at the ends of the step
        with tf.init_scope():  # captured as an argument, so never folded: TensorFlow makes constants of shorter ones
            zeros = tf.zeros([_CAPTURED], tf.uint32)
        self.zero = tf.slice(zeros, [0], [1])
        self.token: tf.Tensor | None = None
        self.run_number = 0
        self.tied_in: dict[int, int] = {}  # id of a tensor -> run whose token it comes after
        self.again = False

    def run_tied(self, plan: Plan, runs: Sequence[int]) -> None:
        """Emit all computations; those of a run are tied to what came before it."""
        computed: set[int] = set()
        for node, number in zip(plan.sequence, runs, strict=True):
            if number != self.run_number:
                self._make_token()
                self.run_number = number
            self.again = node in computed
            self._compute(node, first=not self.again)
            computed.add(node)

    def _make_token(self) -> None:
        """Make the next run's token from what was computed in this one and is read outside of it."""
        finished = [op for op in self.barriers.finished if op not in self.barriers.dones]
        results = [next((t for t in op.outputs if _tieable(t)), None) for op in finished]
        token = self.zero if self.token is None else self.token
        for t in results:
            bits = None if t is None else _first_bits(t)
            token = token if bits is None else tf.bitwise.bitwise_and(token, bits)
        self.token, self.barriers.finished = token, {}

    def _late(self, op: tf.Operation, node: int) -> list[tf.Operation]:
        return []  # XLA drops control edges

    def _emit(self, op: tf.Operation, gate: bool = False, late: Sequence[tf.Operation] = ()) -> None:
        if not self.again or op not in self.program.node_of:
            return super()._emit(op)
        restored = {} if self.token is None or self._tied(op) else self._tie_inputs(op)
        super()._emit(op)
        self.current |= restored
        for t in self.current[op]:
            self.tied_in[id(t)] = self.run_number
        return None

    def _tied(self, op: tf.Operation) -> bool:
        return any(self.tied_in.get(id(self.tensor(t))) == self.run_number for t in inputs_of(op))

    def _tie_inputs(self, op: tf.Operation) -> dict[tf.Operation, list[tf.Tensor]]:
        """Tie what `op` reads to the token. Returns what is to be `current` again when `op` is emitted."""
        restored = {}
        for t in self._to_tie(op):
            owner = self.program.source_of(t)
            before = self.current[owner.op]
            newest = self.tensor(owner)
            tied = self._tie(newest)
            self.maker[id(tied)] = tied.op
            self.tied_in[id(tied)] = self.run_number
            self.current[owner.op] = [tied if k == owner.value_index else o for k, o in enumerate(before)]
            if self.program.classes.get(owner.op, SOURCE) == SOURCE:  # resident: a second one is for this reader alone
                restored[owner.op] = before
        return restored

    def _to_tie(self, op: tf.Operation) -> list[tf.Tensor]:
        gated = self._gated_inputs(op)
        inputs = inputs_of(op)
        if gated:
            return [inputs[k] for k in gated]
        owners = [(self.program.classes.get(self.program.source_of(t).op, SOURCE), t) for t in inputs]
        for wanted in (LARGE, SMALL, SOURCE):
            for kind, t in owners:
                if kind == wanted and _tieable(t) and self.program.source_of(t).op in self.current:
                    return [t]
        return []

    def _tie(self, t: tf.Tensor) -> tf.Tensor:
        """The same value, there only after the token."""
        assert self.token is not None
        bits = _BITS[t.dtype.size]
        zero = tf.cast(self.token, bits)
        if t.shape.rank == 0:
            zero = tf.reshape(zero, [])
        if t.dtype == bits:
            return tf.bitwise.bitwise_or(t, zero)
        return tf.bitcast(tf.bitwise.bitwise_or(tf.bitcast(t, bits), zero), t.dtype)


def _tieable(t: tf.Tensor) -> bool:
    return bool((t.dtype.is_floating or t.dtype.is_integer) and t.dtype.size in _BITS)


def _first_bits(t: tf.Tensor) -> tf.Tensor | None:
    """(1,) uint32 that cannot be known before `t`; None if `t` may be empty."""
    if t.shape.rank is None or 0 in t.shape.as_list():
        return None
    begin, size = (tf.constant([k] * t.shape.rank, tf.int32) for k in (0, 1))
    first = tf.reshape(tf.slice(t, begin, size), [1])
    return tf.bitcast(tf.cast(first, tf.float32), tf.uint32)
