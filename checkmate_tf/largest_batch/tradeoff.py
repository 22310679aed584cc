"""What each budget costs, for users: from a Keras model or a graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..costs import CostSpec
from ..graph import Graph
from ..strategies import SolveOptions
from ..strategies.tradeoff import Tradeoff
from ..strategies.tradeoff import tradeoff as of_graph

__all__ = ["tradeoff"]


def tradeoff(
    model_or_graph: Any,
    batch_size: int | None = None,
    *,
    budgets: int = 10,
    costs: CostSpec = "profile",
    time_limit: float = 30.0,
    gap: float = 0.01,
    seed: int = 0,
    input_spec: Any = None,
    data: Any = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> Tradeoff:
    """What less memory costs: overhead for each of several budgets, before one is chosen. Nothing is trained.

    Parameters
    ----------
    model_or_graph : keras.Model or Graph
        A model is built and compiled. It stays as it is. Its step is planned as by `compile`, in any order of
        computation. A graph keeps its own order.
    batch_size : int, optional
        Samples in a batch. Not needed for a model if `input_spec` or `data` tells it. For a graph it says what it was
        made for; without it no batches are named.
    budgets : int
        How many, from the peak of the plain step to the least that is known to do.
    costs, input_spec, data
        For a model, as for `compile`.
    time_limit : float
        Seconds of solving, for all budgets together.
    gap : float
        A budget is done when (cost - proven lower bound) / cost is below this.
    seed : int
        Of the random search.
    progress : callable (done, total, text), optional
        Hears which budget is looked at.

    Returns
    -------
    Tradeoff
        `print` shows it as a table, `plot(path)` draws it. `knee` is where memory becomes dear.

    Raises
    ------
    BudgetError
        If there are fewer than two budgets.
    CheckmateError
        As `op_graph`.

    Notes
    -----
    Budgets are by prediction, in bytes of values and workspaces. The device's allocator may need some percent more;
    `compile` measures that. The batches assume that values grow with the batch, and kernels' workspaces, too.

    Examples
    --------
    >>> print(checkmate_tf.tradeoff(model, batch_size=32))  # doctest: +SKIP
    """
    if isinstance(model_or_graph, Graph):
        options = SolveOptions(time_limit=time_limit, gap=gap, seed=seed)
        return of_graph(model_or_graph, budgets, options, batch_size=batch_size, progress=progress)
    from ..keras.api import op_graph
    from ..keras.batches.spec import batch_bytes, data_spec

    graph = op_graph(model_or_graph, batch_size, costs, input_spec=input_spec, data=data)
    spec, batch = data_spec(model_or_graph, batch_size, input_spec, data)
    options = SolveOptions(time_limit=time_limit, gap=gap, seed=seed, order="free")
    fixed = max(0, graph.constant_bytes - batch_bytes(spec, batch))  # inputs grow with the batch, variables do not
    return of_graph(graph, budgets, options, batch_size=batch, fixed_bytes=fixed, progress=progress)
