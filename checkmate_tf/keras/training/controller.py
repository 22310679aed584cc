"""Stands in for a compiled model's training step. It plans when data arrives, and watches the peak while training."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import keras
import tensorflow as tf

from ...device.distribution import Distribution
from ...errors import CheckmateError, InfeasibleBudgetError, ModelError
from ...fit.options import Given, PlanOptions
from ...fit.pipeline import placed_bytes, plan_again
from ...fit.planned import PlannedStep, expected_peak_bytes
from ...fit.policy import POLICY
from ...report import Report
from ...units import format_bytes
from ..batches.declared import Casts
from ..batches.feeding import Feed, given_as, held_by_caller, is_pipeline
from ..batches.limit import batch_errors, limit_batch
from ..batches.samples import told_samples
from ..batches.sizes import Sizes, sizes_of
from ..batches.spec import specs_of_tensors
from ..frameworks import graphs_are_made, put
from ..jit import resolve_jit
from .by_python import StepsByPython
from .plans import Plans

__all__ = ["Controller", "controller_of"]

log = logging.getLogger("checkmate_tf")


class Controller(Plans):
    """Stands in for a model's train_step: plans once for each structure of data, then emits the plan.

    Attributes
    ----------
    made : tuple or None
        How graphs were made when the train function was. A trace keeps its order of terms and its operations, so the
        function is made again when this changes.
    told : bool
        Whether the user says how many batches are kept ready, or gave a pipeline. If not, `fit` on arrays is expected,
        which then makes no batch ahead.
    by_python : StepsByPython
        Runs the steps that Python calls.
    make : callable (force)
        The model's own `make_train_function`.
    """

    make: Callable[..., Any]

    def __init__(
        self,
        model: keras.Model,
        options: PlanOptions,
        batch_size: int,
        plain_step: Callable[[Any], Any],
        distribution: Distribution | None = None,
        told: bool = True,
        casts: Casts | None = None,
    ):
        self.told = told or options.prefetch is not None or distribution is not None
        options = options if self.told else replace(options, prefetch=POLICY.ahead)
        super().__init__(model, options, batch_size, plain_step, distribution, casts)
        self.replicas = 1 if distribution is None else distribution.replicas
        before = controller_of(model)
        if before is not None and before.compiled == self.compiled:
            self.aside = before.aside
        self.made: tuple[bool, bool] | None = None
        self.by_python = StepsByPython(self)
        self.feed: Feed = Feed(None if before is None else before.feed)
        self.told_between = False  # the log says once that what runs between steps takes more than the budget
        self.unfit = 0  # least peak, bytes, for which no plan could be made
        self.begins = True  # whether `fit` may have put data on the device since the last step
        self.attached = False
        self.before: dict[str, Any] = {}

    def _forget_compiled_before(self) -> bool:
        if not super()._forget_compiled_before():
            return False
        if self.attached:
            jit_compile = resolve_jit(self.model, self.options.operators, self.distribution)
            self.options = replace(self.options, jit_compile=jit_compile)
        return True

    def _forget_plans(self) -> None:
        self.by_python.forget()  # before garbage is collected
        self.unfit = 0
        super()._forget_plans()

    def arrives(self, data: Any) -> bool:
        """Called with each batch that comes from Python, and when a step is traced. Returns whether a plan was made."""
        return False

    def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a train function that Keras made."""
        return function(*args, **kwargs)

    def sizes(self, data: Any) -> Sizes:
        """What tells steps on such batches apart, beside their number of samples."""
        return sizes_of(data)

    def step(self, data: Any) -> Any:
        """One training step, as the model's own `train_step`."""
        data = self.packed(data)
        if self.distribution is not None:
            if not tf.inside_function():
                raise ModelError(
                    f"{self.model.name!r}: call strategy.run(model.train_step, ...) inside of a tf.function"
                )
            return self.distribution.together(data, self._emit)
        if tf.inside_function():
            self.arrives(data)
            return self._emit([data])
        if tf.config.functions_run_eagerly():
            raise ModelError(
                f"{self.model.name!r} is planned as a graph, and tf.config.run_functions_eagerly(True) runs none: set "
                "it to False, or call checkmate_tf.restore(model)"
            )
        self.traced = {}  # plain steps that Python calls are traced by nobody
        self._forget_compiled_before()
        if not self.told:
            self._are_given(given_as(data))
        self.arrives(data)
        return self.by_python(data)

    def _emit(self, given: list[Any]) -> Any:
        """The planned step on the data of each replica."""
        given_specs = specs_of_tensors(given[0])
        spec = self.opened(given_specs)
        planned, specs = self.plan(spec), tf.nest.flatten(spec)
        if told_samples(given_specs) is not None:
            self.warn_of_last_bits(planned)
        if self.attached:
            self.traced[self.key[1:]] = self.key[0]
        self._settle()
        flat: list[tf.Tensor] = []
        checks: list[tf.Operation] = []
        for k, data in enumerate(given):
            tensors = [t for t in tf.nest.flatten(data) if t is not None]
            place = None if self.distribution is None else self.distribution.devices[k]
            limited, more = limit_batch(tensors, specs, self.batches[self.key], self.replicas, place)
            flat, checks = flat + tf.nest.flatten(limited, expand_composites=True), checks + more
        return planned.emit(flat, checks)

    def attach(self) -> None:
        """Put the planned step in the model's place."""
        model = self.model
        self.before = {k: model.__dict__[k] for k in ("train_step", "make_train_function") if k in model.__dict__}
        self.jit_compile, self.attached = model.jit_compile, True
        put(model, "_checkmate_controller", self)  # first, so that `restore` undoes an interrupted call
        self.make = model.make_train_function

        @tf.autograph.experimental.do_not_convert  # tf_keras converts what its step calls
        def train_step(data: Any) -> Any:
            result = self.step(data)
            put(model, "checkmate", self.report)
            return result

        def make_train_function(force: bool = False) -> Any:
            if force:  # the user asks for what Python says now
                self._forget_plans()
            else:
                self.make_room()
            return self._make(force)

        put(model, "train_step", train_step)
        put(model, "make_train_function", make_train_function)
        put(model, "checkmate", self.report)
        model.jit_compile = self.options.jit_compile
        _forget_train_function(model, self._make)

    def _make(self, force: bool = False) -> Any:
        """Make the train function, if it is to be made, that runs what is planned."""
        model = self.model
        if self.made != graphs_are_made():
            put(model, "train_function", None)
            self.made = graphs_are_made()
        self._make_plainly(force)
        if not getattr(model.train_function, "checkmate", False):
            put(model, "train_function", self._guarded(model.train_function))
        return model.train_function  # Keras 3 reads the attribute, tf_keras the result

    def _make_plainly(self, force: bool) -> None:
        """Make the train function without XLA: the planned step compiles itself, after the checks of its batch."""
        model = self.model
        if not model.jit_compile:  # to set it, even so, would make Keras 2 forget its functions
            self.make(force)
            return
        model.jit_compile = False
        try:
            self.make(force)
        finally:
            model.jit_compile = True

    def detach(self) -> None:
        """Take it out again."""
        for name in ("train_step", "make_train_function", "checkmate", "_checkmate_controller"):
            self.model.__dict__.pop(name, None)
        for name, value in self.before.items():
            put(self.model, name, value)
        if not self.compiled_since and self.is_current():  # else the user has set it
            self.model.jit_compile = self.jit_compile
        _forget_train_function(self.model, self.model.make_train_function)
        _feed_to_the_end(self.model, self.feed)

    def remake(self) -> None:
        """Make the train function anew, for a plan that was made: what it trains stays."""
        self._make(force=True)

    def _guarded(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A train function that feeds the planned step, watches it, and raises errors of ours."""

        @functools.wraps(function)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            if args:
                args = (self.fed(args[0]), *args[1:])
                if not self.told:
                    data, given = held_by_caller(args[0])
                    args = (data, *args[1:])
                    if self._more_batches(data) or self._are_given(given):
                        return self.model.train_function(*args, **kwargs)
                begins, self.begins = self.begins and is_pipeline(args[0]), False
                if begins and self._lies_in_the_way():
                    return self.model.train_function(*args, **kwargs)
            self._begin_step()
            with batch_errors():
                result = self.run(function, *args, **kwargs)
            self.watch()
            return result

        guarded.checkmate = True  # type: ignore[attr-defined]
        return guarded

    def fed(self, data: Any) -> Any:
        """What `fit` trains on next: the same, or what makes no batch ahead. Notes which plan serves it."""
        with contextlib.suppress(AttributeError, CheckmateError):  # batches one by one, or of replicas
            if self.note(data.element_spec):  # only an iterator tells that in advance
                put(self.model, "checkmate", self.report)
        ahead = self.options.prefetch
        if not is_pipeline(data) or ahead is None or ahead > 1 or not self._shares_memory():  # told of several
            return self.feed.known(data) or data
        return self.feed.held(data) or data

    def _more_batches(self, data: Any) -> bool:
        """Plan again if a pipeline came that may keep more batches ready than were expected. Returns whether it was."""
        if not is_pipeline(data) or self.feed.holds(data) or not self._shares_memory():
            return False
        trained = self.model.train_function
        self.told, self.options = True, replace(self.options, prefetch=None)
        self.make_room(POLICY.held_batches(None) - POLICY.held_batches(POLICY.ahead))
        if self.model.train_function is trained:
            return False
        self.remake()
        return True

    def _are_given(self, given: Given) -> bool:
        """Plan again if batches are held by the caller now, or no longer, and the plan does not fit then.

        Returns whether it was.
        """
        if given == self.options.given or not self._shares_memory():
            return False
        self.options = replace(self.options, given=given)
        planned = self.plans.get(self.key)
        if planned is None or planned.given == given or not self.is_current():
            return False
        how = "held by the caller" if given else "made in the step"
        return self._place_again(planned, f"batches are {how}", "where batches are given so")

    def _shares_memory(self) -> bool:
        """Whether batches lie in memory that plans are measured in."""
        return self.distribution is None and self.options.verify and (d := self._device()).is_cpu and d.measurable

    def make_room(self, batches: int = 0) -> None:
        """Plan again before training, if what has come to the device since (the data of `fit`) will fill the budget.

        Parameters
        ----------
        batches : int
            How many more are kept ready than the plan was made for.

        Raises
        ------
        InfeasibleBudgetError
            If no plan leaves room for it, and the allocator has a hard limit: training would run out of memory.
        """
        device = self._device()
        if tf.inside_function() or not (self.options.verify and device.measurable):
            return
        if self.key not in self.plans or not self.is_current():
            return  # it will be planned with what is on the device
        key, planned = self.key, self.plans[self.key]
        report, self.begins = planned.report, True
        device.forget_peak(max(report.budget_bytes, report.training_peak_bytes or 0))  # something else ran meanwhile
        if report.replanned >= POLICY.plans_again:  # no reason to refuse what may train as it did
            return
        more = batches * report.input_bytes
        if report.measured_peak_bytes is None:
            return
        peak = expected_peak_bytes(planned, device) + more
        if not POLICY.full * report.budget_bytes < peak < (self.unfit or peak + 1):
            return
        log.info("%s: %s are expected while training", self.model.name, format_bytes(peak))
        try:
            self._plan_again(key, peak, expected=True, batch_bytes=more)
        except InfeasibleBudgetError as error:
            if peak > report.budget_bytes and POLICY.beyond_limit(peak, device.limit_bytes, device.is_cpu):
                raise InfeasibleBudgetError(
                    f"with its data the training of {self.model.name!r} is expected to need {format_bytes(peak)} of "
                    f"the {format_bytes(device.limit_bytes)} that its allocator may take, and there is no smaller plan "
                    f"({error}); give fit a tf.data.Dataset that reads batch by batch, and ends in prefetch(1) with "
                    "compile(..., prefetch=1), or lower the batch size",
                    report.budget_bytes,
                    peak,
                    proven=False,
                ) from None
            log.warning("%s: no plan leaves room for what shares the device: %s", self.model.name, error)
            self.unfit = peak
            return
        put(self.model, "train_function", None)

    def _lies_in_the_way(self) -> bool:
        """Plan again if the data of `fit` lie where values of the plan would, so that it does not fit.

        Returns whether it was.
        """
        device, planned = self._device(), self.plans.get(self.key)
        if planned is None or not self.is_current() or not self.options.verify or not device.measurable:
            return False
        report = planned.report
        moved = abs(device.foreign_bytes(planned.program.variable_bytes) - report.foreign_bytes)
        if self.distribution is not None or moved <= POLICY.moved * report.budget_bytes:
            return False
        return self._place_again(planned, "other data lie on the device", "beside what lies on the device")

    def _place_again(self, planned: PlannedStep, why: str, where: str) -> bool:
        """Plan again if the plan does not fit as the allocator's model places it now. Returns whether it was."""
        peak, report = placed_bytes(planned, self.options), planned.report
        if peak is None or POLICY.still_fits(peak, report.sure_bytes or 0, report.budget_bytes):
            return False
        log.info("%s: %s: %s are expected", self.model.name, why, format_bytes(peak))
        try:
            self._plan_again(self.key, peak, expected=True, placed=True)
        except InfeasibleBudgetError as error:
            log.warning("%s: no plan fits %s: %s", self.model.name, where, error)
            return False
        self.remake()
        return True

    def watch(self) -> None:
        """Note the device's peak while training. If it is over the budget, plan again with the difference taken off."""
        device = self._device()
        if not (self.options.verify and device.measurable and self.key in self.plans):
            return
        key, planned = self.key, self.plans[self.key]
        report, peak = planned.report, self.peaks.of_step()
        if peak <= (report.training_peak_bytes or 0):
            return
        if peak > report.budget_bytes >= (report.training_peak_bytes or 0):
            log.warning(
                "%s: %s were allocated while training, over the budget of %s (the plan was %s; input "
                "pipeline and what callbacks hold share the device)",
                self.model.name,
                format_bytes(peak),
                format_bytes(report.budget_bytes),
                _measured(report),
            )
            self.peaks.keep(peak)
            try:
                self._outgrown(key, peak)
            except InfeasibleBudgetError as error:
                log.warning("%s: no other plan: %s", self.model.name, error)
            else:
                self.remake()
                return
        self.plans[key] = replace(planned, report=replace(report, training_peak_bytes=peak))
        put(self.model, "checkmate", self.report)

    def _begin_step(self) -> None:
        """Forget the peak of what ran since the last step: evaluation, say, which is over when a step begins.

        No other plan would lower it, so it is warned of if it is over the budget, once.
        """
        device = self._device()
        if not (self.options.verify and device.measurable):
            return
        peak = self.peaks.since_step()
        if self.key not in self.plans or self.told_between:
            return
        report = self.plans[self.key].report
        stepped = report.training_peak_bytes is not None  # what came before the first step is not between two
        if not stepped or peak <= report.budget_bytes:
            return
        self.told_between = True
        log.warning(
            "%s: %s were allocated between two steps, over the budget of %s: by evaluation, callbacks or data. No plan "
            "of the step changes that; a smaller validation_batch_size= may",
            self.model.name,
            format_bytes(peak),
            format_bytes(report.budget_bytes),
        )

    def begin_peak(self) -> None:
        """Count the device's peak from now on. What ran since the last step is looked at before."""
        self._begin_step()
        self.peaks.begin()

    def peak_bytes(self) -> int | None:
        """The device's peak since `begin_peak`; None where the allocator keeps no statistics."""
        return self.peaks.most()

    def _outgrown(self, key: Any, peak: int) -> None:
        """Replace the plan at `key`, under which the device took more than the budget. Errors as `_plan_again`."""
        self._plan_again(key, peak)

    def _plan_again(
        self, key: Any, peak: int, expected: bool = False, batch_bytes: int = 0, placed: bool = False
    ) -> None:
        """Replace the plan at `key` by one that leaves room for all else that training allocates.

        Raises
        ------
        InfeasibleBudgetError
            If there is none, or enough were tried.
        """
        planned = self.plans[key]
        tried, budget = planned.report.replanned, planned.report.budget_bytes
        if tried >= POLICY.plans_again:
            raise InfeasibleBudgetError(
                f"the plan was made anew {tried} times for what else is on the device, and never kept the budget of "
                f"{format_bytes(budget)} while training; raise it to {format_bytes(peak)} or lower the batch size",
                budget,
                peak,
                proven=False,
            )
        again = self.plans[key] = plan_again(
            planned, peak, self.options, self.distribution, expected, batch_bytes, placed
        )
        self.earlier.append(again.known)
        put(self.model, "checkmate", self.report)
        log.warning(
            "%s: planned again: %s predicted, %s",
            self.model.name,
            format_bytes(again.schedule.peak_bytes),
            _measured(again.report),
        )


def _measured(report: Report) -> str:
    """What the log says of a plan's measured peak."""
    peak = report.measured_peak_bytes
    return "not measured" if peak is None else f"measured at {format_bytes(peak)}"


def controller_of(model: keras.Model) -> Controller | None:
    """What stands in for a model's training step; None if the model was not compiled for a budget."""
    return getattr(model, "_checkmate_controller", None)


def _forget_train_function(model: keras.Model, make: Callable[..., Any]) -> None:
    """Let Keras make its train function anew: at once if it has one, which `fit` may be about to call."""
    made = model.train_function is not None
    put(model, "train_function", None)
    if made:
        make(force=True)


def _feed_to_the_end(model: keras.Model, feed: Feed) -> None:
    """Let an epoch that has begun end with the batches that are left, if it is fed by what took an iterator's place."""
    plain = model.train_function
    if plain is None or not feed.is_used():
        return

    @functools.wraps(plain)
    def fed(iterator: Any) -> Any:
        known = feed.known(iterator)
        if known is None and model.train_function is fed:
            put(model, "train_function", plain)
        return plain(known or iterator)

    put(model, "train_function", fed)
