"""Elements and bytes of tensors from their static shapes; an unknown size is never zero.

In the body of a loop an unknown dimension is the batch of the loop's inputs, given as `unknown_dim`. Elsewhere a tensor
whose shape is not fully known counts at least as many elements as the largest input of its operation.
"""

from __future__ import annotations

import math
from typing import Any

__all__ = ["dims", "elements", "num_bytes", "output_elements"]

OPAQUE = frozenset({"resource", "variant", "string"})


def dims(tensor: Any, unknown_dim: int | None = None) -> tuple[int, ...] | None:
    """Static shape with unknown dimensions read as `unknown_dim`, else 1; None if not even the rank is known."""
    shape = tensor.shape
    if shape.rank is None:
        return None
    return tuple((unknown_dim or 1) if d is None else int(d) for d in shape.as_list())


def elements(tensor: Any, unknown_dim: int | None = None) -> int | None:
    """Number of elements of a tensor; None if its rank is unknown."""
    shape = dims(tensor, unknown_dim)
    return None if shape is None else math.prod(shape)


def output_elements(tensor: Any, unknown_dim: int | None = None) -> int:
    """Elements of a tensor; where its shape is not fully known, at least those of the operation's largest input."""
    known = elements(tensor, unknown_dim)
    if known is not None and (unknown_dim is not None or tensor.shape.is_fully_defined()):
        return known
    inputs = (elements(t, unknown_dim) for t in tensor.op.inputs if t.dtype.name not in OPAQUE)
    return max(1, known or 0, *(n or 0 for n in inputs))


def num_bytes(tensor: Any, unknown_dim: int | None = None) -> int:
    """Bytes of a tensor (estimated as `output_elements` does); handles, variants and strings count 8 an element."""
    width = 8 if tensor.dtype.name in OPAQUE else int(tensor.dtype.size)
    return width * output_elements(tensor, unknown_dim)
