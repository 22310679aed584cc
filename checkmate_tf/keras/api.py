"""The three calls for Keras users: `compile`, `restore` and `gradient_function`."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Unpack

import keras
import tensorflow as tf

from ..costs import CostSpec
from ..errors import CheckmateError, ModelError
from ..fit.options import Planning, options_of, takes_planning
from ..fit.pipeline import step_graph
from ..graph import Graph
from ..trace.sums import grappler_sorts
from .controller import Controller, batch_errors, build_training
from .distribution import distribution_of
from .frameworks import as_called, framework_of, is_compiled
from .jit import resolve_jit
from .progress import progress_bars
from .spec import data_spec, sample_of

__all__ = ["compile", "gradient_function", "op_graph", "restore"]

log = logging.getLogger("checkmate_tf")


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
        Built and compiled. It is changed in place; `restore` undoes it. If anything fails it stays as it was.
    budget : int, float or str
        Total memory of the device (of each one, under `tf.distribute`): bytes, `"1.5GB"`, a fraction of the plain
        step's predicted peak (0.6, `"60%"`), or `"auto"`, the device's limit.
    batch_size : int, optional
        The largest batch, of all replicas together. Smaller ones work. Not needed if `input_spec` or `data` tells it.
    input_spec : nest of tf.TensorSpec, optional
        `(x, y)` or `(x, y, sample_weight)`. Needed (or `data`) for models that do not declare their inputs.
    data : tuple of arrays or tf.data.Dataset, optional
        A batch `(x, y)`, on which plans are then measured, or the dataset to train on.
    strategy : str
        How to schedule; see `checkmate_tf.strategies`.
    costs : str, callable or array
        `"profile"` (this device, cached), `"roofline"`, `"flops"`, or a function of a tf.Operation.
    time_limit : float
        Seconds that solving may take.
    gap : float
        Stop solving when the proven gap is below this.
    seed : int
        Of the search.
    verify : bool
        Measure the plan's real peak where the allocator keeps statistics, and plan again if it is over the budget.
    progress : bool or callable (stage, done, total, text)
        Show progress bars in a terminal, or call this.
    cache : bool
        Take the schedule from the user's cache folder if it was solved before for the same graph, costs, budget and
        options, and keep it there otherwise.
    schedule : path, optional
        A file of `Schedule.save`, such as `model.checkmate.schedule.save(path)`: solve once, and let every worker of a
        cluster load. It is measured like any other, and planned anew only if it is over the budget then. Other
        structures of data that come later are planned as ever.
    operators : str
        `"choose"` lets gradients read codes of forward values (a bit for the sign of each element after a ReLU, a byte
        for each window of a max-pooling, a bit for each element of a mask) where that costs less than to keep or
        compute the values; the numbers stay the same, bit by bit. `"default"`: as TensorFlow has them.
    prefetch : int, optional
        On a CPU, where the input pipeline shares the device: how many batches yours keeps ready beside the one in use.
        Plans are measured so. By default as `fit` feeds arrays, which keeps several.

    Returns
    -------
    keras.Model
        The same object, with `model.checkmate`, the `Report`. With `jit_compile=True` XLA compiles the planned step
        (on a CPU; see `emit.xla`); elsewhere `jit_compile` is set to False, with a message.

    Raises
    ------
    BudgetError, BatchSizeError, ModelError, JitCompileError
        For arguments and models that cannot be served.
    TraceError, DynamicShapeError, CostError
        If the training step cannot be planned.
    InfeasibleBudgetError
        If no schedule fits; names the least budget, and the operation that needs it.
    PlanError
        If the given schedule cannot be read, is one of another graph (tells what differs), or is over the budget.

    Examples
    --------
    >>> model.compile(optimizer="adam", loss="sparse_categorical_crossentropy")  # doctest: +SKIP
    >>> checkmate_tf.compile(model, budget="700MB", batch_size=32)  # doctest: +SKIP
    >>> model.fit(x, y, batch_size=32)  # doctest: +SKIP
    """
    options, progress = options_of(budget, planning)
    _check_model(model)
    distribution = distribution_of(model)
    jit_compile = resolve_jit(model, options.operators, distribution)
    spec, batch = data_spec(model, batch_size, input_spec, data)
    with progress_bars(progress) as tell:
        options = replace(options, progress=tell, jit_compile=jit_compile, sample=sample_of(data, batch))
        earlier = getattr(model, "_checkmate_controller", None)
        controller = Controller(model, options, batch, _plain_step(model), distribution)
        controller.plan(spec)
    if earlier is not None:
        restore(model)
    controller.attach()
    return model


def restore(model: keras.Model) -> keras.Model:
    """Undo `compile`: the model trains as it did before. The same object is returned."""
    controller = getattr(model, "_checkmate_controller", None)
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
    """Loss and gradients within a memory budget, for training loops of one's own.

    Parameters
    ----------
    model : keras.Model
        Built; it need not be compiled.
    loss : callable (y, y_pred) -> tensor, or a Keras loss's name
        The mean of what it returns, plus the model's own losses, is differentiated.
    budget, batch_size, input_spec, data, strategy, costs, time_limit, gap, seed, verify, progress, cache, schedule, \
    operators, prefetch
        As for `compile`. The budget holds gradients, which are alive when the function returns.

    Returns
    -------
    callable (x, y) -> (loss, gradients)
        A tf.function; gradients are in the order of `model.trainable_variables` (None where there is none). Its
        attribute `checkmate` is the `Report`.
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

    def gradients(batch: tuple[Any, Any]) -> tuple[tf.Tensor, list[Any]]:
        x, y = batch
        with tf.GradientTape() as tape:
            y_pred = model(x, training=True)
            value = tf.reduce_mean(loss_function(y, y_pred))
            if model.losses:
                value += tf.add_n(model.losses)
        found = tape.gradient(value, model.trainable_variables)
        return value, [None if g is None else tf.convert_to_tensor(g) for g in found]

    if input_spec is None and data is None and batch_size is not None:
        before = model.loss if hasattr(model, "loss") else None
        try:
            model.loss = loss  # the target's shape follows from the loss
            spec, batch_size = data_spec(model, batch_size, None, None)
        finally:
            model.loss = before
    else:
        spec, batch_size = data_spec(model, batch_size, input_spec, data)
    with progress_bars(progress) as tell:
        options = replace(options, progress=tell, sample=sample_of(data, batch_size))
        controller = Controller(model, options, batch_size, as_called(model, gradients))
        planned = controller.plan(spec)

    functions: dict[bool, Callable[..., tuple[tf.Tensor, list[Any]]]] = {}  # a trace keeps its order of terms

    @functools.wraps(gradients)
    def guarded(x: Any, y: Any) -> tuple[tf.Tensor, list[Any]]:
        sorts = grappler_sorts()
        if sorts not in functions:
            step = lambda x, y: controller.step((x, y))  # noqa: E731 - a short callback
            functions[sorts] = tf.function(step, autograph=False, reduce_retracing=True)
        with batch_errors():
            result = functions[sorts](x, y)
        with contextlib.suppress(CheckmateError, TypeError, ValueError):  # the plan of the last trace, then
            controller.note(tf.nest.map_structure(tf.type_spec_from_value, (x, y)))
        guarded.checkmate = controller.report  # type: ignore[attr-defined]
        return result

    guarded.checkmate = planned.report  # type: ignore[attr-defined]
    return guarded


def op_graph(
    model: keras.Model,
    batch_size: int | None = None,
    costs: CostSpec = "profile",
    *,
    input_spec: Any = None,
    data: Any = None,
) -> Graph:
    """The graph of a compiled model's training step that `compile` would schedule.

    Parameters
    ----------
    model : keras.Model
        Built and compiled; it stays as it is, but for its optimizer, which is built.
    batch_size, costs, input_spec, data
        As for `compile`.

    Raises
    ------
    CheckmateError
        As `compile`, except for budgets.
    """
    _check_model(model)
    distribution = distribution_of(model)
    spec, batch = data_spec(model, batch_size, input_spec, data)
    build_training(model, spec, _plain_step(model))
    if distribution is not None:
        batch = distribution.share(batch)
    return step_graph(_plain_step(model), spec, batch, costs, model.name, distribution)


def _plain_step(model: Any) -> Callable[[Any], Any]:
    """The model's own step, whether it was compiled for a budget or not."""
    earlier = getattr(model, "_checkmate_controller", None)
    return earlier.plain_step if earlier else as_called(model, model.train_step)


def _check_built(model: Any) -> None:
    if framework_of(model) is None:
        raise ModelError(
            f"a Keras 3 model is needed, or one of tf_keras, not {type(model).__module__}.{type(model).__name__}"
        )
    if isinstance(model, keras.Model) and keras.backend.backend() != "tensorflow":
        raise ModelError(
            f"{model.name!r} runs on {keras.backend.backend()}, and plans are for TensorFlow: set "
            "KERAS_BACKEND=tensorflow in the environment before Keras is imported"
        )
    if not model.built:
        raise ModelError(
            f"{model.name!r} is not built, so its variables do not exist: call it on a batch, or model.build()"
        )


def _check_model(model: Any) -> None:
    _check_built(model)
    if not is_compiled(model):
        raise ModelError(f"{model.name!r} is not compiled: call model.compile(optimizer=..., loss=...) first")
