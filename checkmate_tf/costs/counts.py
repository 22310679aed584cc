"""What all cost models count alike: FLOPs of an element, and which operations are free or call others."""

from __future__ import annotations

__all__ = ["BRANCHES", "CALLS", "CUBIC", "LINEAR", "RANDOM", "SOFTMAX", "SOURCES", "TRANSCENDENTAL", "VIEWS", "words"]

#: FLOPs of exp, tanh, erf and their kind: those of a polynomial approximation, not of any one library.
TRANSCENDENTAL = 8
#: FLOPs of an element of a softmax: maximum, subtraction, exp, sum, division.
SOFTMAX = TRANSCENDENTAL + 4
#: FLOPs of a uniform random number.
RANDOM = 10
#: FLOPs of an element that is interpolated from four others, or from sixteen.
LINEAR, CUBIC = 7, 30


def words(text: str) -> frozenset[str]:
    """A set of names from one string."""
    return frozenset(text.split())


#: Values that exist before the step or cost nothing to name.
SOURCES = words("Const Placeholder PlaceholderWithDefault NoOp VarHandleOp")
#: The same bytes under another shape, and reads that share the variable's buffer.
VIEWS = SOURCES | words(
    "Identity IdentityN Reshape Squeeze ExpandDims StopGradient PreventGradient ReadVariableOp AssignVariableOp "
    "EnsureShape CheckNumerics Snapshot Bitcast OptimizationBarrier"
)
#: Operations that run one of several functions: the first input tells which.
BRANCHES = words("If StatelessIf Case StatelessCase")
#: Operations that call functions: their costs are those of what they call.
CALLS = BRANCHES | words("While StatelessWhile PartitionedCall StatefulPartitionedCall")
