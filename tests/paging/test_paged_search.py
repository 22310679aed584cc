"""Schedules with copies to the host: windows, the search, and the lower bound."""

from __future__ import annotations

import numpy as np
import pytest
from graphs import resnet, training, unet
from hypothesis import given, settings
from hypothesis import strategies as st

from checkmate_tf.errors import InfeasibleBudgetError
from checkmate_tf.graph import FORWARD, Graph
from checkmate_tf.paging import timeline, with_host, without_host
from checkmate_tf.plan import evaluate, plan_from_sequence
from checkmate_tf.schedule import keep_all
from checkmate_tf.strategies import SolveOptions, solve
from checkmate_tf.strategies.paging.bound import paging_bound
from checkmate_tf.strategies.paging.windows import with_windows
from checkmate_tf.strategies.search.arrays import Hosted, flatten
from checkmate_tf.strategies.search.sequences.keep_where_room import keep_where_room
from checkmate_tf.strategies.search.simulate import buffers, simulate


@st.composite
def trained(draw: st.DrawFn, most: int = 7) -> Graph:
    """Training steps with skips, some of whose values may not be computed again."""
    n = draw(st.integers(3, most))
    inputs = [[]] + [sorted({k - 1, draw(st.integers(0, k - 1))}) for k in range(1, n)]
    costs = draw(st.lists(st.integers(1, 9), min_size=n, max_size=n))
    sizes = draw(st.lists(st.integers(1, 9), min_size=n, max_size=n))
    until = [draw(st.sampled_from([0, 3 * n, 3 * n])) for _ in range(n)]
    graph = training(inputs, costs, sizes)
    return training(inputs, costs, sizes, recompute_until=[*until, *[len(graph)] * (len(graph) - n)])


def share_of(graph: Graph, share: float) -> int:
    peak = keep_all(graph).peak_bytes
    return graph.constant_bytes + int(share * (peak - graph.constant_bytes))


def simulated(graph: Graph, budget: int, hosted: np.ndarray, price: float) -> np.ndarray | None:
    """One simulation with weights 0; None if it does not fit."""
    n = len(graph)
    problem = flatten(graph, host=Hosted(hosted, np.full(n, price)))
    sequence, again = np.zeros(64 * n, np.int64), np.zeros(n, np.int64)
    extra, length, stage = simulate(
        problem, budget - graph.constant_bytes, np.zeros((1, n)), np.zeros(n, np.int64), 1.0, 0.0, 1e299,
        buffers(n), sequence, again,
    )  # fmt: skip
    if stage < n:
        return None
    counts = np.bincount(sequence[:length], minlength=n) - 1
    assert extra == pytest.approx(float(counts @ np.where(hosted, price, graph.costs)))
    return keep_where_room(problem, budget - graph.constant_bytes, sequence[:length])


@settings(max_examples=300, deadline=None)
@given(trained(), st.floats(0.4, 1.0), st.integers(0, 127), st.sampled_from([0.2, 1.0, 5.0]))
def test_a_simulated_schedule_fits_with_its_copies_and_windows_make_it_no_dearer(graph, share, bits, rate):
    whole = with_host(graph, rate, rate, least_bytes=1)
    hosted = np.array([i in whole.copies and bool(bits >> i & 1) for i in range(len(graph))])
    budget = share_of(graph, share)
    sequence = simulated(graph, budget, hosted, 0.1)
    if sequence is None:
        return
    found = evaluate(whole, plan_from_sequence(whole, with_windows(whole, sequence.tolist(), hosted, budget)))
    assert found.peak_bytes <= budget
    one_by_one = found.counts[: len(graph)] @ graph.costs + 2 * sum(whole.host.to_host) * len(sequence)
    assert graph.base_cost <= found.cost + 1e-9 <= one_by_one + 1e-6


def test_windows_hide_copies_behind_computations():
    """Five values of one byte, four of which leave. A copy takes half of what a computation takes."""
    graph = training([[], [0], [1], [2], [3]], [1] * 5, [1] * 5, saves=[[i] for i in range(5)])
    whole = with_host(graph, 2.0, 2.0, least_bytes=1)
    hosted = np.array([i in whole.copies for i in range(len(graph))])
    budget = 7
    sequence = simulated(graph, budget - 1, hosted, 0.1)
    paged = with_windows(whole, sequence.tolist(), hosted, budget)
    assert any(k >= len(graph) for k in paged)
    found = evaluate(whole, plan_from_sequence(whole, paged))
    assert (found.cost, found.peak_bytes <= budget) == (graph.base_cost, True)


@pytest.mark.long
def test_with_a_fast_engine_hardly_anything_is_computed_again():
    graph = resnet(12)
    budget = share_of(graph, 0.5)
    whole = with_host(graph, 1e3 * graph.sizes.max(), 1e3 * graph.sizes.max(), least_bytes=1)
    schedule = solve(whole, budget, options=SolveOptions(time_limit=6.0, gap=0.005))
    assert schedule.overhead < 0.005
    assert schedule.peak_bytes <= budget
    assert timeline(whole, schedule.plan).computing <= 1.005 * graph.base_cost  # the gap may leave something
    assert solve(graph, budget, options=SolveOptions(time_limit=3.0)).overhead > 0.02


@pytest.mark.long
def test_with_a_slow_engine_it_is_the_schedule_without_copies():
    graph = resnet(12)
    budget = share_of(graph, 0.5)
    whole = with_host(graph, 1e-6, 1e-6, least_bytes=1)
    schedule = solve(whole, budget, options=SolveOptions(time_limit=4.0, gap=0.0))
    assert max(schedule.sequence) < len(graph)
    assert schedule.cost <= solve(graph, budget, options=SolveOptions(time_limit=1.0, gap=0.0)).cost * (1 + 1e-9)
    assert schedule.lower_bound <= schedule.cost


@pytest.mark.long
def test_what_is_proved_is_about_the_order_that_was_asked_for():
    graph = resnet(12)
    whole = with_host(graph, 1e-6, 1e-6, least_bytes=1)
    for order in ("fixed", "free"):
        schedule = solve(whole, share_of(graph, 0.5), options=SolveOptions(time_limit=3.0, gap=0.0, order=order))
        assert schedule.bound_order == order and graph.base_cost <= schedule.lower_bound <= schedule.cost


def test_where_all_fits_nothing_is_copied():
    graph = with_host(unet(3), 1.0, 1.0, least_bytes=1)
    schedule = solve(graph, keep_all(graph).peak_bytes)
    assert schedule.sequence.tolist() == list(range(graph.first_copy))
    assert schedule.status == "optimal"


def test_what_copies_make_possible():
    """No value may be computed again, so without copies nothing can be saved."""
    n = 6
    fields = {"saves": [[i] for i in range(n)], "recompute_until": [0] * 13}
    graph = training([[]] + [[k - 1] for k in range(1, n)], [4] * n, [4] * n, **fields)
    whole = with_host(graph, 1.0, 1.0, least_bytes=1)
    budget = keep_all(graph).peak_bytes - 8
    with pytest.raises(InfeasibleBudgetError):
        solve(graph, budget)
    assert solve(whole, budget, options=SolveOptions(time_limit=3.0)).peak_bytes <= budget
    with pytest.raises(InfeasibleBudgetError) as error:
        solve(whole, 4, options=SolveOptions(time_limit=2.0))
    assert error.value.proven


# The bound ------------------------------------------------------------------------------------------------------------


def any_paged_sequences(graph: Graph, count: int, seed: int) -> list[list[int]]:
    """Random schedules with copies, and with values computed again."""
    rng = np.random.default_rng(seed)
    base = without_host(graph)
    found = []
    for _ in range(count):
        sequence = list(range(len(base)))
        for _ in range(int(rng.integers(0, 4))):
            i = int(rng.choice(np.flatnonzero(base.kinds == FORWARD)))
            sequence.insert(int(rng.integers(sequence.index(i) + 1, len(sequence) + 1)), i)
        for value, copy in graph.copies.items():
            if rng.random() < 0.5:
                out = int(rng.integers(sequence.index(value) + 1, len(sequence)))
                sequence.insert(out, copy)
                if value not in sequence[out:]:
                    sequence.insert(int(rng.integers(out + 1, len(sequence))), value)
        found.append(sequence)
    return found


@pytest.mark.long(but=("2",))
@pytest.mark.parametrize("seed", range(4))
def test_no_schedule_is_below_the_bound(seed):
    rng = np.random.default_rng(seed)
    n = 5
    costs, sizes = rng.integers(1, 9, n).tolist(), rng.integers(1, 9, n).tolist()
    graph = training([[]] + [[k - 1] for k in range(1, n)], costs, sizes, saves=[[i] for i in range(n)])
    whole = with_host(graph, 0.4, 0.3, least_bytes=1)
    known = [evaluate(whole, plan_from_sequence(whole, s)) for s in any_paged_sequences(whole, 4000, seed)]
    plain = keep_all(graph).peak_bytes
    for budget in sorted({int(plain * share) for share in (0.6, 0.75, 0.9)}):
        fitting = [one.cost for one in known if one.peak_bytes <= budget]
        if fitting:
            fixed, free = (paging_bound(whole, budget, 4.0, order=order) for order in ("fixed", "free"))
            assert graph.base_cost <= free <= fixed * (1 + 1e-9)
            assert fixed <= min(fitting) * (1 + 1e-9)


@pytest.mark.long
def test_the_bound_is_above_the_base_cost_where_the_engine_is_too_slow():
    graph = resnet(6)
    whole = with_host(graph, 1e-6, 1e-6, least_bytes=1)
    assert paging_bound(whole, share_of(graph, 0.4), 6.0) > graph.base_cost * 1.005
