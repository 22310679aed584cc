"""Stands in for a compiled model's training step: it plans when data arrives, and emits the plan."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import keras
import tensorflow as tf

from ...device.distribution import Distribution
from ...errors import CheckmateError, ModelError
from ...fit.options import PlanOptions
from ...fit.policy import POLICY
from ..batches.declared import Casts
from ..batches.feeding import Feed, given_as, held_by_caller, is_pipeline
from ..batches.limit import batch_errors, limit_batch
from ..batches.samples import told_samples
from ..batches.sizes import Sizes, sizes_of
from ..batches.spec import specs_of_tensors
from ..frameworks import graphs_are_made, put
from ..jit import resolve_jit
from .by_python import StepsByPython
from .watched import Watched

__all__ = ["Controller", "controller_of"]


class Controller(Watched):
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
