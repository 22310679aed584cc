"""Plans when a batch comes that no plan serves, where `compile` was given no batch size.

Where batches may differ in other sizes than that of the batch, too, as sequences in buckets of lengths do, each
combination of sizes has a plan. The same holds where inputs have several sizes along their first axis (`apart.py`),
unless a plan with one open batch for all of them is there already, and large enough. Where more combinations come than
plans are kept, plans serve several of them (`serving.py`).

Who takes batches out of a pipeline, to look at them, is in `first_batch.py`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import tensorflow as tf

from ...device.layout.region import reserve
from ...errors import BatchSizeError, CheckmateError, InfeasibleBudgetError, TraceError
from ...fit.options import PlanOptions, Progress
from ...fit.subjects.tracing import of_size
from ...trace.sizes.seen import MARGIN
from ...units import Budget, format_bytes
from ..batches.apart import apart_in, told_sizes, with_apart
from ..batches.ragged import are_more, enlarged, have_ragged, shapes_of
from ..batches.samples import batch_axes, most_samples, shapes_said, spec_of, told_samples
from ..batches.sharing import cheapest_to_join, joined, sized
from ..batches.sizes import (
    Functions,
    Sizes,
    as_given,
    is_wider,
    open_where_they_differ,
    opened_batch,
    sizes_of,
    without_optional,
)
from ..batches.spec import batch_bytes, open_batch, sample_of
from ..frameworks import bytes_of_variables, put
from ..progress import progress_bars
from .serving import Batch, Serving, in_other_sizes

__all__ = ["Arriving", "out_of_the_allocator"]

log = logging.getLogger("checkmate_tf")

_GIVE = "give batch_size= (the largest batch) to checkmate_tf"
_FROM_PYTHON = "train by fit or train_on_batch, or call the step with it from Python once, so that it can be looked at"


class Arriving(Serving):
    """A controller that has no plan until a batch comes, on one device. Until then its `batch_size` is 0.

    What batches look like may be told before one comes, by `foresee`.

    `options.max_plans` plans are kept for batches that differ in their sizes alone.

    Attributes
    ----------
    progress : bool or callable
        As `compile` takes it.
    functions : Functions
        Train functions for the sizes that came, without what is done around them.
    found_bytes : int
        What lay on the device when `compile` was called, the model's own variables left out.
    """

    def __init__(
        self,
        model: Any,
        options: PlanOptions,
        plain_step: Callable[[Any], Any],
        progress: bool | Progress,
        told: bool = False,
    ):
        super().__init__(model, options, 0, plain_step, told=told)
        self.progress = progress
        self.functions = Functions()
        device = self._device()
        reserve(device, options.budget.size_bytes or 0)  # before the data of `fit` comes
        self.found_bytes = device.foreign_bytes(bytes_of_variables(model))
        self._warned = False
        self._latest: Any = None  # the batch of the step that runs, if data decides sizes
        self._growth_that_failed = math.inf  # of a plan for sizes that did not come together, over what came
        self._least_budget = 0  # of the plan that is being made
        self._joining = False  # whether that is for sizes that did not come together
        self._largest_came = 0  # bytes of a batch that a plan was made for

    def foresee(self, opened: Any, size: int, spec: Any, data: Any) -> None:
        """Plan for batches before one comes.

        Parameters
        ----------
        opened : nest of tf.TensorSpec
            Of them, as `data_spec` gives it.
        size : int
            How many samples the largest has.
        spec : nest of tf.TensorSpec, or None
            As for `arrives`.
        data : nest of arrays, or None
            A batch, if there is one.

        Raises
        ------
        CheckmateError
            As `plan` raises.
        """
        self.batch_axes = batch_axes(opened)
        self._plan_for(size, of_size(opened, size), spec, data)

    def arrives(self, data: Any, spec: Any = None) -> bool:
        """Plan for a batch, if no plan serves it.

        That is the first one of its sizes, a larger one than before, one with more values, or one of another size where
        the plan is for one alone.

        Parameters
        ----------
        data : nest of arrays or tensors
            As a step sees it. Tensors of a graph tell their shapes alone.
        spec : nest of tf.TensorSpec, optional
            Of the batches to come. By default they are as this one, and where others of other sizes came before, sizes
            that differ are open, as TensorFlow leaves them open then.

        Returns
        -------
        bool
            Whether a plan was made.

        Raises
        ------
        BatchSizeError
            If there is no plan yet, and the batch does not tell its size.
        CheckmateError
            As `plan` raises. If it was the first batch, the model is restored, and trains plainly from now on.
        """
        self._forget_compiled_before()
        data, spec = self.packed(tf.nest.map_structure(without_optional, data)), self.packed(spec)
        given = tf.nest.map_structure(spec_of, data)
        came = self.batch_of(given)
        size = came.size
        if not _is_symbolic(data):
            self.shared = came.key if came.shared else None
        if came.shared:
            self._warn_of_sizes()
        if self._may_differ(came, spec):
            self._plan_for(max(size or 0, self.batches[came.key]), given, spec, data)
            self._remember(data)
            return True
        if self._is_served(came, spec) and not self._has_more(data):
            if came.key in self.plans:
                self.serves(came.key)
                self._remember(data)
            return False
        if not size:
            if self.batch_size:
                return False
            what = "is empty" if size == 0 else "comes in a graph that leaves its size open"
            advice = _FROM_PYTHON if have_ragged(data) else _GIVE
            raise BatchSizeError(
                f"the first batch of {self.model.name!r} {what}, so memory cannot be planned for it: {advice}"
            )
        self._plan_for(size, given, spec, data)
        self._remember(data)
        return True

    def serves(self, key: Any) -> None:
        """The plan that trains next, which is the last one to be dropped. Its peak is not that of the one before."""
        if key == self.key:
            return
        device = self._device()
        if self.key in self.plans and device.measurable:
            self.peaks.forget()
        super().serves(key)
        self.plans[key] = self.plans.pop(key)
        if self.attached:
            put(self.model, "checkmate", self.report)

    def _has_more(self, data: Any) -> bool:
        """Whether ragged and sparse inputs have more values than are planned for."""
        if not have_ragged(data):
            return False
        planned = self.shapes.get(self._specs_of(data))
        return planned is not None and are_more(shapes_of(data), planned)

    def _specs_of(self, data: Any) -> tuple[Any, ...]:
        """The key of `shapes` for such a batch."""
        return tuple(tf.nest.flatten(self.opened(tf.nest.map_structure(spec_of, data))))

    def _remember(self, data: Any) -> None:
        """Keep the batch of the step that runs, if data decides sizes."""
        if not _is_symbolic(data):
            self._latest = tf.nest.map_structure(out_of_the_allocator, data) if self._depends_on_data() else None

    def _depends_on_data(self) -> bool:
        """Whether the plan that trains is for sizes that data decides, as one batch had them."""
        return self.key in self.plans and self.plans[self.key].program.static.seen

    def _outgrown(self, key: Any, peak: int) -> None:
        """Plan anew for the batch that took more, if that may be because of its data."""
        if self._latest is None or not self._depends_on_data():
            super()._outgrown(key, peak)
            return
        given, before = tf.nest.map_structure(spec_of, self._latest), self.plans[key].schedule
        self._plan_for(self.batches[key], given, None, self._latest)
        if self.plans[self.key].schedule is before:  # its data is not why
            super()._outgrown(self.key, peak)

    def _may_differ(self, came: Batch, spec: Any) -> bool:
        """Whether batches come in other sizes, too, or may, and the plan is for one size alone."""
        key, opened = came.key, came.opened
        if key not in self.plans or not self.plans[key].same_size:
            return False
        return told_samples(came.given, opened) != self.batches[key] or (
            spec is not None and told_samples(spec, opened) is None
        )

    def _is_served(self, came: Batch, spec: Any) -> bool:
        """Whether there is a plan for such a batch, or will be when it is traced.

        Where all batches have one size, or first axes are not the batch, a trace would not know that: it is planned
        for before.
        """
        size, key, opened = came.size, came.key, came.opened
        if size is None or not 0 < size <= self._planned_for(key) or self._may_differ(came, spec):
            return False
        if key in self.plans or opened is None:
            return True
        return not apart_in(opened) and (spec is None or told_samples(spec) is None)

    def _planned_for(self, key: Any) -> int:
        """The largest batch that there is a plan for, or will be when such a batch is traced.

        0 where the same inputs came in other sizes alone.
        """
        if key in self.plans:
            return self.batches[key]
        return 0 if any(in_other_sizes(key, other) for other in self.plans) else self.batch_size

    def _plan_for(self, size: int, given: Any, spec: Any, data: Any) -> None:
        """Plan for batches of up to so many samples, as `arrives`; `given` are the specs of the batch that came.

        Where as many plans are kept as may be, one gives way, if it can be to one that serves its batches, too.
        """
        came = self.batch_of(given)
        others = [key for key in self.plans if in_other_sizes(came.key, key)]
        gone = others[: max(0, len(others) - self.options.max_plans + 1)]
        if not gone:
            self._plan_instead_of([], size, came, came, spec, data)
            return
        self._warn_of_sizes()
        flat, rooms = tuple(t for t in tf.nest.flatten(came.opened) if t is not None), self.rooms(came.key)
        old = cheapest_to_join(rooms, flat, size)
        larger = None if old is None else joined(rooms[old], flat, size)
        if larger == (flat, size):
            gone = [old]
        elif larger is not None and self._may_join(flat, size):
            growth = batch_bytes(*larger) / max(rooms[old].size_bytes, batch_bytes(flat, size))
            try:
                if growth < self._growth_that_failed:
                    self._plan_instead_of([old], larger[1], self.batch_of(sized(*larger, given)), came, spec, data)
                    return
            except (CheckmateError, tf.errors.OpError) as error:  # there may be no batch of such sizes
                self._growth_that_failed = growth if isinstance(error, InfeasibleBudgetError) else 0.0
                text = "%s: no plan for up to %s: planning for %s alone"
                log.info(text, self.model.name, shapes_said(sized(*larger, given)), shapes_said(given))
        self._plan_instead_of(gone, size, came, came, spec, data)

    def _forget_plans(self) -> None:
        self._growth_that_failed, self._largest_came, self.shared = math.inf, 0, None
        super()._forget_plans()

    def _may_join(self, flat: Sequence[tf.TensorSpec], size: int) -> bool:
        """Whether a plan for more than such a batch, which came, may take its place.

        Its budget is that of the plans before. So where the budget is a share, and this batch is much larger than all
        before, it has a plan of its own: the share is one of its step.
        """
        return self.options.budget.fraction is None or batch_bytes(flat, size) <= (1 + MARGIN) * self._largest_came

    def _plan_instead_of(self, gone: list[Any], size: int, planned: Batch, came: Batch, spec: Any, data: Any) -> None:
        """Plan for batches such as `planned`, the largest of so many samples, where `came` came; plans `gone` go."""
        given, first, device = planned.given, not self.batch_size, self._device()
        arrived = device.foreign_bytes(self.found_bytes + bytes_of_variables(self.model)) if first else 0
        before = self.batch_size, self.options, self.plans, self.batches, self.shapes, self.key
        others = {k: plan for k, plan in self.plans.items() if in_other_sizes(planned.key, k)}
        if planned is came:
            self._tell_why(size, came, spec, bool(others))
        else:
            text = "%s: a batch of %s came: planning for up to %s"
            log.info(text, self.model.name, shapes_said(came.given), shapes_said(given))
        kept = {k: plan for k, plan in others.items() if k not in gone}
        unused = [sizes for key in self.plans if key not in kept for sizes in self._function_sizes(key)]
        try:
            opened = self.opened(given)
            if spec is not None:
                opened = with_apart(open_batch(as_given(spec, given)), opened)
            told = None if spec is None else told_samples(spec, opened)
            if spec is None or not is_wider(spec, opened):
                given_before = [k for k in self.plans if k[2] == planned.key[2] and not have_ragged(k[1])]
                spec = open_where_they_differ(
                    opened,
                    [came.key[1], *(k[1] for k in others), *(self.as_traced(k[1], k) for k in given_before)],
                )
            traced = opened_batch(spec, opened) if is_wider(spec, opened) else None
            same_size = told == size and traced is None and planned.key not in before[2]
            self.batch_size, self.plans, self.batches = size, kept, {k: self.batches[k] for k in kept}
            self.key = self.key if self.key in kept else None
            self._joining = planned is not came
            self._least_budget = max((plan.report.budget_bytes for plan in others.values()), default=0)
            with progress_bars(self.progress) as tell:
                sample = parts = None
                if not _is_symbolic(data) and most_samples(given):
                    parts = sample_of(data, size, opened) if have_ragged(data) else None
                    data = tf.nest.map_structure(enlarged, data)
                    sample = sample_of(data, size, opened)
                    if parts is not None:
                        self.shapes = {**self.shapes, tuple(tf.nest.flatten(opened)): shapes_of(data, opened)}
                self.options = replace(
                    self.options, progress=tell, sample=sample, enlarged=have_ragged(data), came=parts,
                    same_size=same_size,
                )  # fmt: skip
                self.plan(opened, traced, told=True)
                self.options = replace(self.options, same_size=False)  # what is traced later tells no size
        except BaseException as error:
            self.batch_size, self.options, self.plans, self.batches, self.shapes, self.key = before
            raised = _as_disagreement(error, given, size)
            if first and self.attached and isinstance(error, Exception):
                raised.add_note(self._said(error, arrived, can_be_told=not have_ragged(data)))
                self.detach()
            if raised is not error:
                raise raised from error
            raise
        finally:
            self._least_budget, self._joining = 0, False
        if apart_in(opened):
            self.batch_axes = batch_axes(opened)
        if not have_ragged(given):
            self._largest_came = max(self._largest_came, batch_bytes(came.opened, came.size or size))
        self.shared = self.key if planned is not came else None
        for sizes in unused:
            self.functions.forget(sizes)
        if self.attached:
            put(self.model, "checkmate", self.report)

    def _function_sizes(self, key: Any) -> list[Sizes]:
        """What tells the train functions of a plan from others: of its own sizes, and of all others that it serves."""
        return [(*sizes_of(key[1]), apart_in(key[1])), self.sizes_under(key)]

    def _tell_why(self, size: int, came: Batch, spec: Any, others: bool) -> None:
        """Log why a plan is made; `others`: whether the same inputs came in other sizes."""
        name, key, given = self.model.name, came.key, came.given
        if not self.batch_size:
            log.info("%s: the first batch has %d samples: planning for that", name, size)
            if came.opened is not None and apart_in(came.opened):
                text = "%s: inputs have %s along their first axis: %d is taken for the batch"
                log.info(text, name, told_sizes(given), size)
        elif others and key not in self.plans:
            log.info("%s: a batch of other sizes came: planning for %s", name, shapes_said(given))
        elif self._may_differ(came, spec):
            text = "%s: batches may come in several sizes now, and the plan is for %d samples alone: planning again"
            log.warning(text, name, self.batches[key])
        elif key not in self.plans and size <= self.batch_size:
            log.info("%s: planning again, for %d samples: the model or its data changed", name, size)
        elif size <= self._planned_for(key):
            text = "%s: a batch with more values came than memory was planned for: planning again, for %.1f%% more"
            log.warning(text, name, 1e2 * MARGIN)
        else:
            text = "%s: a batch of %d samples came, memory was planned for %d: planning again; %s to plan once"
            log.warning(text, name, size, self._planned_for(key), _GIVE)

    def _budget_for(self, spec: Any) -> Budget:
        """A share is one of the largest plain step so far: all sizes have one budget."""
        if have_ragged(spec):  # how many values come is no other size: a plan for more takes the place of the last
            return self.options.budget
        key = self._key(spec)
        budgets = [plan.report.budget_bytes for other, plan in self.plans.items() if in_other_sizes(key, other)]
        least = max([*budgets, self._least_budget])
        if not least or self.options.budget.fraction is None:
            return super()._budget_for(spec)
        return Budget(size_bytes=least) if self._joining else replace(self.options.budget, least_bytes=least)

    def _warn_of_sizes(self) -> None:
        if self._warned:
            return
        self._warned = True
        log.warning(
            "%s: its batches come in more than %d combinations of sizes, and so many plans are kept: others train "
            "under a plan for larger ones, and recompute what these have to; where there can be none, plans are made "
            "again. Pad sequences to fewer lengths, or give a larger max_plans= to checkmate_tf",
            self.model.name,
            self.options.max_plans,
        )

    def _said(self, error: Exception, arrived: int, can_be_told: bool) -> str:
        """What is said beside an error that came with the first batch.

        Parameters
        ----------
        error : Exception
        arrived : int
            Bytes that came to the device since `compile`, beside the model's variables. They are told if they are half
            of what is missing, at least.
        can_be_told : bool
            Whether the batch's size can be told beforehand.
        """
        said = f"{self.model.name!r} was restored: it trains plainly until checkmate_tf.compile is called again."
        if not (isinstance(error, InfeasibleBudgetError) and self._device().is_cpu and self.options.verify):
            return said
        if 0 < error.minimum_bytes - error.budget_bytes <= 2 * arrived:
            said += (
                f" {format_bytes(arrived)} came to the device since it was called, such as arrays given to fit, and "
                "batches that a pipeline keeps ready. The budget is for them, too: give fit a tf.data.Dataset that "
                "reads batch by batch"
            )
            said += f", or {_GIVE}, which then plans before they come." if can_be_told else "."
        return said


def out_of_the_allocator(value: Any) -> Any:
    """Values where they are not measured as those of another tenant of the device."""
    return value.numpy() if isinstance(value, tf.Tensor) else value


def _is_symbolic(data: Any) -> bool:
    """Whether a batch is one of a graph."""
    return any(tf.is_symbolic_tensor(t) for t in tf.nest.flatten(data, expand_composites=True))


def _as_disagreement(error: BaseException, given: Any, size: int) -> BaseException:
    """The error; or another one, if the step cannot be traced, which may be since inputs disagree."""
    sizes = told_sizes(given)
    if len(sizes) < 2 or not isinstance(error, TraceError):
        return error
    return BatchSizeError(
        f"inputs disagree on the batch size: {sizes}. {size} was taken for it, and the other first axes for no batch, "
        f"as those of the nodes and edges of a graph. With that, {error}"
    )
