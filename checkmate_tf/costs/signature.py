"""Signatures: operations that take the same time have the same one, in any process.

What counts is the type, the attributes, types and shapes of inputs, and small integer inputs by value. Of a loop or a
call it is all of this for each operation inside, what that reads, and small constants by value. Where data
chooses a branch, it says that the dearest counts. The gradient of a max-pooling is another operation where the pooling
is known (`trace.sizes.tapes`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np

from ..trace.sizes.tapes import pooling_of
from .alone.eager import called_graphs, handle_shape_dtype
from .alone.values import MAX_ELEMENTS, StaticValues
from .counts import BRANCHES
from .sizes import elements

__all__ = ["Signer"]

_MAX_LENGTH = 600
_IGNORED = frozenset(("container", "shared_name", "config", "config_proto", "executor_type", "seed", "seed2"))


class Signer:
    """Signs the operations of one graph.

    Parameters
    ----------
    values : callable(tensor) -> array or None
    """

    def __init__(self, values: Callable[[Any], np.ndarray | None] | None = None) -> None:
        self.values = values or StaticValues()
        self._signed: dict[Any, str] = {}

    def __call__(self, op: Any) -> str:
        """A readable signature, the same for two operations that take the same time, in any process."""
        key = (id(op.graph), op.name)
        if key not in self._signed:
            self._signed[key] = "unfinished"
            inputs = ", ".join(self._input(t) for t in op.inputs)
            text = f"{op.type}({inputs}){self._attributes(op)}"
            text += " at its dearest" if op.type in BRANCHES and self.values(op.inputs[0]) is None else ""
            text += " of a pooling" if pooling_of(op) is not None else ""
            self._signed[key] = text if len(text) <= _MAX_LENGTH else f"{text[:_MAX_LENGTH]}...#{_digest(text)}"
        return self._signed[key]

    def _input(self, tensor: Any) -> str:
        kind = tensor.dtype.name
        if kind == "resource":
            found = handle_shape_dtype(tensor)
            return "resource" if found is None else f"*{found[1].name}{found[0]}"
        if kind == "variant":
            return f"list:{_digest(self(tensor.op))}:{tensor.value_index}"
        text = f"{kind}{tensor.shape}".replace(" ", "")
        if tensor.dtype.is_integer or tensor.dtype.is_bool:
            value = self.values(tensor)
            if value is not None:
                text += f"={value.tolist()}" if value.size <= 16 else f"={_digest(value.tobytes().hex())}"
        return text

    def _attributes(self, op: Any) -> str:
        parts = []
        for attr in op.op_def.attr if op.op_def is not None else ():
            if attr.type not in ("func", "list(func)") and attr.name not in _IGNORED and not attr.name.startswith("_"):
                value = op.get_attr(attr.name)
                text = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
                text = " ".join(text.split())
                parts.append(f"{attr.name}={text if len(text) <= 60 else _digest(text)}")
        bodies = [self._body(graph) for graph in called_graphs(op)] if op.op_def is not None else []
        return "{" + ",".join(parts + bodies) + "}"

    def _body(self, graph: Any) -> str:
        """What a function computes. Names differ between traces of one model; order, types and shapes do not."""
        operations = graph.get_operations()
        place = {op.name: k for k, op in enumerate(operations)}
        reads = lambda op: ",".join(f"{place[t.op.name]}:{t.value_index}" for t in op.inputs)  # noqa: E731 - short
        return _digest(";".join(f"{reads(op)}>{self._inner(op)}" for op in operations))

    def _inner(self, op: Any) -> str:
        shapes = ",".join(f"{t.dtype.name}{t.shape}" for t in op.outputs)
        return f"{op.type}:{shapes}{'' if _is_opaque(op) else self._attributes(op)}"


def _is_opaque(op: Any) -> bool:
    """Whether an operation is a constant whose value does not count: a large one, or a text with names in it."""
    return op.type == "Const" and (
        op.outputs[0].dtype.name == "string" or (elements(op.outputs[0]) or 0) > MAX_ELEMENTS
    )


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
