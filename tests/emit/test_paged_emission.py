"""Paged plans: the plain step's numbers, bit by bit, and copies that the plan's order has beside computations."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf
from cases import program_of_case
from pages import PAGES, paged_graph, paged_schedule

from checkmate_tf.emit.paging import PagedEmission, emit_paged, pageable
from checkmate_tf.errors import PlanError
from checkmate_tf.paging import with_host
from checkmate_tf.plan import plan_from_sequence
from checkmate_tf.trace.ops import FUSED_LATER
from checkmate_tf.trace.partition.classes import LARGE
from checkmate_tf.trace.program import build_program
from checkmate_tf.trace.sizes.static import with_static_batch
from checkmate_tf.trace.step import trace_step

pytestmark = pytest.mark.usefixtures("fresh_keras")

TRAINED = ("residual", "transformer", "unet")
NAMES = ("residual", "transformer", "unet", "sums")


def _trained(*arguments):
    """What a process of its own says: it has two logical CPUs, which are set up before TensorFlow begins."""
    command = [sys.executable, str(Path(__file__).parents[1] / "paged_training.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert lines, done.stderr[-3000:]
    return json.loads(lines[-1][7:])


@pytest.mark.long(but=("unet",))
@pytest.mark.feature(
    "Training", "values that wait in the host's memory", note="two logical CPUs stand in for a GPU and its host"
)
@pytest.mark.parametrize("name", TRAINED)
def test_training_is_equal_bit_by_bit(name):
    """Losses, metrics, and (compared in the child) weights, statistics, seeds and slots after each of several steps.

    Copies are made on the other device: no optimizer moves or removes them, nor what they wait for.
    """
    few = ["--few"] if name == "unet" else []
    ways = _trained(*few, name)
    assert len(ways) == (2 if few else 4)
    for way, found in ways.items():
        assert found["equal"], way
        assert found["copied"] >= 5, way
        assert found["peak"] < 0.9 * found["plain peak"], way
        assert found["places"] == {"to_host": ["CPU:1"], "fetch": ["CPU:1"], "from_host": ["CPU:0"]}, way
        assert found["reads"] and found["waits"], way
        assert found["kept"]["to_host"] == found["kept"]["fetch"] > 4, way


@functools.cache
def _emitted(name, ahead, every=1):
    """A paged step of a case, emitted but not run."""
    program = program_of_case(name)
    graph = paged_graph(program)
    schedule = paged_schedule(graph, ahead, every)
    made = []

    def step(*inputs):
        made.append(PagedEmission(program, graph, PAGES, tf.compat.v1.get_default_graph(), inputs))
        made[0].run_strictly(schedule.plan)
        return [made[0].tensor(t) for t in program.step.outputs]

    specs = [tf.TensorSpec(t.shape, t.dtype) for t in program.step.inputs]
    traced = tf.function(step, autograph=False).get_concrete_function(*specs).graph
    return program, schedule, made[0], traced


@functools.cache
def _before(traced):
    """For each operation, those that have run when it begins."""
    before: dict[tf.Operation, set[tf.Operation]] = {}
    todo = list(traced.get_operations())
    while todo:
        parents = [*(t.op for t in todo[-1].inputs), *todo[-1].control_inputs]
        unseen = [parent for parent in parents if parent not in before]
        todo += unseen
        if not unseen:
            before.setdefault(todo.pop(), set(parents).union(*(before[p] for p in parents)))
    return before


def _places(program, schedule, emission):
    """What is emitted for each place of the plan: the kind, and (operation, whether it keeps strict order) for each.

    The kinds are "copy" (to the host), "fetch", and "compute".
    """
    turns: dict[tf.Operation, int] = {}
    back = iter([op for op in emission.graph.get_operations() if "checkmate/from_host" in op.name])
    gone = set()
    for node in schedule.sequence.tolist():
        if node >= emission.first:
            gone.add(emission.copied[node])
            yield "copy", [(t.op, True) for _, t in emission.away[emission.copied[node]]]
        elif node in gone:
            yield "fetch", [(next(back), True) for _ in emission.away[node]]
        else:
            mine = program.nodes[node]
            for op in mine:
                turns[op] = turns.get(op, -1) + 1
            free = [op is not program.nodes[node][0] and op in emission.rewritten for op in mine]
            free = [
                may or op.type in FUSED_LATER or program.classes[op] != LARGE
                for op, may in zip(mine, free, strict=True)
            ]
            yield "compute", [(emission.copies[op][turns[op]], not may) for op, may in zip(mine, free, strict=True)]


@pytest.mark.long(but=("residual-0-1", "transformer-3-2", "sums-6-1"))
@pytest.mark.parametrize(("ahead", "every"), [(0, 1), (6, 1), (3, 2)])
@pytest.mark.parametrize("name", NAMES)
def test_the_order_is_the_plans(name, ahead, every):
    """What comes after the place of a copy waits for it. A fetch waits for all before it, and only readers for it."""
    program, schedule, emission, traced = _emitted(name, ahead, every)
    before = _before(traced)
    done: list[tf.Operation] = []
    coming: set[tf.Operation] = set()  # brought back, and not read yet
    hidden = fetches = 0
    for kind, operations in _places(program, schedule, emission):
        for op, strict in operations if kind != "copy" else ():
            missing = [late.name for late in done if late not in before[op]] if strict else []
            assert not missing, f"{op.name} does not wait for {missing[:5]}"
            waits = {late for late in coming if late in before[op]}
            assert kind == "compute" or not waits
            unread = [late.name for late in waits if not _reads(op, late)]
            assert not unread, f"{op.name} waits for {unread}"
            coming -= waits
            hidden += len(coming) if kind == "compute" else 0
        if kind == "fetch":
            fetches += 1
            coming |= {op for op, _ in operations}
        else:
            done += [op for op, strict in operations if strict]
    assert fetches > 4 and (hidden > 0 or not ahead)
    assert not coming


def _reads(op, source):
    """Whether an operation reads a value, directly or through views, gates and what is not large."""
    todo, seen = [op], set()
    while todo:
        for t in todo.pop().inputs:
            if t.op is source:
                return True
            if t.op not in seen:
                seen.add(t.op)
                todo.append(t.op)
    return False


@pytest.mark.parametrize("name", NAMES)
def test_nothing_else_reads_what_was_copied(name):
    """The first copy of a value has no reader after its copy to the host but those that come before it in the plan."""
    program, schedule, emission, traced = _emitted(name, 0)
    before = _before(traced)
    for node in emission.tensors:
        if node not in emission.gone:
            continue
        for _, copy in emission.away[node]:
            late = [op.name for op in copy.op.inputs[0].consumers() if copy.op in before[op]]
            assert not late


def test_statistics_stay_on_the_device():
    """A normalisation has small outputs, too: of its node only the large one is copied."""

    def step(batch):
        (x,) = batch
        ones = tf.ones([8])
        y, *moments = tf.raw_ops.FusedBatchNormV3(x=tf.tanh(x), scale=ones, offset=ones, mean=[], variance=[])[:3]
        z = tf.sin(y)
        with tf.name_scope("gradient_tape/"):
            return tf.cos(z) * y + moments[0] + moments[1]

    traced = trace_step(step, (tf.TensorSpec([None, 16, 16, 8]),))
    program = build_program(traced, with_static_batch(traced, [tf.TensorShape([16, 16, 16, 8])]), "moments")
    copied = [t for tensors in pageable(program).values() for t in tensors]
    assert [t.value_index for t in copied if "FusedBatchNorm" in t.op.type] == [0]


def test_lists_of_tensors_are_not_copied():
    """A loop of a recurrent layer keeps its states in some."""
    program = program_of_case("recurrent")
    assert any(t.dtype == tf.variant for op in program.node_of for t in op.outputs)
    assert not any(t.dtype == tf.variant for tensors in pageable(program).values() for t in tensors)


def test_what_cannot_be_copied_is_refused():
    program = program_of_case("recurrent")
    may = pageable(program)
    graph = with_host(program.graph, 1.0, 1.0, least_bytes=1)
    copy = next(copy for value, copy in graph.copies.items() if value not in may)
    value = graph.inputs[copy][0]
    sequence = [k for node in range(len(program.graph)) for k in ((node, copy) if node == value else (node,))]
    again = sequence.index(min(j for j in graph.readers[value]))
    plan = plan_from_sequence(graph, [*sequence[:again], value, *sequence[again:]])
    with pytest.raises(PlanError, match="cannot be copied to the host"):
        step = tf.function(lambda *given: emit_paged(program, graph, plan, PAGES, given), autograph=False)
        step.get_concrete_function(*(tf.TensorSpec(t.shape, t.dtype) for t in program.step.inputs))
