"""R and S, and their round trip through sequences."""

import numpy as np
import pytest
from graphs import chain, orders, random_graphs, resnet
from hypothesis import given
from hypothesis import strategies as st

from checkmate_tf.errors import PlanError
from checkmate_tf.plan import evaluate, plan_from_sequence
from checkmate_tf.schedule import Schedule, keep_all


def test_keep_all_is_the_plain_order():
    graph = resnet(6)
    schedule = keep_all(graph)
    plain = evaluate(graph, plan_from_sequence(graph, range(len(graph))))
    assert schedule.plan.sequence == list(range(len(graph)))
    assert (schedule.peak_bytes, schedule.cost) == (plain.peak_bytes, plain.cost)
    assert (schedule.overhead, schedule.gap, schedule.status) == (0.0, 0.0, "optimal")


def test_matrices_by_hand():
    graph = chain(2)  # f0 f1 loss g1(f0, f1, loss) g0(f0, g1)
    schedule = Schedule(graph, [0, 1, 2, 0, 3, 4])
    assert np.argwhere(schedule.R).tolist() == [[0, 0], [1, 1], [2, 2], [3, 0], [3, 3], [4, 4]]
    assert np.argwhere(schedule.S).tolist() == [[1, 0], [2, 1], [3, 1], [3, 2], [4, 0], [4, 3]]
    assert schedule.overhead == pytest.approx(1 / 6)


@given(random_graphs(8), st.data())
def test_sequences_round_trip(graph, data):
    order = data.draw(orders(graph))
    schedule = Schedule(graph, order, strategy="test", budget_bytes=7)
    assert schedule.plan.sequence == schedule.sequence.tolist() == order
    assert (schedule.strategy, schedule.budget_bytes) == ("test", 7)
    again_ = Schedule.from_matrices(graph, schedule.R, schedule.S)
    assert again_.plan.sequence == order
    assert np.array_equal(again_.S, schedule.S)


@pytest.mark.parametrize(
    ("order", "message"),
    [
        ([0, 2], "loss in stage 1 is not frontier-advancing"),
        ([0, 1, 0, 0, 2], "f0 in stage 2 is not frontier-advancing"),
        ([0, 1], "loss is never computed"),
        ([0, 1, 2, 3, 4, 0], "f0 in stage 5"),
    ],
)
def test_sequences_that_have_no_matrices(order, message):
    schedule = Schedule(chain(2), order)
    assert not schedule.frontier_advancing
    with pytest.raises(PlanError, match=message):
        schedule.R  # noqa: B018 - it is computed


def test_twice_in_a_stage_is_a_schedule_without_matrices():
    schedule = Schedule(chain(2), [0, 1, 2, 0, 0, 3, 4])
    assert not schedule.frontier_advancing
    assert schedule.cost == schedule.graph.base_cost + 2


def test_matrices_are_no_sequence():
    with pytest.raises(PlanError, match="2-dimensional"):
        Schedule(chain(2), np.eye(5, dtype=bool))


def test_malformed_matrices():
    graph = chain(1)
    eye, none = np.eye(3, dtype=bool), np.zeros((3, 3), dtype=bool)
    with pytest.raises(PlanError, match=r"R has shape \(2, 2\)"):
        Schedule.from_matrices(graph, eye[:2, :2], none)
    with pytest.raises(PlanError, match="lower triangular"):
        Schedule.from_matrices(graph, none, none)
    with pytest.raises(PlanError, match="without its input f0"):
        Schedule.from_matrices(graph, eye, none)
    late = none.copy()
    late[2, 0] = True
    with pytest.raises(PlanError, match="keeps a value that is not in memory"):
        Schedule.from_matrices(graph, eye, late)


def test_matrices_cannot_be_written():
    with pytest.raises(ValueError, match="read-only"):
        keep_all(chain(2)).R[0, 0] = False
    with pytest.raises(ValueError, match="read-only"):
        keep_all(chain(2)).sequence[0] = 1


def test_the_gap_counts_the_base_cost():
    graph = chain(2)
    schedule = Schedule(graph, [0, 1, 2, 0, 3, 4], lower_bound=0.0)
    assert schedule.gap == pytest.approx(1 - 6 / 7)
    assert Schedule(graph, [0, 1, 2, 0, 3, 4], lower_bound=7.0).gap == 0.0
