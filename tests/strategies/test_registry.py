"""Every strategy of the registry loads, has the protocol's parameters, and solves a small graph or says why not."""

import inspect
import subprocess
import sys
import typing

import pytest
from graphs import chain, unet

from checkmate_tf.errors import InfeasibleBudgetError, StrategyError
from checkmate_tf.schedule import keep_all
from checkmate_tf.strategies import STRATEGIES, SolveOptions, StrategyFunction, solve

CHAINS_ONLY = ["griewank", "chen-sqrt", "chen-greedy"]
OPTIONS = SolveOptions(time_limit=60.0, gap=1.0)


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_strategy_has_the_parameters_and_types_of_the_protocol(name):
    function = STRATEGIES[name].load()
    wanted = inspect.signature(StrategyFunction.__call__).parameters
    assert list(inspect.signature(function).parameters) == [p for p in wanted if p != "self"]
    assert typing.get_type_hints(function) == typing.get_type_hints(StrategyFunction.__call__)


@pytest.mark.parametrize("name", STRATEGIES)
def test_where_names_the_function(name):
    module, function = STRATEGIES[name].where.split(":")
    assert module.startswith("checkmate_tf.strategies.")
    assert getattr(sys.modules[module], function) is STRATEGIES[name].load()


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_keeps_everything_where_there_is_room(name):
    graph = chain(6)
    schedule = solve(graph, keep_all(graph).peak_bytes, name, OPTIONS)
    assert (schedule.strategy, schedule.cost) == (name, graph.base_cost)


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_solves_a_small_graph_or_says_why_not(name):
    graph = chain(4)
    budget = keep_all(graph).peak_bytes - 1
    try:
        schedule = solve(graph, budget, name, OPTIONS)
    except InfeasibleBudgetError as error:
        assert name == "checkpoint-all", error
    else:
        assert schedule.peak_bytes <= budget
        assert (schedule.strategy, schedule.budget_bytes) == (name, budget)
        assert graph.base_cost < schedule.cost


@pytest.mark.parametrize("name", CHAINS_ONLY)
def test_what_is_for_chains_says_so(name):
    graph = unet(2)
    with pytest.raises(StrategyError, match="linear networks only"):
        solve(graph, keep_all(graph).peak_bytes - 1, name, OPTIONS)


def test_the_registry_imports_no_strategy():
    code = (
        "import sys\nfrom checkmate_tf.strategies import STRATEGIES\n"
        "rooms = {name.split('.')[2] for name in sys.modules if name.startswith('checkmate_tf.strategies.')}\n"
        "assert rooms <= {'options', 'registry'}, rooms\n"
        "STRATEGIES['griewank'].load()\n"
        "assert 'checkmate_tf.strategies.baselines.griewank' in sys.modules\n"
        "assert 'checkmate_tf.strategies.programs' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
