"""The registry of cost models of operations: every name loads, and a name that is unknown is refused."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
tf = pytest.importorskip("tensorflow")

from traced import graph_of  # noqa: E402

from checkmate_tf import costs  # noqa: E402
from checkmate_tf.costs import COST_MODELS, CostModel, CostModels, cost_unit, op_costs  # noqa: E402
from checkmate_tf.errors import CostError  # noqa: E402

BIG = (64, 256)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("CHECKMATE_TF_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def three():
    return graph_of(lambda x: tf.exp(x) * x, BIG).get_operations()[:3]


@pytest.mark.parametrize("name", COST_MODELS)
def test_every_model_gives_a_cost_for_each_operation(name, three):
    costs = op_costs(three, name)
    assert costs.shape == (3,) and np.isfinite(costs).all() and (costs >= 0).all()
    np.testing.assert_array_equal(COST_MODELS.find(name).load()(three) >= 0, True)


def test_units_are_those_of_the_models():
    assert {name: model.unit for name, model in COST_MODELS.items()} == {
        "profile": "us",
        "flops": "flop",
        "roofline": "us",
    }
    assert [cost_unit(name) for name in COST_MODELS] == [model.unit for model in COST_MODELS.values()]
    assert [cost_unit(costs) for costs in ("guess", len, [1.0, 2.0])] == [""] * 3


def test_names_are_those_of_the_models_and_none_is_there_twice():
    assert [model.name for model in COST_MODELS.models] == list(COST_MODELS)
    assert len(set(COST_MODELS)) == len(COST_MODELS)


def test_an_unknown_name_is_refused_with_those_that_there_are():
    models = CostModels("op", "a number", [CostModel("a", "us", "one", lambda: len), CostModel("b", "us", "two", list)])
    assert models.find("a").load() is len
    assert "c" not in models
    with pytest.raises(KeyError):
        models["c"]
    with pytest.raises(CostError, match="costs='c' is not a cost model; there are 'a', 'b' for ops, or give a number"):
        models.find("c")


def test_a_model_of_ones_own_is_found_by_its_name():
    models = CostModels("op", "a number", [CostModel("a", "us", "one", lambda: len)])
    models.register(CostModel("b", "J", "joules", lambda: sum))
    assert models.find("b").unit == "J"
    for name, message in (("a", r"'a' of ops is there already \(one\)"), ("b", "joules"), ("", "not empty")):
        with pytest.raises(CostError, match=message):
            models.register(CostModel(name, "us", "two", lambda: len))
    assert list(models) == ["a", "b"]


def test_options_are_those_of_the_model(three):
    from checkmate_tf.costs.roofline import Rates

    slow, fast = (op_costs(three, "roofline", rates=Rates(rate, rate, 0.0)) for rate in (1e6, 1e9))
    np.testing.assert_allclose(slow, 1e3 * fast)


def test_costs_may_be_given(three):
    assert op_costs(three, lambda op: len(op.inputs)).tolist() == [0, 1, 2]
    assert op_costs(three, [1, 2, 3]).tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("costs", "message"),
    [
        ("v100", "'v100' is not a cost model; there are 'profile', 'flops', 'roofline' for ops"),
        (lambda op: float("nan"), "Placeholder.*nan"),
        (lambda op: -1.0 if op.type == "Exp" else 1.0, "Exp.*-1"),
        (lambda op: None if op.type == "Exp" else 1.0, "Exp"),
        (lambda op: "dear", "dear"),
        ([1.0, np.inf, 1.0], "Exp.*inf"),
        ([1.0], "3 operations"),
    ],
)
def test_bad_costs_are_refused(three, costs, message):
    with pytest.raises(CostError, match=message):
        op_costs(three, costs)


def test_options_are_for_named_models(three):
    with pytest.raises(CostError, match="time_budget"):
        op_costs(three, [1, 2, 3], time_budget=3)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("profile", "'profile' has no option 'nonsense'; it has device, progress, cache, repetitions, time_budget"),
        ("flops", "'flops' has no option 'nonsense'; it has none"),
        ("roofline", "'roofline' has no option 'nonsense'; it has rates, device"),
    ],
)
def test_unknown_options_are_refused_with_those_that_there_are(three, name, message):
    with pytest.raises(CostError, match=message):
        op_costs(three, name, nonsense=3)


@pytest.mark.parametrize(
    "own", [lambda ops, each: [each] * len(ops), lambda ops, **options: [options["each"]] * len(ops)]
)
def test_options_of_a_model_of_ones_own_are_handed_over(three, monkeypatch, own):
    monkeypatch.setattr(
        costs, "COST_MODELS", CostModels("op", "a number", [CostModel("own", "us", "one", lambda: own)])
    )
    assert op_costs(three, "own", each=2.0).tolist() == [2, 2, 2]


@pytest.mark.parametrize("room", ["costs", "layers"])
def test_importing_a_registry_does_not_import_tensorflow(room):
    code = f"import sys, checkmate_tf.{room}; sys.exit('tensorflow' in sys.modules or 'keras' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
