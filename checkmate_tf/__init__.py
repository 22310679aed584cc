"""Train Keras models under a hard memory budget, with the same numbers and as little recomputation as is provable.

    model.compile(optimizer="adam", loss="sparse_categorical_crossentropy")
    checkmate_tf.compile(model, budget="4GB", batch_size=64)
    model.fit(x, y, batch_size=64)
    print(model.checkmate)

Importing the package imports neither TensorFlow nor a solver: names below load on first use. Type checkers and editors
see where each is from in the block for them. A test compares the three lists of names.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import callbacks
    from .errors import (
        BatchSizeError,
        BudgetError,
        CheckmateError,
        CostError,
        DynamicShapeError,
        GraphError,
        InfeasibleBudgetError,
        JitCompileError,
        ModelError,
        OperatorsError,
        OutputError,
        PlanError,
        StrategyError,
        TraceError,
    )
    from .files.graphs import read_graph, write_graph
    from .graph import Graph
    from .keras.api import compile, gradient_function, op_graph, restore
    from .largest_batch.max_batch_size import max_batch_size
    from .largest_batch.tradeoff import tradeoff
    from .layers.graph import layer_graph
    from .plan import Plan, evaluate
    from .report import Report
    from .schedule import Schedule, keep_all
    from .strategies import STRATEGIES, SolveOptions, minimum_budget, solve

from .version import __version__ as __version__

__all__ = [
    "STRATEGIES",
    "BatchSizeError",
    "BudgetError",
    "CheckmateError",
    "CostError",
    "DynamicShapeError",
    "Graph",
    "GraphError",
    "InfeasibleBudgetError",
    "JitCompileError",
    "ModelError",
    "OperatorsError",
    "OutputError",
    "Plan",
    "PlanError",
    "Report",
    "Schedule",
    "SolveOptions",
    "StrategyError",
    "TraceError",
    "callbacks",
    "compile",
    "evaluate",
    "gradient_function",
    "keep_all",
    "layer_graph",
    "max_batch_size",
    "minimum_budget",
    "op_graph",
    "read_graph",
    "restore",
    "solve",
    "tradeoff",
    "write_graph",
]

_LAZY: dict[str, str | None] = {
    "callbacks": None,  # a module
    "Graph": "graph",
    "Plan": "plan",
    "Report": "report",
    "STRATEGIES": "strategies",
    "Schedule": "schedule",
    "SolveOptions": "strategies",
    "compile": "keras.api",
    "evaluate": "plan",
    "gradient_function": "keras.api",
    "keep_all": "schedule",
    "layer_graph": "layers.graph",
    "max_batch_size": "largest_batch.max_batch_size",
    "minimum_budget": "strategies",
    "op_graph": "keras.api",
    "read_graph": "files.graphs",
    "restore": "keras.api",
    "solve": "strategies",
    "tradeoff": "largest_batch.tradeoff",
    "write_graph": "files.graphs",
}
_LAZY.update({name: "errors" for name in __all__ if name.endswith("Error")})

if not TYPE_CHECKING:  # a type checker would take any name for one of these

    def __getattr__(name: str) -> Any:
        if name not in _LAZY:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module = _LAZY[name]
        value = import_module(f".{module or name}", __name__)
        value = value if module is None else getattr(value, name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
