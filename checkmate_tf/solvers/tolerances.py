"""How far a solver's answer may be from what it says: one place for the numbers, each with its reason.

Solvers work in floating point. To Gurobi, HiGHS and SCIP, a row that is violated by 1e-6 is kept, and a number that is
1e-6 away from a whole number is whole. So a limit that must hold is tightened before a program is solved, and a bound
that must be true is loosened after. All of these numbers are relative.
"""

__all__ = ["BOUND_ERROR", "EXACT", "FEASIBLE", "MARGIN"]

FEASIBLE = 1e-6
"""What a solver may be off in a row or a bound of a variable."""

BOUND_ERROR = 2 * FEASIBLE
"""What an integer solver's bound may be too high, as a share of the base cost: rows and integers may be off."""

MARGIN = 4 * FEASIBLE
"""Share of a budget or a cost limit that a program leaves free, so that its points keep the true limit. It is above
both numbers before it."""

EXACT = 1e-9
"""A gap of this size comes from rounding the last sums, not from a solver's tolerance. It counts as closed."""
