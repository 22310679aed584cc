"""The one evaluator: cost and memory by hand, against a simulation of liveness, and what it refuses."""

import pytest
from graphs import chain, orders, random_graphs
from hypothesis import given
from hypothesis import strategies as st

from checkmate_tf.errors import PlanError
from checkmate_tf.evaluator import evaluate
from checkmate_tf.plan import Plan, plan_from_sequence
from checkmate_tf.statements import ALLOCATE, COMPUTE, DEALLOCATE, Statement, statements_of


def test_statements_do_as_well_as_their_plan():
    graph = chain(3)
    order = [0, 1, 2, 3, 0, 4, 5, 6]
    found = evaluate(graph, iter(statements_of(graph, order)))
    plans = evaluate(graph, plan_from_sequence(graph, order))
    assert (found.cost, found.peak_bytes) == (plans.cost, plans.peak_bytes)
    assert found.memory.tolist() == plans.memory.tolist()


def test_cost_and_memory_by_hand():
    graph = chain(2, constant_bytes=10, workspace=[0, 7, 0, 0, 0])  # unit sizes, the loss 4
    found = evaluate(graph, plan_from_sequence(graph, [0, 1, 2, 3, 4]))
    assert found.memory.tolist() == [11, 12 + 7, 16, 17, 13 - 1 + 1]
    assert (found.peak_bytes, found.peak_node) == (19, 1)
    assert (found.cost, found.base_cost, found.overhead) == (6.0, 6.0, 0.0)


def test_recomputation_frees_in_between():
    graph = chain(2)
    found = evaluate(graph, plan_from_sequence(graph, [0, 1, 2, 0, 3, 4]))
    # f0 dies after f1 and is made again for g1; it serves g0, too.
    assert found.memory.tolist() == [1, 2, 1 + 4, 1 + 4 + 1, 1 + 1 + 4 + 1, 3]
    assert found.counts.tolist() == [2, 1, 1, 1, 1]
    assert found.overhead == pytest.approx(1 / 6)


@given(random_graphs(8), st.data())
def test_evaluate_is_a_simulation_of_liveness(graph, data):
    order = data.draw(orders(graph))
    plan = plan_from_sequence(graph, order)
    found = evaluate(graph, plan)
    assert plan.sequence == order
    for position in range(len(order)):  # a value is live up to its last reader before it is made again; a sink, always
        live = 0
        for made, node in enumerate(order[: position + 1]):
            after = [q for q in range(made + 1, len(order)) if order[q] == node]
            end = after[0] if after else len(order)
            reads = [q for q in range(made + 1, end) if node in graph.inputs[order[q]]]
            sink = not graph.users[node] and not after
            if position <= max([made, *reads]) or sink:
                live += graph.sizes[node]
        assert found.memory[position] == graph.constant_bytes + live + graph.workspace[order[position]]


def test_never_computed():
    graph = chain(2)
    with pytest.raises(PlanError, match="g0 is never computed"):
        evaluate(graph, plan_from_sequence(graph, [0, 1, 2, 3]))


def test_too_late():
    graph = chain(2, recompute_until=[3, 5, 5, 5, 5])
    evaluate(graph, plan_from_sequence(graph, [0, 1, 0, 2, 3, 4]))
    with pytest.raises(PlanError, match="f0 may not be computed again in stage 3"):
        evaluate(graph, plan_from_sequence(graph, [0, 1, 2, 0, 3, 4]))


A, C, D = ALLOCATE, COMPUTE, DEALLOCATE


@pytest.mark.parametrize(
    ("statements", "message"),
    [
        ([(A, 0, 0), (A, 1, 0)], "register %0 is allocated twice"),
        ([(C, 0, 0)], "which is not allocated for it"),
        ([(A, 0, 0), (C, 0, 0), (C, 0, 0)], "which is not allocated for it"),
        ([(A, 0, 0), (A, 1, 1), (C, 1, 1, (0,))], "an input of f1 is not in memory"),
        ([(A, 0, 0), (C, 0, 0), (A, 1, 1), (C, 1, 1, ())], "an input of f1 is not in memory"),
        ([(A, 0, 0), (C, 0, 0), (D, 0, 0), (A, 1, 1), (C, 1, 1, (0,))], "an input of f1 is not in memory"),
        ([(D, 0, 0)], "is freed but not allocated"),
        ([("jump", 0, 0)], "'jump' is not a statement"),
    ],
)
def test_broken_plans(statements, message):
    with pytest.raises(PlanError, match=message):
        evaluate(chain(2), Plan(tuple(Statement(*s) for s in statements), 2))
