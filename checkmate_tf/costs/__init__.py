"""Cost models: what computing an operation takes.

`COST_MODELS` maps a name to a function (ops, **options) -> (len(ops),) costs:

- `profile`: microseconds, measured on this device and cached (`profile.py`);
- `roofline`: microseconds, max of FLOPs / peak and bytes / bandwidth (`roofline.py`);
- `flops`: floating-point operations (`flops.py`); hardly counts elementwise work.

A callable (op -> cost) or an array of costs serves as well. Nothing here imports TensorFlow until costs are asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import CostError

__all__ = ["COST_MODELS", "COST_UNITS", "CostSpec", "cost_unit", "op_costs"]

CostSpec: TypeAlias = str | Callable[[Any], float] | ArrayLike


def _profile(ops: Sequence[Any], **options: Any) -> NDArray[np.float64]:
    from .profile import profile_ops

    return profile_ops(ops, **options)


def _flops(ops: Sequence[Any], **options: Any) -> NDArray[np.float64]:
    from .flops import op_cost_flops

    return op_cost_flops(ops, **options)


def _roofline(ops: Sequence[Any], **options: Any) -> NDArray[np.float64]:
    from .roofline import roofline_costs

    return roofline_costs(ops, **options)


COST_MODELS: dict[str, Callable[..., NDArray[np.float64]]] = {
    "profile": _profile,
    "flops": _flops,
    "roofline": _roofline,
}
COST_UNITS = {"profile": "us", "flops": "flop", "roofline": "us"}


def cost_unit(costs: CostSpec) -> str:
    """Unit of a cost model's answers; `""` where only the user knows."""
    return COST_UNITS.get(costs, "") if isinstance(costs, str) else ""


def op_costs(ops: Sequence[Any], costs: CostSpec = "profile", **options: Any) -> NDArray[np.float64]:
    """Costs of operations by a named model, a callable or given numbers.

    Parameters
    ----------
    ops : sequence of n tf.Operation
    costs : str, callable(op) -> float, or (n,) array
    **options
        For the named model, e.g. `time_budget=10` for `profile`.

    Returns
    -------
    (n,) float

    Raises
    ------
    CostError
        If the name is unknown, or a cost is not a number, not finite or negative; names the operation.
    """
    if isinstance(costs, str):
        if costs not in COST_MODELS:
            raise CostError(
                f"costs={costs!r} is not a cost model; there are {', '.join(map(repr, COST_MODELS))}, or give a "
                "callable (op -> cost) or one cost for each operation"
            )
        return _validated(ops, COST_MODELS[costs](ops, **options))
    if options:
        raise CostError(f"options {sorted(options)} are for named cost models, but costs is a {type(costs).__name__}")
    if callable(costs):
        return _validated(ops, [costs(op) for op in ops])
    return _validated(ops, costs)


def _validated(ops: Sequence[Any], given: Any) -> NDArray[np.float64]:
    try:
        values = np.array(given, dtype=np.float64)
    except (TypeError, ValueError):
        for op, value in zip(ops, given, strict=False):
            if not isinstance(value, (int, float, np.number)):
                raise CostError(f"the cost of {op.name} ({op.type}) is {value!r}; give a number") from None
        raise CostError("costs cannot be read as numbers; give one for each operation") from None
    if values.shape != (len(ops),):
        raise CostError(f"costs have shape {values.shape} for {len(ops)} operations; give one for each")
    bad = np.flatnonzero(~np.isfinite(values) | (values < 0))
    if bad.size:
        op = ops[int(bad[0])]
        raise CostError(
            f"the cost of {op.name} ({op.type}) is {values[bad[0]]}; costs must be finite and not negative"
            + (f" ({bad.size} operations have such costs)" if bad.size > 1 else "")
        )
    return values
