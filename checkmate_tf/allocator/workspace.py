"""What a kernel takes for itself while it runs."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["NOTHING", "Workspace"]


@dataclass(frozen=True)
class Workspace:
    """The chunks that a kernel has only while it runs, in the order in which it takes them.

    Where they lie beside the result decides which addresses are free later. Some kernels of cuDNN's even make their
    result last, and give the output back that they allocated first.

    Attributes
    ----------
    before : tuple of int
        Bytes of each chunk that it takes before the chunk that its result stays in.
    after : tuple of int
        Bytes of each that it takes after that.
    """

    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()

    @property
    def bytes(self) -> int:
        """All of them together."""
        return sum(self.before) + sum(self.after)


NOTHING = Workspace()
