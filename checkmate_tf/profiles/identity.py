"""Which model a profile is of: names count for nothing, what its nodes compute counts.

Two models may have equal inputs, weights and layers by name, and still take other times: another stride, activation or
loss. A fingerprint tells them apart. At layer level it has the settings of each layer and of the loss; at op level each
operation of the training step by name, type, shapes and attributes.

**What this does badly.** Settings that Keras cannot tell are not in a fingerprint, nor what is no plain value (the code
of a `Lambda`).
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras

from ..errors import CheckmateError
from ..layers.calls import parameter_count
from ..layers.runs import layer_runs
from ..layers.settings import lasting_settings
from .steps import operations_digest, step_operations
from .table import Fingerprint, ProfileTable

__all__ = ["Facts", "differs_from", "facts_of", "fingerprint_of", "unlike"]

_MOST_TEXT = 200  # characters of a loss, to be read in messages; of a longer one the digest
_NO_LOSS = "mean of squares"  # what stands for the loss of a model that is not compiled

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Facts:
    """What tells a model from its variants at a glance: shapes of its inputs, number of weights, precision."""

    inputs: tuple[tuple[int | None, ...], ...]
    parameters: int
    precision: str


def facts_of(model: Any) -> Facts:
    """Of a model that is built. The precision is the Keras dtype policy of its layers; several are joined by commas."""
    layers = getattr(model, "_flatten_layers", lambda **_: [model])(include_self=False, recursive=True)
    weighty = [layer for layer in layers if getattr(layer, "weights", ())] or list(layers)
    policies = sorted({str(layer.dtype_policy.name) for layer in weighty if hasattr(layer, "dtype_policy")})
    inputs = tuple(tuple(t.shape) for t in getattr(model, "inputs", None) or ())
    return Facts(inputs or ((None,),), parameter_count(model), ",".join(policies) or "float32")


def fingerprint_of(model: Any, level: str, batch_size: int, data: Any = None) -> Fingerprint:
    """Of a model at a batch size, the same in any process.

    Parameters
    ----------
    model, level, data
        As for `run.profile_model`.
    batch_size : int

    Raises
    ------
    CheckmateError
        As `layer_graph`, or as `step_operations` at level "op".
    """
    if level == "op":
        return Fingerprint(batch_size, operations_digest(step_operations(model, batch_size, data)), "")
    signatures = "\n".join(run.signature() for run in layer_runs(model, batch_size))
    return Fingerprint(batch_size, _digest(signatures), _loss_of(model))


def differs_from(model: Any, data: Any = None) -> Callable[[ProfileTable], str]:
    """Why a profile is not of this model, in words; empty if it may be. The loss counts if the model is compiled."""
    facts, compiled = facts_of(model), getattr(model, "compiled", False)

    def differs(table: ProfileTable) -> str:
        if table.inputs != facts.inputs:
            return f"its model ({table.model}) reads {_shapes(table.inputs)}, this one {_shapes(facts.inputs)}"
        if table.parameters != facts.parameters:
            return f"its model ({table.model}) has {table.parameters:,} parameters, this one {facts.parameters:,}"
        if table.precision != facts.precision:
            return f"it is in {table.precision}, this model in {facts.precision}"
        return unlike(table, lambda batch: fingerprint_of(model, table.level, batch, data), not compiled)

    return differs


def unlike(table: ProfileTable, taken: Callable[[int], Fingerprint], any_loss: bool = False) -> str:
    """Why the fingerprint of a profile is not that of a model, in words; empty if it is. None at all is warned of.

    Parameters
    ----------
    table : ProfileTable
    taken : callable(batch_size) -> Fingerprint
        Of the model.
    any_loss : bool
        The loss does not count.
    """
    found = table.fingerprint
    if found is None:
        _log.warning(
            "the profile of %s has no fingerprint, as earlier versions wrote it: it is taken for this model's since "
            "inputs, weights and precision agree; profile anew if strides, activations or the loss may be others",
            table.model,
        )
        return ""
    try:
        wanted = taken(found.batch_size)
    except CheckmateError as error:
        return f"this model cannot be compared at batch {found.batch_size}, at which it was taken: {error}"
    if found.nodes != wanted.nodes:
        others = "settings of layers" if table.level == "layer" else "operations, or other names of them"
        return f"its model ({table.model}) has the same inputs and weights, but other {others}"
    if found.loss != wanted.loss and not any_loss:
        return f"its loss is {found.loss}, this model's is {wanted.loss}"
    return ""


def _loss_of(model: Any) -> str:
    if not getattr(model, "compiled", False):
        return _NO_LOSS
    text = ", ".join(_loss_words(loss) for loss in keras.tree.flatten(model.loss))
    return text if len(text) <= _MOST_TEXT else _digest(text)


def _loss_words(loss: Any) -> str:
    """One loss, the same however it was given: by name, as a function, or as an object with its usual settings."""
    if isinstance(loss, str):
        loss = keras.losses.get(loss)
    name = str(getattr(getattr(loss, "fn", loss), "__name__", type(loss).__name__))
    if not isinstance(loss, keras.losses.Loss):
        return name
    try:
        usual = lasting_settings(type(loss)())
    except Exception:  # noqa: BLE001 - a class of the user's, which may need arguments
        usual = ""
    settings = lasting_settings(loss)
    return name if settings == usual else f"{name} {settings}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _shapes(shapes: tuple[tuple[int | None, ...], ...]) -> str:
    return " and ".join("x".join("n" if d is None else str(d) for d in shape) for shape in shapes)
