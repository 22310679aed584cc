"""Every strategy's plan trains a model, with the plain model's numbers, or is refused with the model as it was."""

import pytest
from cases import CASES, compile_quickly, make, state, train, trained_plainly

from checkmate_tf.errors import InfeasibleBudgetError, StrategyError
from checkmate_tf.strategies import STRATEGIES

pytestmark = pytest.mark.usefixtures("fresh_keras", "no_grappler")

_CHAINS_ONLY = {"griewank", "chen-sqrt", "chen-greedy"}  # a traced step is not a chain
_ONCE = {"checkpoint-all", "least-peak"}  # they recompute nothing
_MAY_FAIL = {"lp-rounding", "lp-rounding-random", "moccasin-free"}  # too slow, with so many nodes, for a test


@pytest.mark.long
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_each_strategy_trains_or_says_why_not(strategy):
    case = CASES["residual"]
    model = make(case)
    try:
        compile_quickly(model, case, strategy=strategy, budget=0.9, time_limit=8)
    except (InfeasibleBudgetError, StrategyError) as error:
        assert isinstance(error, StrategyError) == (strategy in _CHAINS_ONLY)
        assert strategy in _CHAINS_ONLY | _MAY_FAIL | _ONCE
        assert not hasattr(model, "checkmate")
    else:
        report = model.checkmate
        assert report.schedule.strategy == strategy
        assert (report.recomputations > 0) == (strategy not in _ONCE)
        assert report.predicted_peak_bytes <= report.budget_bytes
    assert (train(model, case), [value.tobytes() for value in state(model).values()]) == trained_plainly("residual")
