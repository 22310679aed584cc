"""The largest batch, for users: from a Keras model or a graph, by prediction or by training for real."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any, Protocol

from ..errors import BudgetError, CostError, StrategyError, show_value
from ..graph import Graph
from ..strategies import SolveOptions
from ..strategies.max_batch import MaxBatch, max_batch, max_batch_linear, max_batch_quadratic
from ..units import parse_budget

__all__ = ["FORMS", "max_batch_size"]


class _Form(Protocol):
    """What each form implements."""

    def __call__(
        self,
        graph: Graph,
        memory_bytes: int,
        max_overhead: float | str,
        fixed_bytes: int | None,
        options: SolveOptions | None,
    ) -> MaxBatch: ...


FORMS: dict[str, _Form] = {"search": max_batch, "linear": max_batch_linear, "quadratic": max_batch_quadratic}
"""The ways to find the largest batch, by name."""


def max_batch_size(
    model_or_graph: Any,
    memory: int | float | str,
    max_overhead: float | str = "one-forward",
    *,
    fixed_bytes: int | None = None,
    inputs: bool = False,
    costs: str = "flops",
    time_limit: float = 60.0,
    seed: int = 0,
    progress: Any = None,
    verify: bool = False,
    form: str = "search",
) -> MaxBatch:
    """The largest batch that trains in `memory` at a bounded cost in the graph's order, and a proven upper bound on it.

    Parameters
    ----------
    model_or_graph : keras.Model or Graph
        A model becomes a graph with a node for each layer (`layer_graph`); its parameters and their gradients are in
        memory throughout. A graph is that of one sample.
    memory : int, float or str
        Bytes, or a size such as `"16GB"`.
    max_overhead : float or "one-forward"
        Most recomputation that is allowed: a share of the step's cost, or one more forward pass (the paper's limit).
    fixed_bytes : int, optional
        For a graph: the part of its `constant_bytes` that does not grow with the batch. Default: all of them.
    inputs : bool
        For a model: count the batch of inputs, too. The published figures do not.
    costs : str
        For a model: where costs come from. There is only "flops": those grow with the batch, as the search has it.
    time_limit : float
        Seconds for the search.
    seed : int
        Of the random search.
    progress : callable, optional
        Called about once a second with (seconds, batch size, upper bound, upper bound / batch size - 1). While the
        answer is verified, it is called after each trial, with the largest batch that trained and the largest that may.
    verify : bool
        For a compiled Keras model: train the answer in a child process whose device may take no more than `memory`. The
        model is compiled for a budget of a little less, because an allocator loses some memory to fragments. If the
        batch does not train, smaller ones are tried by bisection. That takes minutes. The result's `verified` tells
        what was measured. The child loads the model from a temporary `.keras` file, and runs no code from it. For a
        model with classes of its own, use the command line: `checkmate-tf max-batch file.py:function --verify`.

    form : str
        How the answer is found. "search": a search, and a proven bound, for networks. "linear": the exact program of
        least peak, in an integer solver. "quadratic": the paper's bilinear program, in Gurobi. Without a full licence
        of Gurobi that ends at 8 or 9 nodes. The last two look only at schedules that compute a node at most once in a
        stage.

    Returns
    -------
    MaxBatch

    Raises
    ------
    StrategyError
        If there is no such form, or no solver or licence for it.
    CostError
        If `costs` is anything else than "flops", or `max_overhead` makes no sense.
    BudgetError
        If `memory` cannot be read as a size. Also if the answer is to be verified, and this process may fill less
        memory.
    InfeasibleBudgetError
        If not even one sample fits, or trains.
    ModelError, TraceError, DynamicShapeError
        If the model has no graph of layers. Also if a model to verify is not compiled, or
        cannot be saved and loaded.
    KeyboardInterrupt
        If verification is interrupted before any batch trained.

    Examples
    --------
    >>> checkmate_tf.max_batch_size(keras.applications.VGG19(weights=None), "16GB").batch_size  # doctest: +SKIP
    """
    if form not in FORMS:
        raise StrategyError(f"form {form!r} is unknown; choose one of {', '.join(FORMS)}")
    if not isinstance(costs, str) or costs != "flops":
        raise CostError(
            f'costs is {show_value(costs)}; give "flops", which grow with the batch as the search has it: others need '
            "not, since launching a kernel takes as long for one sample as for all"
        )
    size = parse_budget(memory)
    if size.size_bytes is None:
        raise BudgetError(f'memory is {memory!r}; give bytes or a size such as "16GB"')
    options = SolveOptions(time_limit=time_limit, seed=seed, progress=progress)
    if not verify:
        return _predict(model_or_graph, size.size_bytes, max_overhead, fixed_bytes, inputs, options, form)
    from .verify import saved, try_for_real

    begun = time.perf_counter()

    def told(_: Any, low: int, high: int) -> None:
        if progress is not None:
            progress(time.perf_counter() - begun, float(low), float(high - 1), (high - 1) / max(low, 1) - 1)

    with saved(model_or_graph) as source:
        found = _predict(model_or_graph, size.size_bytes, max_overhead, fixed_bytes, inputs, options, form)
        return try_for_real(found, source, max_overhead, seed=seed, told=told)


def _predict(
    model_or_graph: Any,
    memory_bytes: int,
    max_overhead: float | str,
    fixed_bytes: int | None,
    inputs: bool,
    options: SolveOptions,
    form: str,
) -> MaxBatch:
    found = FORMS[form]
    if isinstance(model_or_graph, Graph):
        return found(model_or_graph, memory_bytes, max_overhead, fixed_bytes, options)
    from ..layers.graph import layer_graph

    graph = layer_graph(model_or_graph, 1, "flops")
    fixed = 2 * graph.constant_bytes - layer_graph(model_or_graph, 2, "flops").constant_bytes
    if not inputs:
        graph = replace(graph, constant_bytes=fixed)
    return found(graph, memory_bytes, max_overhead, fixed, options)
