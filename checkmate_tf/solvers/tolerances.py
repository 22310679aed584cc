"""How far a solver's answer may be from what it says: one place for the numbers, each with its reason.

Solvers work in floating point. Gurobi, HiGHS and SCIP take a row for kept that is violated by 1e-6, and a number for
whole that is 1e-6 away. So a limit that must hold is tightened before a program is solved, and a bound that must be
true is loosened after. All of these are relative.
"""

__all__ = ["BOUND_ERROR", "EXACT", "FEASIBLE", "MARGIN"]

FEASIBLE = 1e-6
"""What a solver may be off in a row or a bound of a variable."""

BOUND_ERROR = 2 * FEASIBLE
"""What an integer solver may add to its bound, of the base cost: rows and whole numbers may each be off."""

MARGIN = 4 * FEASIBLE
"""Of a budget or a cost limit, left free in a program so that its points keep the true one: above both of the two."""

EXACT = 1e-9
"""A gap that is rounding of the last sums, and no solver's tolerance. What is closed to this is proved as it stands."""
