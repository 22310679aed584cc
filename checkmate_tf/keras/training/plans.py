"""The plans of a model that trains within a budget: one for each structure of data, made when it is asked for."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import keras
import tensorflow as tf

from ...device.distribution import Distribution
from ...device.layout.region import reserve
from ...device.measure import Device, find_device
from ...errors import ModelError
from ...fit.options import PlanOptions
from ...fit.pipeline import plan_step
from ...fit.planned import Known, PlannedStep
from ...report import Report
from ...units import Budget
from ..batches.declared import Casts
from ..batches.ragged import NOT_KNOWN, have_ragged, shapes_of
from ..batches.spec import open_batch, packed, with_tuples
from ..built.building import build_training
from ..built.unbuilt import Aside, left_built
from ..frameworks import compiled_with, graphs_are_made, in_thread, is_functional, is_own_step
from ..garbage import old_left_alone
from .peaks import Peaks

__all__ = ["Plans"]

log = logging.getLogger("checkmate_tf")


@dataclass(frozen=True, eq=False)
class _Same:
    """Objects compared by identity, and held, so that no other object comes to have the id of one."""

    objects: tuple[Any, ...]

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, _Same)
            and len(self.objects) == len(other.objects)
            and all(a is b for a, b in zip(self.objects, other.objects, strict=True))
        )

    def __hash__(self) -> int:
        return hash(tuple(map(id, self.objects)))


class Plans:
    """Plans once for each structure of data, and again when the model is compiled again.

    Attributes
    ----------
    plans : dict
        Plans of the model as it is compiled now. The key says what is trained, how the data is structured, and how
        graphs are made.
    earlier : list of Known
        All plans so far, without their steps. A step would keep the slots of an optimizer that was replaced in memory.
    compiled_since : bool
        Whether the model was compiled again since these are its plans.
    key : key of `plans`, or None
        The plan that trains, as far as it is known: that of the last trace, or of the iterator that came last.
    batch_size : int
        The largest batch of a replica that the next plan is for.
    batches : dict
        The largest batch that each of `plans` is for.
    shapes : dict
        By the specs of a batch, the shapes that are planned for, where they say more than the specs: of the parts of
        ragged and sparse inputs.
    traced : dict
        By the rest of a key of plans, what was trained when Keras' function was traced with such data. As in the plain
        model, that is trained until the function is made again.
    aside : Aside
        What was built for plans that have not trained yet.
    built_for : dict
        The data that each of `plans` has losses, metrics and slots built for.
    peaks : Peaks
        Of the device that trains.
    casts : Casts or None
        What batches are cast to, if types were guessed that the plan is for, until the model is compiled again.
    """

    def __init__(
        self,
        model: keras.Model,
        options: PlanOptions,
        batch_size: int,
        plain_step: Callable[[Any], Any],
        distribution: Distribution | None = None,
        casts: Casts | None = None,
    ):
        self.model, self.options, self.plain_step = model, options, plain_step
        self.distribution, self.casts = distribution, casts
        self.batch_size = batch_size if distribution is None else distribution.share(batch_size)
        self.compiled = _Same(compiled_with(model))
        self.compiled_since = False
        self.compiled_at = 0  # so many of `earlier` are of before the model was compiled again
        self.plans: dict[Any, PlannedStep] = {}
        self.batches: dict[Any, int] = {}
        self.shapes: dict[tuple[Any, ...], list[tuple[int | None, ...]]] = {}
        self.earlier: list[Known] = []
        self.key: Any = None
        self.traced: dict[Any, _Same] = {}
        self.aside = Aside(model)
        self.built_for: dict[Any, Any] = {}
        self.peaks = Peaks(self._device)
        self.told_of_last_bits = False  # the log says once that they may differ

    def plan(self, spec: Any, traced: Any = None, told: bool = False) -> PlannedStep:
        """The plan for a structure of data, made if there is none yet.

        Parameters
        ----------
        spec : nest of tf.TensorSpec
            Of the data, with the batch dimension open.
        traced : nest of tf.TensorSpec, optional
            The same with more dimensions open, as the plain step would be traced.
        told : bool
            Whether the log says already that a plan is made.
        """
        self._forget_compiled_before()
        spec, traced = self.packed(spec), self.packed(traced)
        key = self._key(spec)
        if self.aside.is_stale(self._built_key(spec)):
            self._drop_built_for(self._built_key(spec))
        if key not in self.plans:
            if self.earlier:
                why = "for data of another structure, a changed model, or Grappler or determinism set on or off"
                kept = self.options.schedule is None
                more = "" if kept else f", without {self.options.schedule}, which was for the first plan"
                level = logging.INFO if kept else logging.WARNING
                if more or not told:
                    log.log(level, "%s: planning again, %s%s: %s", self.model.name, why, more, spec)
                self.peaks.keep()
            given = (spec, traced)
            planned = in_thread(self._plan, *given) if tf.inside_function() else self._plan(*given)  # Keras is tracing
            key = self._key(spec)  # building the optimizer may have changed it
            self.plans[key], self.batches[key] = planned, self.batch_size
            self.built_for[key] = self._built_key(spec)
            self.earlier.append(planned.known)
        self.serves(key)
        return self.plans[key]

    def warn_of_last_bits(self, planned: PlannedStep) -> None:
        """Warn once, of batches of known size: TensorFlow adds in another order then in gradients of gradients."""
        open_size = not planned.same_size and not planned.jit_compile  # XLA has another order in any case
        if self.told_of_last_bits or not (open_size and planned.program.step.has_second_order):
            return
        self.told_of_last_bits = True
        log.warning(
            "%s: its step takes gradients of gradients, and its plan is for batches of any size, while this one's size "
            "is known: last bits may differ from those of the plain model. They are equal if checkmate_tf.compile is "
            "given no batch size, and fit gets batches of one size",
            self.model.name,
        )

    def opened(self, given: Any) -> Any:
        """The specs that plans are made for, of the specs of a batch: the batch dimension is open.

        Raises
        ------
        CheckmateError
            As `open_batch`.
        """
        return open_batch(given)

    def serves(self, key: Any) -> None:
        """The plan that trains next."""
        self.key = key

    def note(self, spec: Any) -> bool:
        """Note that the plan for such batches trains, if there is one. Returns whether the plan changes by that."""
        key = self._key(self.opened(spec))
        changed = key in self.plans and key != self.key
        if changed:
            self.serves(key)
        return changed

    def packed(self, data: Any) -> Any:
        """A batch in the structure that plans are made for: one for all that the step takes for the same."""
        if not is_own_step(self.plain_step):
            return data
        data = packed(with_tuples(data) if is_functional(self.model) else data)
        known = self.casts is not None and not self.compiled_since and self.is_current()
        return self.casts.apply(data) if self.casts is not None and known else data

    def is_current(self) -> bool:
        """Whether the model is compiled as it was when these plans were made."""
        return self.compiled == _Same(compiled_with(self.model))

    def trained(self) -> _Same:
        """What the model would train if it was traced now, and which layers are frozen.

        A batch normalization without weights computes otherwise when it is.
        """
        flags = (bool(layer.trainable) for layer in self.model._flatten_layers())
        return _Same((*self.model.trainable_variables, *flags))

    @property
    def report(self) -> Report | None:
        """On the plan that trains, or on the last one if the model was compiled again; None before the first plan."""
        if self.key in self.plans:
            return self.plans[self.key].report
        return self.earlier[-1].report if self.earlier else None

    def _plan(self, spec: Any, traced: Any) -> PlannedStep:
        reserve(self._device(), self.options.budget.size_bytes or 0)  # before slots are made, and kernels measured
        shapes = self.shapes.get(tuple(tf.nest.flatten(spec)))
        if shapes is None and have_ragged(spec):
            raise ModelError(NOT_KNOWN)
        if shapes is None and traced is not None:
            shapes = shapes_of(spec, spec)
        traced = spec if traced is None else traced
        with self._building(spec):
            build_training(self.model, traced, self.plain_step)
            options = replace(self.options, budget=self._budget_for(spec), shapes=shapes)
            with old_left_alone():
                return plan_step(
                    self.plain_step, traced, self.batch_size, options, self.model.name, self.earlier, self.distribution
                )

    def _building(self, spec: Any) -> AbstractContextManager[None]:
        """Where losses, metrics and slots are built for a plan. Replicas: Keras builds theirs before it traces."""
        return left_built(self.model) if self.distribution else self.aside.building(lambda: self._built_key(spec))

    def _built_key(self, spec: Any) -> Any:
        """What losses, metrics and slots are built for: what is trained, inputs and targets."""
        spec = self.packed(spec)
        if is_own_step(self.plain_step):
            spec = keras.utils.unpack_x_y_sample_weight(spec)[:2]
        structure = str(tf.nest.map_structure(lambda _: 0, spec))
        return self.trained(), tuple(tf.nest.flatten(spec)), structure

    def _drop_built_for(self, built_for: Any) -> None:
        """Drop the plans that this was built for: another optimizer, or one of other slots, is in its place."""
        self.aside.forget(built_for)
        for key in [key for key in self.plans if self.built_for.get(key) == built_for]:
            del self.plans[key], self.batches[key]

    def _settle(self) -> None:
        """Put in place what was built for the plan that trains now. Plans that others were built for go."""
        mine = self.built_for.get(self.key)
        for other in {other for other in self.built_for.values() if other != mine and self.aside.holds(other)}:
            self._drop_built_for(other)
        self.aside.settle(mine)

    def _budget_for(self, spec: Any) -> Budget:
        """The budget of a plan. A share is one of the first plan's plain peak since the model was compiled."""
        opened = not self.options.same_size  # then the plain step does not take what one of a known size does
        earlier = self.earlier[self.compiled_at :]
        same = [known for known in earlier if known.report.batch_size == self.batch_size]
        alike = [known for known in same if not (known.same_size and opened)]
        return Budget(size_bytes=alike[0].report.budget_bytes) if alike else self.options.budget

    def _key(self, spec: Any) -> Any:
        """What tells plans apart: the data's structure, what is frozen, and how graphs are made."""
        spec = self.packed(spec)
        structure = str(tf.nest.map_structure(lambda _: 0, spec))
        rest = (tuple(tf.nest.flatten(spec)), structure, graphs_are_made())
        return (self.traced.get(rest) or self.trained(), *rest)

    def _forget_compiled_before(self) -> bool:
        """Drop all plans if the model was compiled again: their steps hold variables that nothing else needs.

        Returns whether it was.
        """
        if self.is_current():
            return False
        self.compiled, self.compiled_since = _Same(compiled_with(self.model)), True
        self._forget_plans()
        return True

    def _forget_plans(self) -> None:
        """Drop all plans: what the model reads from Python may be another now."""
        self.key, self.compiled_at, self.traced = None, len(self.earlier), {}
        self.aside = Aside(self.model)
        if self.plans:
            self.plans, self.batches, self.built_for = {}, {}, {}
            gc.collect()  # functions lie in cycles, and hold what they capture

    def _device(self) -> Device:
        return find_device() if self.distribution is None else self.distribution.device
