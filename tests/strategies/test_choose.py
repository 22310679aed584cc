"""The search for ways and a schedule: never below the true optimum, never above the default's."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from bruteforce import least_cost
from graphs import training_operators
from hypothesis import given, settings
from hypothesis import strategies as st

from checkmate_tf.errors import InfeasibleBudgetError, StrategyError
from checkmate_tf.graph import BACKWARD, FORWARD, Graph
from checkmate_tf.operators import Implementation, OperatorGraph
from checkmate_tf.plan import evaluate
from checkmate_tf.schedule import keep_all
from checkmate_tf.strategies import SolveOptions
from checkmate_tf.strategies.monet import choose_operators

EXACT = SolveOptions(time_limit=120.0, gap=0.0)  # it ends with the proof


def relus(layers=3, *, error="", cost=1.0):
    """Layers of a linear map and a ReLU; its gradient reads the ReLU's value, or a mask an eighth as large.

    The next map's gradient does not need its input (as with frozen weights), so only the ReLU's keeps it.
    """
    names, inputs, sizes, costs, encodings = [], [], [], [], set()
    value, masks, relus = None, [], []
    for i in range(layers):
        linear, relu = len(names), len(names) + 1
        masks.append(relu + 1)
        relus.append(relu)
        encodings.add(relu + 1)
        names += [f"linear{i}", f"relu{i}", f"mask{i}"]
        inputs += [[] if value is None else [value], [linear], [relu]]
        sizes += [8, 8, 1]
        costs += [10.0, 1.0, 0.5]
        value = relu
    kinds = [FORWARD] * len(names)
    names.append("seed")
    inputs.append([value])
    ways, gradient = {}, len(names) - 1
    for i in reversed(range(layers)):
        ways[len(names)] = [Implementation("mask", cost, (gradient, masks[i]), 0, error)]
        names += [f"grad relu{i}", f"grad linear{i}"]
        inputs += [sorted([gradient, relus[i]]), [len(names) - 2]]
        gradient = len(names) - 1
    more = len(names) - len(sizes)
    graph = Graph("relus", names, np.array([*kinds, *[BACKWARD] * more]), np.array([*costs, *[1.0] * more]),
                  np.array([*sizes, *[8] * more]), inputs)  # fmt: skip
    return OperatorGraph(graph, ways, frozenset(encodings))


def two_readers(first="output", second="output"):
    """Two gradients read a value that is dear to compute again. Either may read the next one, which is kept anyhow."""
    names = ["linear", "norm", "seed", "grad norm", "grad more", "grad linear"]
    inputs = [[], [0], [1], [0, 2], [0, 3], [1, 4]]
    kinds = np.array([FORWARD] * 3 + [BACKWARD] * 3)
    graph = Graph("two readers", names, kinds, np.array([10.0, *[1.0] * 5]), np.array([9, *[8] * 5]), inputs)
    ways = {3: [Implementation(first, 1.0, (1, 2), 1)], 4: [Implementation(second, 1.0, (1, 3), 1)]}
    return OperatorGraph(graph, ways)


def true_optimum(operators, budget, allowed=lambda way: not way.error):
    choices = product(*([at for at, w in enumerate(operators.ways(i)) if allowed(w)] for i in range(len(operators))))
    return min(least_cost(operators.choose(dict(enumerate(ways))).graph, budget) for ways in choices)


@settings(max_examples=20)
@given(training_operators(), st.integers(0, 3))
def test_never_below_the_optimum_and_never_above_the_default(operators, cut):
    default = operators.choose({}).graph
    budget = max(0, keep_all(default).peak_bytes - cut)
    try:
        found = choose_operators(operators, budget, SolveOptions(time_limit=10.0, gap=0.0))
    except InfeasibleBudgetError:
        return
    evaluation = evaluate(found.chosen.graph, found.schedule.plan)
    assert evaluation.peak_bytes <= budget
    assert found.schedule.cost >= true_optimum(operators, budget) - 1e-9
    assert found.overhead == pytest.approx(found.schedule.cost / default.base_cost - 1)
    if not cut:
        assert found.schedule.cost <= default.base_cost + 1e-9


def test_masks_are_taken_where_they_save_recomputation():
    operators = relus()
    plain = operators.choose({}).graph
    budget = keep_all(plain).peak_bytes - 8
    found = choose_operators(operators, budget, EXACT)
    assert found.chosen.choice
    assert found.schedule.cost == true_optimum(operators, budget) < least_cost(plain, budget)
    assert found.base_cost == plain.base_cost
    assert found.overhead == pytest.approx(found.schedule.cost / plain.base_cost - 1)


def test_masks_are_not_taken_where_there_is_room():
    operators = relus()
    found = choose_operators(operators, keep_all(operators.choose({}).graph).peak_bytes, EXACT, "milp")
    assert found.chosen.choice == {}
    assert (found.overhead, found.status) == (0.0, "optimal")


def test_a_mask_too_many_is_dropped_again():
    operators = relus()
    lightest = operators.choose(dict.fromkeys(operators.implementations, 1)).graph
    budget = keep_all(operators.choose({}).graph).peak_bytes - 8
    found = choose_operators(operators, budget, EXACT)
    assert len(found.chosen.choice) < len(operators.implementations)
    assert found.schedule.cost < lightest.base_cost


@pytest.mark.parametrize("names", [("output", "output"), ("output", "input")])
def test_ways_that_pay_only_together_are_found(names):
    operators = two_readers(*names)
    plain = operators.choose({}).graph
    budget = keep_all(plain).peak_bytes - 1
    found = choose_operators(operators, budget, EXACT)
    for alone in ({3: 1}, {4: 1}):
        assert least_cost(operators.choose(alone).graph, budget) >= least_cost(plain, budget)
    assert set(found.chosen.choice) == {3, 4}
    assert found.schedule.cost == true_optimum(operators, budget) < least_cost(plain, budget)


def test_a_choice_that_alone_fits_is_found():
    operators = two_readers("output", "input")
    late = replace(operators.graph, recompute_until=np.array([0, 2, 6, 6, 6, 6]))
    operators = OperatorGraph(late, operators.implementations)
    feasible = [c for c in ({}, {3: 1}, {4: 1}, {3: 1, 4: 1}) if least_cost(operators.choose(c).graph, 25) < np.inf]
    assert feasible == [{3: 1, 4: 1}]
    assert choose_operators(operators, 25, EXACT).chosen.choice == {3: 1, 4: 1}


@pytest.mark.parametrize("seconds", [1e-9, 0.05])
def test_the_default_ways_are_solved_however_little_time_there_is(seconds):
    operators = relus()
    plain = operators.choose({}).graph
    found = choose_operators(operators, keep_all(plain).peak_bytes - 8, SolveOptions(time_limit=seconds))
    assert found.schedule.peak_bytes <= keep_all(plain).peak_bytes - 8


def test_ctrl_c_ends_with_the_best_so_far(monkeypatch, caplog):
    def interrupted(*given):
        raise KeyboardInterrupt

    monkeypatch.setattr("checkmate_tf.strategies.monet.choose.alike", interrupted)
    operators = relus()
    budget = keep_all(operators.choose({}).graph).peak_bytes - 8
    found = choose_operators(operators, budget, EXACT)
    assert found.schedule.peak_bytes <= budget and "interrupted" in caplog.text


def test_a_budget_below_one_operation_is_proven_too_small():
    with pytest.raises(InfeasibleBudgetError, match="so many choices of operators were tried") as caught:
        choose_operators(relus(), relus().least_bytes - 1, SolveOptions(time_limit=1.0))
    assert caught.value.proven and caught.value.minimum_bytes >= relus().least_bytes


def test_a_cheaper_way_is_taken():
    operators = relus(cost=0.25)
    found = choose_operators(operators, keep_all(operators.choose({}).graph).peak_bytes, EXACT, "milp")
    assert len(found.chosen.choice) == 3
    assert found.overhead < 0


@pytest.mark.long
def test_ways_with_errors_only_if_they_are_allowed():
    operators = relus(error="a sign of 0")
    budget = keep_all(operators.choose({}).graph).peak_bytes - 8
    exact, inexact = (choose_operators(operators, budget, EXACT, "milp", inexact=allowed) for allowed in (False, True))
    assert exact.chosen.choice == {}
    assert inexact.chosen.choice
    assert inexact.schedule.cost < exact.schedule.cost


@pytest.mark.long
def test_a_budget_that_only_masks_reach_and_one_that_nothing_does():
    operators = relus()
    default = operators.choose({}).graph
    at = next(b for b in range(1, 200) if true_optimum(operators, b) < np.inf)
    found = choose_operators(operators, at, EXACT, "milp")
    assert found.schedule.peak_bytes <= at
    with pytest.raises(InfeasibleBudgetError) as caught:
        choose_operators(operators, at - 1, EXACT, "milp")
    assert at <= caught.value.minimum_bytes <= keep_all(default).peak_bytes
    assert not caught.value.proven  # other choices were not tried


def test_an_unknown_strategy_is_named():
    with pytest.raises(StrategyError, match="strategy 'monet' is unknown"):
        choose_operators(relus(), 100, EXACT, "monet")
