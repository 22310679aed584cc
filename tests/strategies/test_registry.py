"""Every strategy of the registry loads, has the protocol's parameters, and solves a small graph or says why not."""

import inspect
import subprocess
import sys
import typing

import pytest
from graphs import chain, unet

from checkmate_tf.errors import InfeasibleBudgetError, PlanError, StrategyError
from checkmate_tf.schedule import keep_all
from checkmate_tf.strategies import STRATEGIES, SolveOptions, Strategy, StrategyFunction, register, solve

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
        assert name in ("checkpoint-all", "least-peak"), error
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
        "assert rooms <= {'budgets', 'options', 'registry'}, rooms\n"
        "STRATEGIES['griewank'].load()\n"
        "assert 'checkmate_tf.strategies.baselines.griewank' in sys.modules\n"
        "assert 'checkmate_tf.strategies.programs' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.fixture
def registry_as_it_was():
    before = dict(STRATEGIES)
    yield
    STRATEGIES.clear()
    STRATEGIES.update(before)


def own(function=lambda graph, budget_bytes, options: keep_all(graph)):
    return Strategy(lambda: function, "keeps all", "a test", True, False, False)


@pytest.mark.usefixtures("registry_as_it_was")
def test_a_strategy_of_ones_own_is_asked_by_its_name():
    graph = chain(4)
    register("own", own())
    assert list(STRATEGIES)[-1] == "own"
    assert solve(graph, keep_all(graph).peak_bytes, "own").cost == graph.base_cost
    with pytest.raises(PlanError, match="'own' made a schedule of .* bytes for a budget of"):
        solve(graph, keep_all(graph).peak_bytes - 1, "own")


@pytest.mark.usefixtures("registry_as_it_was")
@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("milp", own(), r"'milp' is there already \(problem \(9\) in a solver of programs\); choose another name"),
        ("", own(), "not empty"),
        ("own", keep_all, "'own' is given as function; give a Strategy"),
    ],
)
def test_what_cannot_be_registered_is_refused(name, given, message):
    before = dict(STRATEGIES)
    with pytest.raises(StrategyError, match=message):
        register(name, given)
    assert before == STRATEGIES
