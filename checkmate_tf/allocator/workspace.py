"""What a kernel takes for itself, beside its outputs."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["NOTHING", "Workspace"]


@dataclass(frozen=True)
class Workspace:
    """The chunks that a kernel takes for itself, in the order in which it takes them.

    Most of them it has only while it runs. Where they lie beside the result decides which addresses are free later.
    Some kernels of cuDNN's even make their result last, and give the output back that they allocated first.

    Attributes
    ----------
    before : tuple of int
        Bytes of each chunk that it takes before the chunk that its result stays in.
    after : tuple of int
        Bytes of each that it takes after that.
    kept : int
        Bytes that it leaves for its gradient, until that has run. They come after its result.
    """

    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    kept: int = 0

    @property
    def bytes(self) -> int:
        """All that it has only while it runs."""
        return sum(self.before) + sum(self.after)


NOTHING = Workspace()
