"""The largest batch: never more than fits, never above the bound, and the brute-force optimum on tiny graphs."""

import json
from dataclasses import replace

import numpy as np
import pytest
from bruteforce import least_cost
from graphs import chain, random_graphs, resnet, unet
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import checkmate_tf
from checkmate_tf.cli import app
from checkmate_tf.errors import BudgetError, CostError, InfeasibleBudgetError
from checkmate_tf.files.graphs import write_graph
from checkmate_tf.graph import FORWARD, Graph
from checkmate_tf.largest_batch.max_batch_size import max_batch_size
from checkmate_tf.schedule import keep_all
from checkmate_tf.strategies import SolveOptions
from checkmate_tf.strategies.max_batch import cost_limit, max_batch
from checkmate_tf.strategies.max_batch.scaling import MOST_BATCH, scaled
from checkmate_tf.strategies.search.minimum_budget import proven_minimum


def least_peak(graph, limit):
    """By brute force, constants included; integer sizes."""
    return next(b for b in range(graph.constant_bytes, 10**6) if least_cost(graph, b) <= limit)


@settings(max_examples=12, deadline=None)
@given(random_graphs(6), st.integers(40, 400), st.integers(0, 4))
def test_tiny_graphs_are_solved(graph, memory, extra):
    assume(graph.base_cost > 0 and keep_all(graph).peak_bytes > graph.constant_bytes)
    share = extra / graph.base_cost
    fixed = graph.constant_bytes
    optimum = (memory - fixed) // (least_peak(graph, graph.base_cost + extra) - fixed)
    found = max_batch(graph, memory, share, options=SolveOptions(time_limit=20.0))
    assert found.batch_size == optimum == found.upper_bound
    assert found.schedule.peak_bytes <= memory
    assert found.schedule.cost <= found.max_cost * (1 + 1e-9)


@pytest.mark.parametrize("layers", [3, 5])
def test_a_chain_is_solved(layers):
    graph = chain(layers)
    optimum = 1000 // least_peak(graph, cost_limit(graph, "one-forward"))
    found = max_batch(graph, 1000, options=SolveOptions(time_limit=10.0))
    assert (found.batch_size, found.upper_bound, found.status) == (optimum, optimum, "optimal")
    assert found.batch_size > 1000 // keep_all(graph).peak_bytes


def test_a_graph_of_six_nodes_is_solved():
    """The eviction search finds 39 samples, and the relaxation does not rule out 53."""
    graph = Graph(
        "six", list("abcdef"), np.full(6, FORWARD), np.array([0.0, 8, 8, 2, 1, 2]), np.array([0, 8, 5, 5, 2, 4]),
        [[], [], [], [1], [1, 2], []], workspace=np.array([0, 0, 1, -3, 0, 1]), held=np.array([0, 0, 0, 3, 0, 0]),
    )  # fmt: skip
    found = max_batch(graph, 795, 3 / 21, options=SolveOptions(time_limit=10.0))
    assert (found.batch_size, found.upper_bound) == (53, 53)


def test_best_first_search_alone_finds_the_optimum_and_proves_it(monkeypatch):
    monkeypatch.setitem(max_batch.__globals__, "search", lambda *_: iter(()))
    graph = chain(5)
    optimum = 1000 // least_peak(graph, cost_limit(graph, "one-forward"))
    found = max_batch(graph, 1000, options=SolveOptions(time_limit=10.0))
    assert (found.batch_size, found.upper_bound) == (optimum, optimum)


def test_networks_hold_far_more_than_plainly():
    for graph in (resnet(10), unet(3)):
        memory = 50 * keep_all(graph).peak_bytes
        found = max_batch(graph, memory, options=SolveOptions(time_limit=4.0))
        assert 1.5 * 50 < found.batch_size <= found.upper_bound
        assert found.schedule.graph.sizes[0] == graph.sizes[0] * found.batch_size


def test_no_recomputation_is_the_plain_batch():
    graph = replace(unet(3), constant_bytes=5 << 20)
    peak = keep_all(graph).peak_bytes - graph.constant_bytes
    found = max_batch(graph, graph.constant_bytes + 7 * peak, 0.0, options=SolveOptions(time_limit=2.0))
    assert found.batch_size == 7 or found.schedule.cost == found.schedule.graph.base_cost
    assert found.batch_size >= 7


def test_constants_that_grow():
    graph = replace(chain(3), constant_bytes=10)
    batch = scaled(graph, 5, 4)
    assert batch.constant_bytes == 4 + 5 * 6 and (batch.sizes == 5 * graph.sizes).all()
    found = max_batch(graph, 500, fixed_bytes=4, options=SolveOptions(time_limit=5.0))
    assert found.schedule.peak_bytes <= 500
    assert found.schedule.graph.constant_bytes == 4 + 6 * found.batch_size


def test_the_limit_in_words_and_numbers():
    graph = chain(4)
    assert cost_limit(graph, "one-forward") == graph.base_cost + 4
    assert cost_limit(graph, 0.5) == 1.5 * graph.base_cost
    for bad in ("two-forward", -0.1, float("nan"), True, None):
        with pytest.raises(CostError, match="max_overhead"):
            cost_limit(graph, bad)


def test_bad_input():
    graph = replace(chain(3), constant_bytes=10)
    with pytest.raises(InfeasibleBudgetError, match="one sample needs"):
        max_batch(graph, 11, options=SolveOptions(time_limit=1.0))
    with pytest.raises(BudgetError, match="fixed_bytes"):
        max_batch(graph, 100, fixed_bytes=11)
    with pytest.raises(BudgetError):
        max_batch_size(graph, "60%")


def test_nothing_fits_below_what_no_batch_changes():
    """Also where samples take nothing, and so any number of them might fit."""
    graph = replace(chain(2), sizes=np.zeros(5, np.int64), constant_bytes=100)
    with pytest.raises(InfeasibleBudgetError, match="one sample needs"):
        max_batch(graph, 50, options=SolveOptions(time_limit=1.0))
    assert max_batch(graph, 100, options=SolveOptions(time_limit=1.0)).batch_size == MOST_BATCH


@pytest.mark.parametrize("column", [{"held": 2**50}, {"workspace": -(2**50)}, {"costs": 1e303}])
def test_batches_end_where_numbers_do(column):
    [(name, value)] = column.items()
    graph = chain(2)
    given = np.array(getattr(graph, name))
    given[1] = value
    graph = replace(graph, sizes=np.zeros(5, np.int64) + (2**50 if name == "workspace" else 0), **{name: given})
    found = max_batch(graph, 2**53, options=SolveOptions(time_limit=1.0))
    batch = found.schedule.graph
    assert 1 <= found.batch_size < MOST_BATCH and np.isfinite(found.max_cost)
    assert getattr(batch, name)[1] == found.batch_size * value


def test_bounds_are_whole_bytes():
    one = Graph("one", ["a"], np.array([FORWARD]), np.ones(1), np.full(1, 1000), [[]])
    found = max_batch(one, 10**10 - 1, options=SolveOptions(time_limit=1.0))
    assert found.batch_size == found.upper_bound


def test_a_best_schedule_is_no_proof(monkeypatch):
    graph = resnet(6)
    low, plain = proven_minimum(graph)[0], keep_all(graph).peak_bytes
    monkeypatch.setitem(max_batch.__globals__, "search", lambda *_: iter(()))
    with pytest.raises(InfeasibleBudgetError, match="may need less, but the best schedule") as error:
        max_batch(graph, (low + plain) // 2, options=SolveOptions(time_limit=0.3))
    assert not error.value.proven


@pytest.mark.parametrize("costs", ["v100", "true", [1.0, 2.0]])
def test_costs_that_may_not_grow_with_the_batch_are_refused(costs):
    with pytest.raises(CostError, match='give "flops"'):
        max_batch_size(chain(3), 300, costs=costs)


def test_the_public_call_takes_a_graph():
    found = checkmate_tf.max_batch_size(chain(3), 300, time_limit=5.0)
    assert found.batch_size == found.upper_bound > 0


def test_progress_tells_batches():
    told = []
    max_batch(resnet(6), 10**10, options=SolveOptions(time_limit=2.0, progress=lambda *a: told.append(a)))
    assert told and all(np.isfinite(a).all() and a[1] <= a[2] for a in told)


def test_the_command(tmp_path):
    path = tmp_path / "chain.json"
    write_graph(chain(4), path)
    run = CliRunner().invoke(app, ["max-batch", str(path), "--memory", "1000", "--time-limit", "5", "--json"])
    assert run.exit_code == 0, run.output
    result = json.loads(run.stdout)
    assert result["batch_size"] == result["upper_bound"] and result["status"] == "optimal"
    assert result["peak_bytes"] <= 1000 and result["cost"] <= result["max_cost"]


@pytest.mark.parametrize(
    ("arguments", "status"),
    [(["--memory", "3"], 3), (["--memory", "many"], 2), (["--memory", "99", "--max-overhead", "x"], 2)],
)
def test_the_command_refuses(tmp_path, arguments, status):
    path = tmp_path / "chain.json"
    write_graph(chain(4), path)
    assert CliRunner().invoke(app, ["max-batch", str(path), *arguments]).exit_code == status
