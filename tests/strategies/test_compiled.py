"""What Numba compiles is compiled before a strategy's clock begins, and only if something is to be searched for."""

import time

import pytest
from graphs import unet

from checkmate_tf.operators import OperatorGraph
from checkmate_tf.paging import with_host
from checkmate_tf.schedule import keep_all
from checkmate_tf.strategies import SolveOptions, compiled, minimum_budget, solve
from checkmate_tf.strategies.max_batch import max_batch
from checkmate_tf.strategies.monet import choose_operators, monet
from checkmate_tf.strategies.tradeoff import tradeoff

GRAPH = unet(3)
PLAIN = keep_all(GRAPH).peak_bytes
SEARCH = ("checkmate", "least-peak", "milp", "lp-rounding", "lp-rounding-random", "monet-noop")
CALLS = {
    **{name: lambda name=name: solve(GRAPH, PLAIN - 1, name) for name in SEARCH},
    "copies": lambda: solve(with_host(GRAPH, 1.0, 1.0, least_bytes=1), PLAIN - 1),
    "monet": lambda: monet(OperatorGraph(GRAPH, {}), PLAIN - 1),
    "operators": lambda: choose_operators(OperatorGraph(GRAPH, {}), PLAIN - 1),
    "least budget": lambda: minimum_budget(GRAPH),
    "tradeoff": lambda: tradeoff(GRAPH),
    "largest batch": lambda: max_batch(GRAPH, 2 * PLAIN),
}


class Compiling(Exception):
    pass


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_it_compiles_before_the_clock_begins(monkeypatch, call):
    def compile_once(*_):
        raise Compiling

    def perf_counter():
        raise AssertionError("the clock begins first")

    monkeypatch.setattr(compiled, "compile_once", compile_once)
    monkeypatch.setattr(time, "perf_counter", perf_counter)
    with pytest.raises(Compiling):
        call()


@pytest.mark.parametrize("name", SEARCH)
def test_nothing_is_compiled_where_nothing_is_searched_for(monkeypatch, name):
    asked = []
    monkeypatch.setattr(compiled, "compile_once", lambda *_: asked.append(name))
    assert solve(GRAPH, PLAIN, name, SolveOptions(time_limit=1.0)).overhead == 0
    assert not asked
