"""Which plan serves a batch: the one for its sizes, or one for larger sizes, where no more plans are kept."""

from __future__ import annotations

import contextlib
from typing import Any, NamedTuple

import tensorflow as tf

from ...errors import CheckmateError
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
    shared : key of `plans`, or None
        While a batch trains under a plan for other sizes, that plan's. A graph that is traced for several sizes does
        not tell them.
    batch_axes : list of bool
        Of each first axis, whether it is the batch; empty if all are.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.shared: Any = None
        self._known_rooms: dict[Any, tuple[Any, Room]] = {}
        self.batch_axes: list[bool] = []

    def opened(self, given: Any) -> Any:
        """The specs that plans are made for, of the specs of a batch.

        The batch is open, which is all first axes if they have one size, or if there is a plan for that already. Where
        the shapes of a graph leave some first axes open, those that it knows are not the batch if there is such a plan.

        Where as many plans are kept as may be, they are those of one that serves the batch, if there is one.
        """
        return self._opened(given)[0]

    def batch_of(self, given: Any) -> Batch:
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
        if not self.may_be_full() and len(set(first_sizes(given))) < 2:  # mostly, and asked in each execution
            return (*sizes_of(specs), ())
        came = self.batch_of(given)
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
        program, room = self._known_rooms.get(key, (None, None))
        if room is not None and program is planned.program and room.batch == self.batches[key]:
            return room
        specs = tuple(t for t in key[1] if t is not None)
        if not all(isinstance(t, tf.TensorSpec) for t in specs):
            return None
        room = Room(specs, self.batches[key], tuple(t.shape for t in self._traced(key)))
        known = {k: v for k, v in self._known_rooms.items() if k in self.plans}
        self._known_rooms = {**known, key: (planned.program, room)}
        return room

    def rooms(self, key: Any) -> dict[Any, Room]:
        """Those of plans that train, for the same inputs in other sizes. What was not used for longest comes first."""
        now = self.trained()
        alike = [
            other
            for other in self.plans
            if in_other_sizes(key, other) and other[3] == key[3] and self.traced.get(other[1:], now) == other[0]
        ]
        return {other: room for other in alike if (room := self.room(other)) is not None}

    def _traced(self, key: Any) -> list[tf.TensorSpec]:
        """Of the inputs that are given, in the step of a plan."""
        return [tf.TensorSpec(t.shape, t.dtype) for t in self.plans[key].program.step.inputs]

    def may_be_full(self) -> bool:
        """Whether as many plans are kept as may be for one structure of data, or that cannot be ruled out."""
        return len(self.plans) >= self.options.max_plans

    def step(self, data: Any) -> Any:
        try:
            return super().step(data)
        finally:
            if not tf.inside_function():
                self.shared = None

    def _opened(self, given: Any) -> tuple[Any, bool]:
        """The specs, and whether they are those of a plan for other sizes."""
        flat = [t for t in tf.nest.flatten(given) if t is not None]
        known = all(isinstance(t, tf.TensorSpec) and t.shape.is_fully_defined() for t in flat)
        if not known:  # in a graph, or of a pipeline
            room = self.room(self.shared)
            if room is not None and room.serves(flat):
                return as_packed(room.specs, given), True
        own = self._opened_alone(given)
        key = self._key(own)
        if not known or not self.may_be_full() or key in self.plans or not self._is_full(key):
            return own, False
        rooms = self.rooms(key)
        serves = least_that_serves(rooms, flat)
        return (own, False) if serves is None else (as_packed(rooms[serves].specs, given), True)

    def _is_full(self, key: Any) -> bool:
        """Whether as many plans are kept as may be for the same inputs."""
        return sum(in_other_sizes(key, other) for other in self.plans) >= self.options.max_plans

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
