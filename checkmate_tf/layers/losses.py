"""The losses that layers added when they were called: those of the user's last call stay, whatever is called here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["losses_left"]


@contextmanager
def losses_left(layer: Any) -> Iterator[None]:
    """Let a layer have no added losses inside, nor the layers within it, and at the end those that they have now.

    Tensors of a trace may be among them, which nothing may read outside of it. A layer that is called forgets its own.
    """
    held = [(each, list(each._losses), set(each._loss_ids)) for each in _layers(layer)]
    _clear(layer)
    try:
        yield
    finally:
        _clear(layer)
        for each, losses, names in held:
            each._losses.extend(losses)
            each._loss_ids.update(names)


def _layers(layer: Any) -> list[Any]:
    """The layer and all within it; none of an operation of keras.ops."""
    return list(layer._flatten_layers()) if hasattr(layer, "_loss_ids") else []


def _clear(layer: Any) -> None:
    if hasattr(layer, "_loss_ids"):
        layer._clear_losses()
