"""Every strategy's plan trains a model, with the plain model's numbers, or is refused with the model as it was."""

import pytest
from cases import CASES, assert_same_state, compile_quickly, make, train

from checkmate_tf.errors import InfeasibleBudgetError, StrategyError
from checkmate_tf.strategies import STRATEGIES

pytestmark = pytest.mark.usefixtures("fresh_keras", "no_grappler")

_CHAINS_ONLY = {"griewank", "chen-sqrt", "chen-greedy"}  # a traced step is not a chain
_MAY_FAIL = {"lp-rounding", "lp-rounding-random", "moccasin-free"}  # too slow, with so many nodes, for a test


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_each_strategy_trains_or_says_why_not(strategy):
    case = CASES["residual"]
    plain, model = make(case), make(case)
    try:
        compile_quickly(model, case, strategy=strategy, budget=0.9, time_limit=8)
    except (InfeasibleBudgetError, StrategyError) as error:
        assert isinstance(error, StrategyError) == (strategy in _CHAINS_ONLY)
        assert strategy in _CHAINS_ONLY | _MAY_FAIL | {"checkpoint-all"}
        assert not hasattr(model, "checkmate")
    else:
        report = model.checkmate
        assert report.schedule.strategy == strategy
        assert report.recomputations > 0
        assert report.predicted_peak_bytes <= report.budget_bytes
    train(plain, case)
    train(model, case)
    assert_same_state(plain, model)
