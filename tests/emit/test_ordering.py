"""The order that a plan needs: no interleaving that keeps it exceeds the limit (brute force)."""

from __future__ import annotations

import itertools

import pytest
from graphs import chain, random_graphs
from hypothesis import given, settings
from hypothesis import strategies as st

from checkmate_tf.emit.ordering import Strict, Within, needed_waits
from checkmate_tf.graph import Graph
from checkmate_tf.plan import COMPUTE, DEALLOCATE, plan_from_sequence
from checkmate_tf.schedule import keep_all


def worst_peak(graph, plan, order):
    """The most memory of any execution in which computation j starts after its inputs and the first `order[j]`.

    A computation's value is there from its start, its workspace only meanwhile; a value is freed after the last of its
    readers. Several computations may run at once: then all their workspaces are there together.
    """
    computes = [s for s in plan if s.op == COMPUTE]
    position = {s.register: k for k, s in enumerate(computes)}
    after = [{position[r] for r in s.reads} | set(range(order[k])) for k, s in enumerate(computes)]
    freed = {s.register for s in plan if s.op == DEALLOCATE}
    readers = [{k for k, t in enumerate(computes) if s.register in t.reads} or {position[s.register]} for s in computes]

    def live(finished, started):
        alive = [
            k in started or computes[k].register not in freed or not readers[k] <= finished for k in finished | started
        ]
        kept = [
            int(graph.sizes[computes[k].node])
            for k, is_alive in zip(finished | started, alive, strict=True)
            if is_alive
        ]
        return graph.constant_bytes + sum(kept)

    # Every reachable state: which computations have finished, and which of the ready ones run now.
    worst, todo, seen = 0, [frozenset()], set()
    while todo:
        finished = todo.pop()
        if finished in seen:
            continue
        seen.add(finished)
        ready = [k for k in range(len(computes)) if k not in finished and after[k] <= finished]
        for count in range(1, len(ready) + 1):
            for running in itertools.combinations(ready, count):
                work = sum(int(graph.workspace[computes[k].node]) for k in running)
                worst = max(worst, live(finished, frozenset(running)) + work)
        todo += [finished | {k} for k in ready]
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
    assert worst_peak(graph, plan, needed_waits(graph, plan, Within(limit))) <= limit


@settings(max_examples=60, deadline=None)
@given(plans())
def test_one_computation_less_waited_for_exceeds_the_limit(given_plan):
    """No wait is longer than the bound needs, if each computation's predecessors are all that it waits for."""
    graph, plan = given_plan
    limit = worst_peak(graph, plan, list(range(plan.registers)))
    order = needed_waits(graph, plan, Within(limit))
    nodes = plan.sequence
    for j, wait in enumerate(order):
        if wait and nodes[wait - 1] != nodes[j]:
            assert bound(graph, plan, order, j, wait) <= limit or wait == j
            assert bound(graph, plan, order, j, wait - 1) > limit or wait - 1 < least(plan, order, j)


def least(plan, order, j):
    """What computation j waits for in any case: all that its inputs have waited for, and what computed its node."""
    computes = [s for s in plan if s.op == COMPUTE]
    position = {s.register: k for k, s in enumerate(computes)}
    again = [k + 1 for k in range(j) if computes[k].node == computes[j].node]
    return max([0, *again, *(order[position[r]] for r in computes[j].reads)])


def bound(graph, plan, order, j, wait):
    """The most memory when j is the last one that has started, by the definition: everything else runs or lingers."""
    computes = [s for s in plan if s.op == COMPUTE]
    position = {s.register: k for k, s in enumerate(computes)}
    finished, todo = set(range(wait)), [position[r] for r in computes[j].reads]
    while todo:
        k = todo.pop()
        finished |= {k, *range(order[k])}
        todo += [position[r] for r in computes[k].reads]
    freed = {s.register for s in plan if s.op == DEALLOCATE}
    total = graph.constant_bytes
    for k in range(j + 1):
        s = computes[k]
        readers = {m for m, t in enumerate(computes) if s.register in t.reads} or {k}
        if s.register not in freed or not readers <= finished:
            total += int(graph.sizes[s.node])
        if k not in finished:
            total += int(graph.workspace[s.node])
    return total


@settings(max_examples=60, deadline=None)
@given(plans(), st.floats(0.0, 3.0))
def test_computations_wait_for_earlier_ones_and_for_those_of_their_node(given_plan, slack):
    graph, plan = given_plan
    order = needed_waits(graph, plan, Within(int(slack * keep_all(graph).peak_bytes)))
    newest = {}
    for j, (node, wait) in enumerate(zip(plan.sequence, order, strict=True)):
        assert newest.get(node, -1) < wait <= j or (wait == 0 and node not in newest)
        newest[node] = j


def test_no_memory_no_freedom():
    graph = chain(5)
    plan = keep_all(graph).plan
    assert needed_waits(graph, plan, Strict()) == list(range(len(graph)))
    assert needed_waits(graph, plan, Within(1)) == list(range(len(graph)))


def test_enough_memory_needs_no_order():
    graph = chain(5)
    plan = keep_all(graph).plan
    assert set(needed_waits(graph, plan, Within(int(graph.sizes.sum())))) == {0}


def test_a_chain_is_in_order_as_it_is():
    graph = chain(5)
    plan = keep_all(graph).plan
    assert set(needed_waits(graph, plan, Within(keep_all(graph).peak_bytes))) == {0}


def test_a_recomputation_waits_for_what_it_repeats():
    graph = chain(2)
    plan = plan_from_sequence(graph, [0, 1, 2, 0, 1, 3, 0, 4])
    assert needed_waits(graph, plan, Within(10**9)) == [0, 0, 0, 1, 2, 2, 4, 4]


@pytest.mark.parametrize(("limit", "expected"), [(7, [0, 1, 1]), (8, [0, 0, 0]), (10, [0, 0, 0])])
def test_workspace_counts_for_all_that_may_run(limit, expected):
    graph = Graph("w", "abc", [0, 0, 0], [1.0] * 3, [2, 2, 2], [[], [], [0, 1]], workspace=[2, 2, 0])
    plan = keep_all(graph).plan
    order = needed_waits(graph, plan, Within(limit))
    assert order == expected
    assert worst_peak(graph, plan, order) <= limit
