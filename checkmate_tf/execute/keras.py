"""The three calls for Keras users: `compile`, `restore` and `gradient_function`."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import keras
import tensorflow as tf

from ..costs import CostSpec
from ..errors import BatchSizeError, CheckmateError, InfeasibleBudgetError, JitCompileError, ModelError
from ..graph import Graph
from ..report import Report
from ..units import Budget, format_bytes, parse_budget
from .measure import find_device
from .planner import PlannedStep, PlanOptions, plan_again, plan_step, step_graph
from .progress import progress_bars
from .spec import data_spec, spec_of_tensors

__all__ = ["compile", "gradient_function", "op_graph", "restore"]

log = logging.getLogger("checkmate_tf")

_PLANS_AGAIN = 3  # most new plans after peaks over the budget while training
_TOO_LARGE = "checkmate_tf: the batch is larger than the"


def compile(  # noqa: A001 - the name that the package offers
    model: keras.Model,
    budget: object = "auto",
    *,
    batch_size: int | None = None,
    input_spec: Any = None,
    data: Any = None,
    strategy: str = "checkmate",
    costs: CostSpec = "profile",
    time_limit: float = 60.0,
    gap: float = 0.01,
    seed: int = 0,
    verify: bool = True,
    progress: bool | Callable[[str, float, float, str], None] = True,
) -> keras.Model:
    """Make a compiled Keras model train within a memory budget, with the same numbers.

    Parameters
    ----------
    model : keras.Model
        Built and compiled. It is changed in place; `restore` undoes it. If anything fails it stays as it was.
    budget : int, float or str
        Total memory of the device: bytes, `"1.5GB"`, a fraction of the plain step's predicted peak (0.6, `"60%"`), or
        `"auto"`, the device's limit.
    batch_size : int, optional
        The largest batch. Smaller ones work. Not needed if `input_spec` or `data` tells it.
    input_spec : nest of tf.TensorSpec, optional
        `(x, y)` or `(x, y, sample_weight)`. Needed (or `data`) for models that do not declare their inputs.
    data : tuple of arrays or tf.data.Dataset, optional
        A batch `(x, y)`, or the dataset to train on.
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

    Returns
    -------
    keras.Model
        The same object, with `model.checkmate`, the `Report`.

    Raises
    ------
    BudgetError, BatchSizeError, ModelError, JitCompileError
        For arguments and models that cannot be served.
    TraceError, DynamicShapeError, CostError
        If the training step cannot be planned.
    InfeasibleBudgetError
        If no schedule fits; names the least budget, and the operation that needs it.

    Examples
    --------
    >>> model.compile(optimizer="adam", loss="sparse_categorical_crossentropy")  # doctest: +SKIP
    >>> checkmate_tf.compile(model, budget="700MB", batch_size=32)  # doctest: +SKIP
    >>> model.fit(x, y, batch_size=32)  # doctest: +SKIP
    """
    wanted = parse_budget(budget)
    _check_model(model)
    _check_jit(model)
    spec, batch = data_spec(model, batch_size, input_spec, data)
    with progress_bars(progress) as tell:
        options = PlanOptions(wanted, strategy, costs, time_limit, gap, seed, verify, progress=tell)
        earlier = getattr(model, "_checkmate_controller", None)
        controller = _Controller(model, options, batch, earlier.plain_step if earlier else model.train_step)
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


def gradient_function(
    model: keras.Model,
    loss: Any,
    budget: object = "auto",
    *,
    batch_size: int | None = None,
    input_spec: Any = None,
    data: Any = None,
    strategy: str = "checkmate",
    costs: CostSpec = "profile",
    time_limit: float = 60.0,
    gap: float = 0.01,
    seed: int = 0,
    verify: bool = True,
    progress: bool | Callable[[str, float, float, str], None] = True,
) -> Callable[..., tuple[tf.Tensor, list[tf.Tensor]]]:
    """Loss and gradients within a memory budget, for training loops of one's own.

    Parameters
    ----------
    model : keras.Model
        Built; it need not be compiled.
    loss : callable (y, y_pred) -> tensor, or a Keras loss's name
        The mean of what it returns, plus the model's own losses, is differentiated.
    budget, batch_size, input_spec, data, strategy, costs, time_limit, gap, seed, verify, progress
        As for `compile`. The budget holds gradients, which are alive when the function returns.

    Returns
    -------
    callable (x, y) -> (loss, gradients)
        A tf.function; gradients are in the order of `model.trainable_variables` (None where there is none). Its
        attribute `checkmate` is the `Report`.
    """
    wanted = parse_budget(budget)
    _check_built(model)
    _check_strategy(model)
    loss_function = keras.losses.get(loss) if isinstance(loss, str) else loss

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
        options = PlanOptions(wanted, strategy, costs, time_limit, gap, seed, verify, progress=tell)
        controller = _Controller(model, options, batch_size, gradients)
        planned = controller.plan(spec)

    @tf.function(autograph=False, reduce_retracing=True)
    def function(x: Any, y: Any) -> tuple[tf.Tensor, list[Any]]:
        return controller.step((x, y))

    @functools.wraps(gradients)
    def guarded(x: Any, y: Any) -> tuple[tf.Tensor, list[Any]]:
        with _batch_errors():
            return function(x, y)

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
    spec, batch = data_spec(model, batch_size, input_spec, data)
    _build(model, spec)
    earlier = getattr(model, "_checkmate_controller", None)
    return step_graph(earlier.plain_step if earlier else model.train_step, spec, batch, costs, model.name)


class _Controller:
    """Stands in for a model's train_step: plans once for each structure of data, then emits the plan."""

    def __init__(self, model: keras.Model, options: PlanOptions, batch_size: int, plain_step: Callable[[Any], Any]):
        self.model = model
        self.options = options
        self.batch_size = batch_size
        self.plain_step = plain_step
        self.plans: dict[Any, PlannedStep] = {}
        self.before: dict[str, Any] = {}

    def plan(self, spec: Any) -> PlannedStep:
        """The plan for a structure of data, made if there is none yet."""
        key = (self._state(), tuple(tf.nest.flatten(spec)), str(tf.nest.map_structure(lambda _: 0, spec)))
        if key not in self.plans:
            if self.plans:
                why = "for data of another structure or a changed model"
                log.info("%s: planning again, %s: %s", self.model.name, why, spec)
            if tf.inside_function():  # Keras is tracing: a new thread has no graph under construction
                with ThreadPoolExecutor(1) as pool:
                    planned = pool.submit(self._plan, spec).result()
            else:
                planned = self._plan(spec)
            key = (self._state(), *key[1:])  # building the optimizer may have changed it
            self.plans[key] = planned
        return self.plans[key]

    def _plan(self, spec: Any) -> PlannedStep:
        _build(self.model, spec)
        earlier, options = list(self.plans.values()), self.options
        if earlier:  # a share of the plain peak was a share of the first plan's
            options = replace(options, budget=Budget(size_bytes=earlier[0].report.budget_bytes))
        return plan_step(self.plain_step, spec, self.batch_size, options, self.model.name, earlier)

    def step(self, data: Any) -> Any:
        """One training step, as the model's own `train_step`."""
        if not tf.inside_function():
            return tf.function(self.step, autograph=False)(data)
        spec = spec_of_tensors(data)
        planned = self.plan(spec)
        flat = [t for t in tf.nest.flatten(data) if t is not None]
        return planned.emit(*_limit_batch(flat, tf.nest.flatten(spec), self.batch_size))

    def attach(self) -> None:
        """Put the planned step in the model's place."""
        model = self.model
        self.before = {k: model.__dict__[k] for k in ("train_step", "make_train_function") if k in model.__dict__}
        self.jit_compile = model.jit_compile
        make = model.make_train_function

        def train_step(data: Any) -> Any:
            result = self.step(data)
            _put(model, "checkmate", self.report)
            return result

        def make_train_function(force: bool = False) -> None:
            make(force)
            if not getattr(model.train_function, "checkmate", False):
                _put(model, "train_function", _guard(model.train_function, self.watch))

        _put(model, "train_step", train_step)
        _put(model, "make_train_function", make_train_function)
        _put(model, "checkmate", self.report)
        _put(model, "_checkmate_controller", self)
        _put(model, "train_function", None)
        model.jit_compile = False

    def detach(self) -> None:
        """Take it out again."""
        for name in ("train_step", "make_train_function", "checkmate", "_checkmate_controller"):
            self.model.__dict__.pop(name, None)
        for name, value in self.before.items():
            _put(self.model, name, value)
        _put(self.model, "train_function", None)
        self.model.jit_compile = self.jit_compile

    def watch(self) -> None:
        """Note the device's peak while training; over the budget, plan again with the difference taken off."""
        device = find_device()
        if not (self.options.verify and device.measurable):
            return
        key, planned = list(self.plans.items())[-1]
        report, peak = planned.report, device.peak_bytes()
        if peak <= (report.training_peak_bytes or 0):
            return
        if peak > report.budget_bytes >= (report.training_peak_bytes or 0):
            again = self._plan_again(planned, peak)
            if again is not None:
                self.plans[key] = again
                self.model.make_train_function(force=True)
                _put(self.model, "checkmate", self.report)
                return
        self.plans[key] = replace(planned, report=replace(report, training_peak_bytes=peak))
        _put(self.model, "checkmate", self.report)

    def _plan_again(self, planned: PlannedStep, peak: int) -> PlannedStep | None:
        """A plan with room for the rest of training, or None if there is none or enough were tried."""
        report, name = planned.report, self.model.name
        log.warning(
            "%s: %s were allocated while training, over the budget of %s (the plan was measured at %s; evaluation, "
            "input pipeline and callbacks share the device)",
            name,
            format_bytes(peak),
            format_bytes(report.budget_bytes),
            format_bytes(report.measured_peak_bytes or 0),
        )
        if len(report.exceeded_bytes) >= _PLANS_AGAIN:
            return None
        try:
            again = plan_again(planned, peak, self.options)
        except InfeasibleBudgetError as error:
            log.warning("%s: no other plan: %s", name, error)
            return None
        predicted, measured = (
            format_bytes(again.schedule.peak_bytes),
            format_bytes(again.report.measured_peak_bytes or 0),
        )
        log.warning("%s: planned again: %s predicted, %s measured", name, predicted, measured)
        return again

    @property
    def report(self) -> Report:
        """Of the newest plan."""
        return list(self.plans.values())[-1].report

    def _state(self) -> tuple[int, ...]:
        """Changes when the model is compiled again, or a layer is frozen."""
        model = self.model
        compiled = (id(getattr(model, "optimizer", None)), id(getattr(model, "_compile_loss", None)))
        return (*compiled, *(id(v) for v in model.trainable_variables))


def _put(model: keras.Model, name: str, value: Any) -> None:
    """Set an attribute past Keras's tracking, so that saving does not see it."""
    object.__setattr__(model, name, value)


def _check_built(model: Any) -> None:
    if not isinstance(model, keras.Model):
        raise ModelError(f"a Keras 3 model is needed, not {type(model).__module__}.{type(model).__name__}")
    if not model.built:
        raise ModelError(
            f"{model.name!r} is not built, so its variables do not exist: call it on a batch, or model.build()"
        )


def _check_strategy(model: keras.Model) -> None:
    strategy = getattr(model, "distribute_strategy", None)
    if strategy is not None and strategy.num_replicas_in_sync > 1:
        raise ModelError(
            f"{model.name!r} is spread over {strategy.num_replicas_in_sync} devices by {type(strategy).__name__}; one "
            "budget is for one device: build and compile the model outside of the strategy's scope"
        )


def _check_model(model: Any) -> None:
    _check_built(model)
    if not model.compiled:
        raise ModelError(f"{model.name!r} is not compiled: call model.compile(optimizer=..., loss=...) first")
    _check_strategy(model)


def _check_jit(model: keras.Model) -> None:
    if not model.jit_compile:
        return
    if not model._resolve_auto_jit_compile():
        raise JitCompileError(
            f"{model.name!r} was compiled with jit_compile=True: XLA merges a recomputation with the original, which "
            "undoes every saving. Compile the model with jit_compile=False"
        )
    log.warning("%s: jit_compile is set to False, since XLA merges recomputations with the originals", model.name)


def _build(model: keras.Model, spec: Any) -> None:
    """Create what Keras creates at the first fit: optimizer slots, and the variables of losses and metrics."""
    if not getattr(model, "compiled", False):
        return
    batch = tf.nest.map_structure(lambda t: None if t is None else keras.KerasTensor(t.shape, t.dtype.name), spec)
    try:
        model._symbolic_build(data_batch=batch)
    except CheckmateError:
        raise
    except Exception as error:  # noqa: BLE001 - a custom train_step may not have what this needs; tracing will tell
        log.debug("symbolic build of %s: %s", model.name, error)
    if model.optimizer is not None and not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)


def _limit_batch(flat: list[tf.Tensor], spec: list[Any], batch_size: int) -> tuple[list[tf.Tensor], list[tf.Operation]]:
    """The same tensors, after a check that the batch is no larger than planned; and the check.

    What does not read the batch (counters, seeds) must come after the check too.
    """
    message = f"{_TOO_LARGE} {batch_size} samples that memory was planned for"
    checks = []
    for t, s in zip(flat, [s for s in spec if s is not None], strict=True):
        if s.shape.rank and t.shape[0] is not None and t.shape[0] > batch_size:
            raise BatchSizeError(_batch_message(batch_size, t.shape[0]))
        if s.shape.rank and t.shape[0] is None:
            checks.append(tf.debugging.assert_less_equal(tf.shape(t)[0], batch_size, message=message))
    if not checks:
        return flat, []
    with tf.control_dependencies(checks):
        return [tf.identity(t) for t in flat], checks


def _batch_message(planned: int | str, given: int | str) -> str:
    return (
        f"a batch of {given} samples came, memory was planned for {planned}: give fit a batch_size of at most "
        f"{planned}, or call checkmate_tf.compile again with the larger batch_size"
    )


class _batch_errors:  # noqa: N801 - reads as a context
    """Turns the graph's assertion on the batch into a BatchSizeError."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, tf.errors.InvalidArgumentError) and _TOO_LARGE in str(error):
            planned = str(error).split(_TOO_LARGE, 1)[1].split()[0]
            raise BatchSizeError(_batch_message(planned, "more")) from None


def _guard(function: Callable[..., Any], after: Callable[[], None]) -> Callable[..., Any]:
    @functools.wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        with _batch_errors():
            result = function(*args, **kwargs)
        after()
        return result

    guarded.checkmate = True  # type: ignore[attr-defined]
    return guarded
