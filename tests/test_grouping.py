"""Groups of computations that need no order: no interleaving within one exceeds the limit (brute force)."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from graphs import chain, random_graphs
from hypothesis import given, settings
from hypothesis import strategies as st

from checkmate_tf.graph import Graph
from checkmate_tf.grouping import group_computations
from checkmate_tf.plan import COMPUTE, DEALLOCATE, plan_from_sequence
from checkmate_tf.schedule import keep_all


def worst_peak(graph, plan, groups):
    """The most memory of any order of computation that only keeps the data dependencies and the order of the groups.

    A computation's value is there from its start, its workspace only meanwhile; a value is freed after the last of its
    readers. Several computations of a group may also run at once: then all their workspaces are there together.
    """
    computes = [s for s in plan if s.op == COMPUTE]
    readers = {s.register: [t.register for t in computes if s.register in t.reads] for s in computes}
    sinks = {s.register for s in computes} - {s.register for s in plan if s.op == DEALLOCATE}
    worst = 0
    done: set[int] = set()
    for _, group in itertools.groupby(zip(groups, computes, strict=True), key=lambda pair: pair[0]):
        members = [statement for _, statement in group]

        def live(finished, started, before=frozenset(done)):
            held = [s for s in computes if s.register in finished or s.register in started]
            kept = 0
            for s in held:
                alive = s.register in started or s.register in sinks
                alive |= any(r not in finished for r in readers[s.register])
                kept += int(graph.sizes[s.node]) if alive else 0
            return graph.constant_bytes + kept

        # Every reachable state: which members have finished, and which of the ready ones run now.
        todo, seen = [frozenset(done)], set()
        while todo:
            finished = todo.pop()
            if finished in seen:
                continue
            seen.add(finished)
            ready = [m for m in members if m.register not in finished and set(m.reads) <= finished]
            for count in range(1, len(ready) + 1):
                for running in itertools.combinations(ready, count):
                    started = {m.register for m in running}
                    work = sum(int(graph.workspace[m.node]) for m in running)
                    worst = max(worst, live(finished, started) + work)
            todo += [finished | {m.register} for m in ready]
        done |= {m.register for m in members}
    return worst


@st.composite
def plans(draw):
    """A small graph, computed once or with its first node or two computed again somewhere."""
    graph = draw(random_graphs(max_nodes=7))
    sequence = list(range(len(graph)))
    if draw(st.booleans()) and len(sequence) > 2:
        at = draw(st.integers(2, len(sequence)))
        sequence = sequence[:at] + sequence[: draw(st.integers(1, 2))] + sequence[at:]
    return graph, plan_from_sequence(graph, sequence)


@settings(max_examples=60, deadline=None)
@given(plans(), st.floats(1.0, 2.0))
def test_no_interleaving_exceeds_the_limit(given_plan, slack):
    graph, plan = given_plan
    strict = worst_peak(graph, plan, list(range(plan.registers)))
    limit = int(strict * slack)
    groups = group_computations(graph, plan, limit)
    assert worst_peak(graph, plan, groups) <= limit


@settings(max_examples=60, deadline=None)
@given(plans(), st.floats(0.0, 3.0))
def test_groups_partition_the_computations_in_order(given_plan, slack):
    graph, plan = given_plan
    groups = group_computations(graph, plan, int(slack * keep_all(graph).peak_bytes))
    assert len(groups) == len(plan.sequence)
    assert groups[0] == 0 and set(np.diff(groups)) <= {0, 1}
    for _, members in itertools.groupby(zip(groups, plan.sequence, strict=True), key=lambda pair: pair[0]):
        nodes = [node for _, node in members]
        assert len(nodes) == len(set(nodes))


def test_no_memory_no_freedom():
    graph = chain(5)
    plan = keep_all(graph).plan
    assert group_computations(graph, plan, 0) == list(range(len(graph)))


def test_enough_memory_is_one_group():
    graph = chain(5)
    plan = keep_all(graph).plan
    assert set(group_computations(graph, plan, int(graph.sizes.sum()))) == {0}


def test_a_node_and_its_recomputation_are_apart():
    graph = chain(2)
    plan = plan_from_sequence(graph, [0, 1, 2, 0, 1, 3, 0, 4])
    groups = group_computations(graph, plan, 10**9)
    assert groups == [0, 0, 0, 1, 1, 1, 2, 2]


@pytest.mark.parametrize(("limit", "expected"), [(7, [0, 1, 2]), (8, [0, 0, 1]), (9, [0, 0, 1]), (10, [0, 0, 0])])
def test_workspace_counts_for_all_of_a_group(limit, expected):
    graph = Graph("w", "abc", [0, 0, 0], [1.0] * 3, [2, 2, 2], [[], [], [0, 1]], workspace=[2, 2, 0])
    plan = keep_all(graph).plan
    groups = group_computations(graph, plan, limit)
    assert groups == expected
    assert worst_peak(graph, plan, groups) <= max(limit, worst_peak(graph, plan, [0, 1, 2]))
