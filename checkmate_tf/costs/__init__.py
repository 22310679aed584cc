"""Cost models of operations: what computing one takes.

`COST_MODELS` is the registry of this level; `op_costs` asks a model by its name. A callable (op -> cost) or an array of
costs serves as well. Nothing here imports TensorFlow until costs are asked for. The files, each using those above it:

- `sizes.py`: elements and bytes of tensors, from static shapes;
- `counts.py`: what counting FLOPs shares between operations and layers;
- `alone/`: one operation run by itself: its attributes, its inputs and its functions;
- `calls.py`: loops and branches, as totals over the functions that they call;
- `rules/`: FLOPs of operations by their type, where it takes more than to count elements;
- `flops.py`: floating-point operations; the cost model "flops";
- `roofline.py`: the longer of computing and moving bytes; the cost model "roofline";
- `signature.py`: which operations take the same time;
- `cache.py`: measured times and workspaces on disk;
- `setting.py`: the device, and all else that measured times depend on;
- `timed.py`: operations timed on this device; the cost model "profile";
- `workspace.py`: what their kernels allocate while they run;
- `copies.py`: how fast the device copies to its host and back.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import CostError

__all__ = ["COST_MODELS", "CostModel", "CostModels", "CostSpec", "OpCosts", "cost_unit", "op_costs"]

CostSpec: TypeAlias = str | Callable[[Any], float] | ArrayLike
"""How users say costs of operations: a name in `COST_MODELS`, a callable (op -> cost), or one cost for each."""

Model = TypeVar("Model", covariant=True)
Registered = TypeVar("Registered")


@dataclass(frozen=True)
class CostModel(Generic[Model]):
    """A cost model with a name.

    Attributes
    ----------
    name : str
    unit : str
        Of its costs: "us", "flop" or "multiply-add".
    title : str
        What it is, in words.
    load : callable () -> Model
        Imports the model, and gives it.
    """

    name: str
    unit: str
    title: str
    load: Callable[[], Model]


@dataclass(frozen=True, eq=False)
class CostModels(Mapping[str, CostModel[Registered]]):
    """The cost models of a level, by name: one registry for each level, one way to look a name up.

    Attributes
    ----------
    level : str
        What they are costs of: "op" or "layer".
    otherwise : str
        What may be given instead of a name, in words.
    models : list of CostModel
        `register` adds to it.
    """

    level: str
    otherwise: str
    models: list[CostModel[Registered]]

    def __getitem__(self, name: str) -> CostModel[Registered]:
        for model in self.models:
            if model.name == name:
                return model
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return (model.name for model in self.models)

    def __len__(self) -> int:
        return len(self.models)

    def find(self, name: str) -> CostModel[Registered]:
        """The model of a name.

        Raises
        ------
        CostError
            If there is none; lists those that there are.
        """
        if name not in self:
            raise CostError(
                f"costs={name!r} is not a cost model; there are {', '.join(map(repr, self))} for {self.level}s, or "
                f"give {self.otherwise}"
            )
        return self[name]

    def register(self, model: CostModel[Registered]) -> None:
        """Add a cost model of one's own, for as long as this process lives.

        Raises
        ------
        CostError
            If its name is empty or taken.
        """
        if not model.name:
            raise CostError("a cost model needs a name that is not empty")
        if model.name in self:
            raise CostError(
                f"cost model {model.name!r} of {self.level}s is there already ({self[model.name].title}); choose "
                "another name"
            )
        self.models.append(model)


class OpCosts(Protocol):
    """A cost model of operations: (n,) costs of n tf.Operations, with options of its own."""

    def __call__(self, ops: Sequence[Any], /, *args: Any, **options: Any) -> NDArray[np.float64]: ...


def _profile() -> OpCosts:
    from .timed import timed_costs

    return timed_costs


def _flops() -> OpCosts:
    from .flops import op_cost_flops

    return op_cost_flops


def _roofline() -> OpCosts:
    from .roofline import roofline_costs

    return roofline_costs


COST_MODELS: CostModels[OpCosts] = CostModels(
    level="op",
    otherwise="a callable (op -> cost) or one cost for each operation",
    models=[
        CostModel("profile", "us", "measured on this device", _profile),
        CostModel("flops", "flop", "floating-point operations", _flops),
        CostModel("roofline", "us", "the longer of computing and moving bytes", _roofline),
    ],
)
"""The cost models of operations by name; those of layers are in `layers.LAYER_COSTS`."""


def cost_unit(costs: CostSpec) -> str:
    """Unit of a cost model's answers; `""` where only the user knows."""
    return COST_MODELS[costs].unit if isinstance(costs, str) and costs in COST_MODELS else ""


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
        If the name or an option is unknown, or a cost is not a number, not finite or negative; names the operation.
    """
    if isinstance(costs, str):
        model = COST_MODELS.find(costs).load()
        if options:
            _check_options(costs, model, options)
        return _validated(ops, model(ops, **options))
    if options:
        raise CostError(f"options {sorted(options)} are for named cost models, but costs is a {type(costs).__name__}")
    if callable(costs):
        return _validated(ops, [costs(op) for op in ops])
    return _validated(ops, costs)


def _check_options(name: str, model: OpCosts, options: Mapping[str, Any]) -> None:
    _, *rest = inspect.signature(model).parameters.values()
    taken = [p.name for p in rest if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    unknown = sorted(options.keys() - set(taken))
    if unknown and not any(p.kind is p.VAR_KEYWORD for p in rest):
        raise CostError(f"cost model {name!r} has no option {unknown[0]!r}; it has {', '.join(taken) or 'none'}")


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
