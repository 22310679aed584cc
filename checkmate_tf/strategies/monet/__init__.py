"""Implementations of operators chosen together with the schedule: MONeT's program, a search, and Gist's rule.

Each takes an `OperatorGraph` and gives a `Chosen`. (`fit.subjects.encodings` chooses, too. It decides which gradients
of a traced step read codes, and solves the real step for that.)
"""

from .choose import choose_operators
from .gist import gist
from .monet import monet, monet_noop

__all__ = ["choose_operators", "gist", "monet", "monet_noop"]
