"""Train Keras models under a hard memory budget, with the same numbers and as little recomputation as is provable.

    model.compile(optimizer="adam", loss="sparse_categorical_crossentropy")
    checkmate_tf.compile(model, budget="4GB", batch_size=64)
    model.fit(x, y, batch_size=64)
    print(model.checkmate)

Importing the package imports neither TensorFlow nor a solver: names below load on first use.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_LAZY = {
    "compile": "keras.api",
    "restore": "keras.api",
    "gradient_function": "keras.api",
    "Graph": "graph",
    "Plan": "plan",
    "Schedule": "schedule",
    "Report": "report",
    "evaluate": "plan",
    "max_batch_size": "largest_batch.max_batch_size",
    "solve": "strategies",
}
_ERRORS = (
    "BatchSizeError",
    "BudgetError",
    "CheckmateError",
    "CostError",
    "DynamicShapeError",
    "GraphError",
    "InfeasibleBudgetError",
    "JitCompileError",
    "ModelError",
    "OperatorsError",
    "OutputError",
    "PlanError",
    "StrategyError",
    "TraceError",
)
_LAZY.update(dict.fromkeys(_ERRORS, "errors"))

__all__ = sorted(_LAZY)


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_LAZY[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
