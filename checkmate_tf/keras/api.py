"""The calls for Keras users: `compile`, `restore`, `gradient_function` and `op_graph`."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Unpack

import keras
import tensorflow as tf

from ..costs import CostSpec
from ..errors import BatchSizeError, CheckmateError, ModelError
from ..files.schedules import read_schedule
from ..fit.options import Planning, options_of, takes_planning
from ..fit.pipeline import step_graph
from ..graph import Graph
from .batches.apart import are_apart, told_sizes
from .batches.declared import casts_of
from .batches.limit import batch_errors
from .batches.spec import data_spec, sample_of, targets_guessed
from .built.building import build_training
from .built.unbuilt import Aside, left_unbuilt
from .distribution import distribution_of
from .frameworks import as_called, framework_of, is_compiled
from .jit import resolve_jit
from .progress import progress_bars
from .training.controller import Controller, controller_of
from .training.first_batch import AtFirstBatch

__all__ = ["compile", "gradient_function", "op_graph", "restore"]


@takes_planning
def compile(  # noqa: A001 - the name that the package offers
    model: keras.Model,
    budget: object = "auto",
    *,
    batch_size: int | None = None,
    input_spec: Any = None,
    data: Any = None,
    **planning: Unpack[Planning],
) -> keras.Model:
    """Make a compiled Keras model train within a memory budget, with the same numbers.

    Parameters
    ----------
    model : keras.Model
        Built and compiled. It is changed in place; `restore` undoes it. If anything fails it stays as it was. If
        planning fails at the first batch, the model is restored, and `fit` raises the error.
    budget : int, float or str
        Memory for everything on the device (on each one, under `tf.distribute`), such as parameters and activations:
        bytes, a size (`"1.5GB"`), a share of the plain step's predicted peak (0.6, `"60%"`), or `"auto"`, the device's
        limit. The plain step is the model's own, which computes nothing twice.
    batch_size : int, optional
        The largest batch, of all replicas together. Smaller ones work. Not needed if `input_spec` or `data` tells it.
        Where inputs have several sizes along their first axis, it is the one that most of them have.
        If none of the three is given, the plan is made at the first batch that comes, and for its size. A larger batch
        that comes later is planned for then; inside of a running graph it is an error. Under `tf.distribute` one of the
        three is needed.
    input_spec : nest of tf.TensorSpec, optional
        `(x, y)` or `(x, y, sample_weight)`. Models that do not declare their inputs need this, or `data`, to be planned
        at once.
    data : tuple of arrays, array or tf.data.Dataset, optional
        One batch `(x, y)`, or `x` where `fit` gets no targets, or the dataset to train on. Plans are measured on a
        batch that is given here. A dataset only tells types and shapes. It is not read: where it does not tell the size
        of its batches (a generator may not), `batch_size` must.
    strategy : str
        How to schedule: a name in `checkmate_tf.STRATEGIES`.
    costs : str, callable or array
        What operations cost. `"profile"` measures them on this device and keeps the times. `"roofline"` models them,
        `"flops"` counts them. Or a function of a tf.Operation, or an array; see `checkmate_tf.costs.op_costs`.
    time_limit : float
        Seconds that solving may take.
    gap : float
        Stop solving when (cost - proven lower bound) / cost is below this.
    seed : int
        Of the random search.
    verify : bool
        Measure the plan's real peak where the allocator keeps statistics, and plan again if it is over the budget.
    progress : bool or callable (stage, done, total, text)
        True shows progress bars in a terminal. A callable is called instead.
    cache : bool
        Keep schedules in the user's cache folder. One that was solved before for the same graph, costs, budget and
        options is used again.
    schedule : path, optional
        A file that `Schedule.save` wrote, for instance with `model.checkmate.schedule.save(path)`. It is used instead
        of solving: solve once, and let every worker of a cluster load the answer. It is measured like any other. A new
        schedule is made only if this one is then over the budget. Data of another structure that comes later is
        planned without it.
    operators : str
        `"default"`: gradients read the values that they read in TensorFlow. `"choose"`: a gradient may read a code
        instead, which takes less memory: a bit for the sign of each element after a ReLU, a byte for each window of a
        max-pooling, a bit for each element of a mask. A code is used where that costs less than to keep the value or
        to compute it again. The numbers stay the same, bit by bit.
    prefetch : int, optional
        For a CPU, where the input pipeline shares the device: how many batches your pipeline keeps ready beside the one
        in use (tf.data adds a `prefetch` to a pipeline that has none, unless its option
        `experimental_optimization.inject_prefetch` is False). Plans are measured with as many. By default `fit` on
        arrays is expected, which then makes no batch ahead. If it is given a pipeline of yours instead (or `data` is
        one), there is room for several.
    max_plans : int
        Where no batch size is given, and batches come in several sizes, such as buckets of sequence lengths, each size
        has a plan, made when it comes. This many are kept; what comes in more sizes trains under the plans of larger
        ones. All have the same budget. A share is one of the largest plain peak so far.
    page : str
        `"auto"`: on a GPU, values may wait in the host's memory, where that costs less than to compute them again.
        `"never"`: they may not. The numbers stay the same, bit by bit.

    Returns
    -------
    keras.Model
        The same object. Its `model.checkmate` is the `Report`; None until there is a plan. With `jit_compile=True`,
        which Keras chooses by itself on GPUs, XLA compiles the planned step (see `emit.xla`).

    Raises
    ------
    BudgetError, BatchSizeError, StrategyError, OperatorsError, ModelError, JitCompileError
        If an argument or the model cannot be used. The message says why, and what to do.
    TraceError, DynamicShapeError, CostError
        If the training step cannot be planned.
    InfeasibleBudgetError
        If no schedule fits. The message names the least budget that would do, and the operation that needs it.
    PlanError
        If the given schedule cannot be read, is one of another graph (the message tells what differs), or is over the
        budget.

    Notes
    -----
    What needs no data is checked at once. If there is no batch size, the errors about the step and the budget come from
    the first `fit`, `train_on_batch` or call of `model.train_step`.

    Examples
    --------
    >>> model.compile(optimizer="adam", loss="sparse_categorical_crossentropy")  # doctest: +SKIP
    >>> checkmate_tf.compile(model, budget="700MB")  # doctest: +SKIP
    >>> model.fit(x, y, batch_size=32)  # doctest: +SKIP
    """
    options, progress = options_of(budget, planning)
    at_first_batch = batch_size is None and input_spec is None and data is None
    _check_built(model, built=False)
    distribution = distribution_of(model)
    later = "; or leave batch_size=, input_spec= and data= out, to plan at the first batch"
    _check_model(model, built=not at_first_batch, otherwise="" if distribution else later)
    options = replace(options, jit_compile=resolve_jit(model, options.operators, distribution))
    plain_step = _plain_step(model)
    controller: Controller
    if distribution is None and at_first_batch:
        if options.schedule is not None:
            read_schedule(options.schedule)  # or it would be refused when training has begun
        controller = AtFirstBatch(model, options, plain_step, progress)
    else:
        spec, batch = data_spec(model, batch_size, input_spec, data)
        told = isinstance(data, tf.data.Dataset)
        if are_apart(spec):
            if distribution is not None:
                raise BatchSizeError(_disagree(spec, batch))
            controller = AtFirstBatch(model, options, plain_step, progress, told)
            controller.foresee(spec, batch, data.element_spec if told else None, None if told else data)
        else:
            with progress_bars(progress) as tell:
                options = replace(options, progress=tell, sample=sample_of(data, batch, spec))
                guessed = input_spec is None and data is None
                casts = casts_of(model, spec, plain_step) if guessed and distribution is None else None
                controller = Controller(model, options, batch, plain_step, distribution, told, casts)
                with targets_guessed(model, getattr(model, "loss", None), guessed):
                    controller.plan(spec)
    restore(model)
    controller.attach()
    return model


def restore(model: keras.Model) -> keras.Model:
    """Undo `compile`: the model trains as it did before. The same object is returned."""
    controller = controller_of(model)
    if controller is not None:
        controller.detach()
    return model


@takes_planning
def gradient_function(
    model: keras.Model,
    loss: Any,
    budget: object = "auto",
    *,
    batch_size: int | None = None,
    input_spec: Any = None,
    data: Any = None,
    **planning: Unpack[Planning],
) -> Callable[..., tuple[tf.Tensor, list[tf.Tensor]]]:
    """Make a function that gives loss and gradients within a memory budget, for training loops of your own.

    Parameters
    ----------
    model : keras.Model
        Built; it need not be compiled.
    loss : callable (y, y_pred) -> tensor, or a Keras loss's name
        The gradients are those of the mean of what it returns, plus the model's own losses.
    budget, batch_size, input_spec, data, strategy, costs, time_limit, gap, seed, verify, progress, cache, schedule, \
    operators, prefetch, max_plans, page
        As for `compile`. Gradients count, too: they are still in memory when the function returns. If there is no batch
        size, the plan is made at the first call. It is made again when a larger batch comes, and another one is made
        for inputs of other sizes.

    Returns
    -------
    callable (x, y) -> (loss, gradients)
        A tf.function. Gradients are in the order of `model.trainable_variables`; None where there is no gradient. Its
        attribute `checkmate` is the `Report`; None until there is a plan.
    """
    options, progress = options_of(budget, planning)
    _check_built(model)
    distribution = distribution_of(model)
    if distribution is not None:
        raise ModelError(
            f"{model.name!r} is spread over {distribution.replicas} devices by {type(distribution.strategy).__name__}; "
            "this function is for one device: build the model outside of the strategy's scope, or use "
            "checkmate_tf.compile"
        )
    loss_function = framework_of(model).losses.get(loss) if isinstance(loss, str) else loss
    if not callable(loss_function):
        raise ModelError(
            f"loss is of type {type(loss).__name__}, and no function of (y, y_pred): give one, or the name of a Keras "
            "loss; a function gets all outputs at once"
        )

    def gradients(batch: tuple[Any, Any]) -> tuple[tf.Tensor, list[Any]]:
        x, y = batch
        with tf.GradientTape() as tape:
            y_pred = model(x, training=True)
            value = _total(tf.reduce_mean(loss_function(y, y_pred)), model.losses)
        found = tape.gradient(value, model.trainable_variables)
        return value, [None if g is None else tf.convert_to_tensor(g) for g in found]

    controller: Controller
    if input_spec is None and data is None and batch_size is None:
        controller = AtFirstBatch(model, options, as_called(model, gradients), progress)
        controller.aside = Aside(model)
        return _gradient_steps(controller, gradients)
    if input_spec is None and data is None:
        before = model.loss if hasattr(model, "loss") else None
        try:
            model.loss = loss  # the target's shape follows from the loss
            spec, batch_size = data_spec(model, batch_size, None, None, by_fit=False)
        finally:
            model.loss = before
    else:
        spec, batch_size = data_spec(model, batch_size, input_spec, data, by_fit=False)
    if are_apart(spec):
        apart = AtFirstBatch(model, options, as_called(model, gradients), progress)
        apart.aside = Aside(model)
        apart.foresee(spec, batch_size, None, None if isinstance(data, tf.data.Dataset) else data)
        return _gradient_steps(apart, gradients)
    with progress_bars(progress) as tell:
        options = replace(options, progress=tell, sample=sample_of(data, batch_size, spec))
        controller = Controller(model, options, batch_size, as_called(model, gradients))
        controller.aside = Aside(model)  # what lies aside for the steps of `fit` stays there
        with targets_guessed(model, loss, input_spec is None and data is None):
            controller.plan(spec)
    return _gradient_steps(controller, gradients)


def op_graph(
    model: keras.Model,
    batch_size: int | None = None,
    costs: CostSpec = "profile",
    *,
    input_spec: Any = None,
    data: Any = None,
) -> Graph:
    """Give the graph of a compiled model's training step, as `compile` would schedule it.

    Parameters
    ----------
    model : keras.Model
        Built and compiled. It stays as it is.
    batch_size, costs, input_spec, data
        As for `compile`.

    Raises
    ------
    CheckmateError
        As `compile`, except for errors about budgets.
    """
    _check_model(model)
    distribution = distribution_of(model)
    spec, batch = data_spec(model, batch_size, input_spec, data)
    if distribution is not None:
        if are_apart(spec):
            raise BatchSizeError(_disagree(spec, batch))
        batch = distribution.share(batch)
    with left_unbuilt(model):
        build_training(model, spec, _plain_step(model))
        with targets_guessed(model, getattr(model, "loss", None), input_spec is None and data is None):
            return step_graph(_plain_step(model), spec, batch, costs, model.name, distribution)


def _disagree(spec: Any, batch: int) -> str:
    """What is said where replicas share each batch, and first axes differ."""
    return (
        f"inputs disagree on the batch size: {sorted({batch, *told_sizes(spec)})}. Under tf.distribute each is shared "
        "by the replicas, so all need the same: build the model outside of the strategy's scope, or give equal sizes"
    )


def _gradient_steps(
    controller: Controller, gradients: Callable[..., Any]
) -> Callable[..., tuple[tf.Tensor, list[tf.Tensor]]]:
    """The function of x and y that runs the planned step."""

    @functools.wraps(gradients)
    def guarded(x: Any, y: Any) -> tuple[tf.Tensor, list[Any]]:
        with batch_errors():
            controller.arrives((x, y))
            result = controller.by_python((x, y))
        with contextlib.suppress(CheckmateError, TypeError, ValueError):  # the plan of the last trace, then
            controller.note(tf.nest.map_structure(tf.type_spec_from_value, (x, y)))
        guarded.checkmate = controller.report  # type: ignore[attr-defined]
        return result

    guarded.checkmate = controller.report  # type: ignore[attr-defined]
    return guarded


def _total(loss: tf.Tensor, others: list[tf.Tensor]) -> tf.Tensor:
    """The sum of losses: in Keras' type, as in its own step, where they have several (mixed precision)."""
    if len({one.dtype for one in (loss, *others)}) > 1:
        loss, *others = (tf.cast(one, keras.config.floatx()) for one in (loss, *others))
    return loss + tf.add_n(others) if others else loss


def _plain_step(model: Any) -> Callable[[Any], Any]:
    """The model's own step, whether it was compiled for a budget or not."""
    earlier = controller_of(model)
    return earlier.plain_step if earlier else as_called(model, model.train_step)


def _check_built(model: Any, built: bool = True, otherwise: str = "") -> None:
    if framework_of(model) is None:
        raise ModelError(
            f"a Keras 3 model is needed, or one of tf_keras, not {type(model).__module__}.{type(model).__name__}"
        )
    if isinstance(model, keras.Model) and keras.backend.backend() != "tensorflow":
        raise ModelError(
            f"{model.name!r} runs on {keras.backend.backend()}, and plans are for TensorFlow: set "
            "KERAS_BACKEND=tensorflow in the environment before Keras is imported"
        )
    if built and not model.built:
        raise ModelError(
            f"{model.name!r} is not built, so its variables do not exist: call it on a batch, or "
            f"model.build(){otherwise}"
        )


def _check_model(model: Any, built: bool = True, otherwise: str = "") -> None:
    _check_built(model, built, otherwise)
    if not is_compiled(model):
        raise ModelError(f"{model.name!r} is not compiled: call model.compile(optimizer=..., loss=...) first")
