"""Which plan serves a batch: the one for its sizes, or one for larger sizes, where no more plans are kept."""

from __future__ import annotations

import contextlib
from typing import Any, NamedTuple

import tensorflow as tf

from ...errors import CheckmateError, DynamicShapeError
from ..batches.apart import apart_in, first_sizes, open_but, samples_of, told_sizes
from ..batches.samples import most_samples, spec_of
from ..batches.sharing import Room, as_packed, least_that_serves
from ..batches.sizes import Sizes, sizes_of, without_optional
from ..batches.spec import open_batch
from .controller import Controller

__all__ = ["Batch", "Serving", "in_other_sizes"]


class Batch(NamedTuple):
    """What is known of a batch."""

    given: Any
    """Its specs."""
    opened: Any
    """The specs of the plan that serves it, or will; None if it cannot be planned for, which planning explains."""
    key: Any
    """Of plans; None if it cannot be planned for."""
    size: int | None
    """The most samples that an input has; None if that is open."""
    shared: bool
    """Whether the plan is for other sizes."""


class Serving(Controller):
    """A controller whose plans may serve batches of several sizes, on one device.

    Attributes
    ----------
    under_larger : bool
        Whether the batch that trains has other sizes than its plan is for.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.under_larger = False
        self.batch_axes: list[bool] = []  # of each first axis, whether it is the batch, if not all of them are

    def opened(self, given: Any) -> Any:
        """The specs that plans are made for, of the specs of a batch.

        The batch is open, which is all first axes if they have one size, or if there is a plan for that already. Where
        the shapes of a graph leave some first axes open, those that it knows are not the batch if there is such a plan.

        Where as many plans are kept as may be, they are those of one that serves the batch, if there is one.
        """
        return self._opened(given)[0]

    def came(self, given: Any) -> Batch:
        """What is known of a batch of such specs."""
        with contextlib.suppress(CheckmateError):
            opened, shared = self._opened(given)
            return Batch(given, opened, self._key(opened), most_samples(given, opened), shared)
        return Batch(given, None, None, most_samples(given), False)

    def sizes(self, data: Any) -> Sizes:
        return self.sizes_of_specs(tf.nest.map_structure(spec_of, data))

    def sizes_of_specs(self, specs: Any) -> Sizes:
        """What tells train functions apart: all sizes but that of the batch, or those that the plan is for."""
        given = tf.nest.map_structure(without_optional, specs)
        if not self._is_full() and len(set(first_sizes(given))) < 2:  # mostly, and asked in each execution
            return (*sizes_of(specs), ())
        came = self.came(given)
        if came.shared:
            return self.sizes_under(came.key)
        return (*sizes_of(specs), apart_in(came.opened) if came.opened is not None else ())

    def sizes_under(self, key: Any) -> Sizes:
        """What tells the train function of all other sizes that a plan serves."""
        return (*sizes_of(self._traced(key)), *sizes_of(key[1]), apart_in(key[1]))

    def as_traced(self, specs: Any, key: Any) -> Any:
        """The specs of a batch, with those sizes open that are open in the step of its plan."""
        return as_packed(self._traced(key), specs)

    def room(self, key: Any) -> Room | None:
        """What a plan has room for. None if there is no plan, or the specs of a batch do not tell what it needs."""
        planned = self.plans.get(key)
        if planned is None or planned.program.static.seen:
            return None
        specs = tuple(t for t in key[1] if t is not None)
        if not all(isinstance(t, tf.TensorSpec) for t in specs):
            return None
        return Room(specs, self.batches[key], tuple(t.shape for t in self._traced(key)))

    def rooms(self, key: Any) -> dict[Any, Room]:
        """Those of plans for the same inputs in other sizes. What was not used for the longest time comes first."""
        others = {other: self.room(other) for other in self.plans if in_other_sizes(key, other)}
        return {other: room for other, room in others.items() if room is not None}

    def _traced(self, key: Any) -> list[tf.TensorSpec]:
        """Of the inputs that are given, in the step of a plan."""
        return [tf.TensorSpec(t.shape, t.dtype) for t in self.plans[key].program.step.inputs]

    def _is_full(self) -> bool:
        return len(self.plans) >= self.options.max_plans

    def _opened(self, given: Any) -> tuple[Any, bool]:
        """The specs, and whether they are those of a plan for other sizes."""
        try:
            own = self._opened_alone(given)
        except DynamicShapeError:  # in a graph for several sizes
            shared = self._traced_under(given)
            if shared is None:
                raise
            return shared, True
        key = self._key(own)
        if key in self.plans or not self._is_full():
            return own, False
        flat = [t for t in tf.nest.flatten(given) if t is not None]
        if all(isinstance(t, tf.TensorSpec) and t.shape.is_fully_defined() for t in flat):
            serves = least_that_serves(self.rooms(key), flat)
            shared = None if serves is None else as_packed([t for t in serves[1] if t is not None], given)
        else:
            shared = self._traced_under(given)
        return (own, False) if shared is None else (shared, True)

    def _traced_under(self, given: Any) -> Any:
        """The specs of the plan that trains, if it is for larger sizes, and a graph leaves open what it leaves open."""
        room = self.room(self.key) if self.under_larger else None
        if room is None or not room.serves([t for t in tf.nest.flatten(given) if t is not None]):
            return None
        return as_packed(room.specs, given)

    def _opened_alone(self, given: Any) -> Any:
        """The specs for such batches alone."""
        whole, sizes = open_batch(given), told_sizes(given)
        is_open = None in first_sizes(given)
        if len(sizes) + is_open < 2:
            return whole
        if is_open:
            apart = open_but(given, None)
            return apart if self._key(apart) in self.plans else whole
        key = self._key(whole)
        if key in self.plans and not self.plans[key].same_size and sizes[-1] <= self.batches[key]:
            return whole
        return open_but(given, self._batch_in(given))

    def _batch_in(self, given: Any) -> int | None:
        """The batch size of inputs that disagree: of those that had it before, if they agree."""
        sizes = first_sizes(given)
        if len(sizes) == len(self.batch_axes):
            kept = {size for size, is_batch in zip(sizes, self.batch_axes, strict=True) if is_batch}
            if len(kept) == 1:
                return kept.pop()
        return samples_of(given)


def in_other_sizes(key: Any, other: Any) -> bool:
    """Whether two keys of plans are for the same inputs, but for their sizes."""
    return key is not None and key[2] == other[2] and key[1] != other[1]
