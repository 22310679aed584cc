"""The public names, and how the functions among them are called, literally: a change of these is a decision."""

import ast
import inspect
import operator
import subprocess
import sys
from pathlib import Path

import pytest

import checkmate_tf

NAMES = {
    "errors": [
        "BatchSizeError", "BudgetError", "CheckmateError", "CostError", "DynamicShapeError", "GraphError",
        "InfeasibleBudgetError", "JitCompileError", "ModelError", "OperatorsError", "OutputError", "PlanError",
        "StrategyError", "TraceError",
    ],
    "values": ["Graph", "Plan", "Report", "STRATEGIES", "Schedule", "SolveOptions"],
    "functions": [
        "compile", "evaluate", "gradient_function", "keep_all", "layer_graph", "max_batch_size", "minimum_budget",
        "op_graph", "read_graph", "restore", "solve", "tradeoff", "write_graph",
    ],
    "modules": ["callbacks"],
}  # fmt: skip

OF_COMPILE = (
    "batch_size=None, input_spec=None, data=None, strategy='checkmate', costs='profile', time_limit=60.0, gap=0.002, "
    "seed=0, verify=True, progress=True, cache=True, schedule=None, operators='default', prefetch=None, "
    "max_plans=8, order='free', page='auto')"
)
SIGNATURES = {
    "Graph": "(name, names, kinds, costs, sizes, inputs, constant_bytes=0, workspace=None, recompute_until=None, "
    "held=None, waits=None, cost_unit='us', host=None)",
    "Plan": "(statements, registers)",
    "Schedule": "(graph, sequence, strategy='checkpoint-all', solver='', status='feasible', budget_bytes=None, "
    "lower_bound=0.0, bound_order='fixed', seconds=0.0, origin='')",
    "SolveOptions": "(time_limit=60.0, gap=0.01, seed=0, solver='auto', memory_limit=None, settle=False, "
    "order='fixed', progress=None, moccasin=MoccasinOptions(copies=2, workers=0))",
    "callbacks.MemoryBudget": f"(budget='auto', *, {OF_COMPILE}",
    "compile": f"(model, budget='auto', *, {OF_COMPILE}",
    "evaluate": "(graph, plan)",
    "gradient_function": f"(model, loss, budget='auto', *, {OF_COMPILE}",
    "keep_all": "(graph)",
    "layer_graph": "(model, batch_size, costs='flops')",
    "max_batch_size": "(model_or_graph, memory, max_overhead='one-forward', *, fixed_bytes=None, inputs=False, "
    "costs='flops', time_limit=60.0, seed=0, progress=None, verify=False, form='search')",
    "minimum_budget": "(graph, time_limit=12.0)",
    "op_graph": "(model, batch_size=None, costs='profile', *, input_spec=None, data=None)",
    "read_graph": "(path)",
    "restore": "(model)",
    "solve": "(graph, budget, strategy='checkmate', options=None)",
    "tradeoff": "(model_or_graph, batch_size=None, *, budgets=10, costs='profile', time_limit=30.0, gap=0.01, seed=0, "
    "input_spec=None, data=None, progress=None)",
    "write_graph": "(graph, path)",
}

TREE = ast.parse(Path(checkmate_tf.__file__).read_text(encoding="utf-8"))


def shape(function):
    """The signature without annotations: mypy minds those."""
    signature, empty = inspect.signature(function), inspect.Parameter.empty
    bare = [p.replace(annotation=empty) for p in signature.parameters.values()]
    return str(signature.replace(parameters=bare, return_annotation=empty))


def test_the_names():
    assert sorted(checkmate_tf.__all__) == sorted(sum(NAMES.values(), []))
    assert len(set(checkmate_tf.__all__)) == len(checkmate_tf.__all__)


@pytest.mark.parametrize("name", SIGNATURES)
def test_the_signatures(name):
    assert shape(operator.attrgetter(name)(checkmate_tf)) == SIGNATURES[name]


def test_every_function_is_listed():
    functions = {name for name in checkmate_tf.__all__ if inspect.isfunction(getattr(checkmate_tf, name))}
    assert functions == set(NAMES["functions"]) <= set(SIGNATURES)


def test_what_type_checkers_see_is_what_loads():
    """The imports under TYPE_CHECKING, the table that loads names on first use, and __all__ say the same."""
    (block,) = (node for node in TREE.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    seen = {alias.name: node.module for node in block.body for alias in node.names}
    assert seen == checkmate_tf._LAZY
    assert set(seen) == set(checkmate_tf.__all__)
    assert set(dir(checkmate_tf)) == {*checkmate_tf.__all__, "__version__"}


def test_errors_are_typed():
    for name in NAMES["errors"]:
        assert issubclass(getattr(checkmate_tf, name), checkmate_tf.CheckmateError)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'compil'"):
        checkmate_tf.compil  # noqa: B018


def test_importing_the_package_imports_nothing_else():
    """No TensorFlow, no solver, not even NumPy: the names load on first use, and only what they need."""
    code = (
        "import sys\nimport checkmate_tf\n"
        "loaded = {name for name in sys.modules if name.startswith('checkmate_tf')}\n"
        "assert loaded == {'checkmate_tf', 'checkmate_tf.version'}, loaded\n"
        "heavy = {'tensorflow', 'keras', 'numpy', 'scipy', 'numba', 'ortools', 'gurobipy', 'matplotlib', 'pandas'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
        "for name in ('solve', 'minimum_budget', 'STRATEGIES', 'read_graph', 'keep_all', 'max_batch_size'):\n"
        "    getattr(checkmate_tf, name)\n"
        "heavy -= {'numpy', 'scipy', 'numba'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
