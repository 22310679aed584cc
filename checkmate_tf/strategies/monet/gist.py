"""Gist: encodings of forward values chosen by rule, nothing computed again (Jain et al., ISCA 2018).

Of the ways that `layers.operators.layer_operators` offers, for the layers that they fit:

- *binarize*: a ReLU's gradient reads a bit an element where no other gradient reads its output, but for max-poolings,
  which read an index;
- *sparse storage, dense compute*: where convolutions read it, too, all of them read the elements that are not 0 (if the
  graph was made with a `sparsity`);
- *delayed precision reduction*, on request: what is read of other values has fewer bits (if it was made with `bits`).
  **This changes the gradients.**

Computing ReLUs in place is no choice in these graphs. The rule knows of no budget, so it makes one choice for all
budgets. MONeT (table 3) compares with that.

What it does badly: sparsity is one assumed number for all ReLUs.
"""

from __future__ import annotations

from ...errors import StrategyError
from ...graph import BACKWARD
from ...operators import Chosen, OperatorGraph
from ...schedule import keep_all

__all__ = ["gist"]


def gist(operators: OperatorGraph, *, reduced: bool = False) -> Chosen:
    """Gist's choice, and the schedule that computes everything once.

    Parameters
    ----------
    operators : OperatorGraph
    reduced : bool
        Read values in fewer bits, too. This changes the gradients, and `Implementation.error` of these ways says so.

    Returns
    -------
    Chosen
        Status "feasible"; nothing is proved.

    Raises
    ------
    StrategyError
        If values in fewer bits are asked for, and the graph offers none.
    """
    ways = [{way.name: at for at, way in enumerate(operators.ways(i))} for i in range(len(operators))]
    choice = {i: names["index"] for i, names in enumerate(ways) if "index" in names}
    for i, names in enumerate(ways):
        if "mask" not in names:
            continue
        for value in set(operators.ways(i)[0].inputs) - set(operators.ways(i)[names["mask"]].inputs):
            if operators.graph.kinds[value] == BACKWARD:
                continue
            readers = [j for j in operators.default_readers[value] if operators.graph.kinds[j] == BACKWARD]
            others = [j for j in readers if j != i and j not in choice]
            if not others:
                choice[i] = names["mask"]
            elif all("sparse" in ways[j] for j in [i, *others]):
                choice |= {j: ways[j]["sparse"] for j in [i, *others]}
    if reduced:
        fewer = {i: at for i, names in enumerate(ways) for name, at in names.items() if name.startswith("float")}
        if not fewer:
            raise StrategyError(
                f"graph {operators.graph.name!r} offers no values in fewer bits: make it with "
                "layer_operators(..., bits=16), or leave reduced=False"
            )
        choice = fewer | choice
    chosen = operators.choose(choice)
    return Chosen(keep_all(chosen.graph), chosen, operators.choose({}).graph.base_cost, "feasible", float("-inf"))
