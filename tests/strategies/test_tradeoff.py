"""What less memory costs: each budget against brute force, and that answers serve the other budgets."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from bruteforce import least_cost
from graphs import chain, resnet

import checkmate_tf
from checkmate_tf.errors import BudgetError, InfeasibleBudgetError
from checkmate_tf.schedule import keep_all
from checkmate_tf.strategies import SolveOptions
from checkmate_tf.strategies import tradeoff as module
from checkmate_tf.strategies.search.minimum_budget import proven_minimum
from checkmate_tf.strategies.tradeoff import Offer, Tradeoff, tradeoff

EXACT = SolveOptions(time_limit=20, gap=0.0)


def test_small_graphs_as_by_brute_force():
    graph = chain(4)
    found = tradeoff(graph, 5, EXACT)
    assert found.plain_bytes == keep_all(graph).peak_bytes and found.offers[0].overhead == 0
    for offer in found.offers:
        assert offer.schedule.cost == pytest.approx(least_cost(graph, offer.budget_bytes))
        assert offer.lower_bound <= offer.schedule.cost + 1e-9
    assert found.offers[-1].budget_bytes == found.least_bytes
    assert math.isinf(least_cost(graph, found.impossible_bytes - 1))


def test_budgets_fall_and_costs_rise():
    found = tradeoff(resnet(6), 8, SolveOptions(time_limit=6))
    sizes = [offer.budget_bytes for offer in found.offers]
    assert sizes == sorted(sizes, reverse=True) and len(sizes) == 8
    for numbers in ("overhead", "least_overhead"):
        values = [getattr(offer, numbers) for offer in found.offers]
        assert values == sorted(values)
    assert all(offer.schedule.peak_bytes <= offer.budget_bytes for offer in found.offers)
    assert all(offer.least_overhead <= offer.overhead + 1e-9 for offer in found.offers)
    assert found.impossible_bytes <= found.least_bytes <= sizes[-1]


@pytest.mark.parametrize("order", ["fixed", "free"])
def test_what_is_impossible_is_so_in_the_orders_that_are_searched(order):
    """Pinned values prove more of the graph's own order than of any."""
    graph = resnet(4)
    graph = replace(graph, recompute_until=np.zeros(len(graph), np.int64))  # nothing may be computed again
    assert proven_minimum(graph, "free")[0] < proven_minimum(graph, "fixed")[0]
    found = tradeoff(graph, 2, SolveOptions(time_limit=2, order=order))
    assert found.impossible_bytes == proven_minimum(graph, order)[0]


def test_answers_serve_other_budgets(monkeypatch):
    """A schedule for a smaller budget fits a larger one; a bound for a larger budget holds for a smaller one."""
    graph = chain(8)
    cheap = module.checkmate(graph, 8, EXACT)

    def solved(graph, size, options):
        if size != 8:
            raise InfeasibleBudgetError("not found in that time", size, size, proven=False)
        return cheap

    monkeypatch.setattr(module, "checkmate", solved)
    monkeypatch.setattr(module, "minimum_budget", lambda graph, seconds: (5, 8, 0))
    first, *others = tradeoff(graph, 4, EXACT).offers
    assert first.overhead == 0 and {offer.schedule.cost for offer in others} == {cheap.cost}
    solved = [(12, None, 20.0), (10, cheap, 30.0), (8, cheap, 25.0)]
    assert [module._bound(solved, size, graph) for size in (12, 10, 8)] == [20.0, 30.0, 30.0]


def offers(graph, *overheads):
    """Budgets that lie evenly, with schedules that cost so much more."""
    made = [
        Offer(1000 - 100 * k, SimpleNamespace(graph=graph, overhead=overhead), graph.base_cost)
        for k, overhead in enumerate(overheads)
    ]
    return Tradeoff(graph, tuple(made), 500, 700)


def test_the_knee_is_where_memory_becomes_dear():
    graph = chain(8)
    assert offers(graph, 0, 0.02, 0.05, 0.4).knee.budget_bytes == 800
    assert offers(graph, 0, 0, 0).knee is None, "nothing is recomputed"
    assert offers(graph, 0, 1).knee is None, "too few"


def test_batches_grow_with_the_budget():
    graph = replace(chain(20), constant_bytes=100)
    found = tradeoff(graph, 3, SolveOptions(time_limit=3), batch_size=32, fixed_bytes=100)
    first, *_, last = found.offers
    assert first.batch_plain == 32 and last.batch_most == 32
    growing = (found.plain_bytes - 100) / (found.least_bytes - 100)
    assert first.batch_most == int(32 * growing) and last.batch_plain == int(32 / growing)
    assert tradeoff(graph, 2, SolveOptions(time_limit=1)).offers[0].batch_most is None


def test_as_text_and_as_values():
    found = tradeoff(chain(12), 4, SolveOptions(time_limit=2), batch_size=8)
    lines = str(found).splitlines()
    assert "samples, plainly" in lines[0] and lines[1].split()[:3] == ["17", "B", "100%"]
    assert lines[-1].startswith(f"below {found.impossible_bytes} B no schedule fits")
    values = found.to_dict()
    assert [offer["budget_bytes"] for offer in values["offers"]] == [o.budget_bytes for o in found.offers]
    assert values["offers"][0]["overhead"] == 0 and values["batch_size"] == 8


@pytest.mark.long
def test_it_is_drawn(tmp_path):
    found = tradeoff(chain(12), 4, SolveOptions(time_limit=2))
    (axes,) = found.plot(tmp_path / "curve.png").axes
    assert (tmp_path / "curve.png").stat().st_size > 1000
    assert axes.get_xlabel() == "budget, B" and len(axes.lines[0].get_xdata()) == len(found.offers)


def test_time_is_for_all_of_them():
    found = tradeoff(resnet(8), 10, SolveOptions(time_limit=3, gap=0.0))
    assert found.seconds < 3 + 3 and found.offers[-1].overhead > 0


def test_two_budgets_at_least():
    with pytest.raises(BudgetError, match="at least 2"):
        checkmate_tf.tradeoff(chain(4), budgets=1)


def test_a_graph_keeps_its_order():
    heard = []
    found = checkmate_tf.tradeoff(chain(6), budgets=3, time_limit=3, progress=lambda *told: heard.append(told))
    assert found.batch_size is None and heard[0] == (0, 3, "the least budget") and heard[-1][:2] == (3, 3)
