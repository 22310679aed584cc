"""Plans at the first batch, where `compile` was given no batch size. A larger batch is planned for when it comes.

A train function mostly gets an iterator whose batch dimension is open, and runs as a graph. There a batch cannot be
looked at. So the first two batches of each iterator are taken out before, planned for if no plan serves them
(`arriving.py`), and given back by an iterator of their own. To the train function that looks as the one that they came
from: it is traced once.

Where batches may differ in other sizes, too, every batch is taken out, and each combination of sizes has a train
function of its own, or each plan one for all other sizes that it serves.

Inside of a graph that runs, a batch that is too large is gone. There it stays an error.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

import tensorflow as tf

from ..batches.apart import first_sizes, told_sizes, with_apart
from ..batches.feeding import is_pipeline
from ..batches.handing import Hand
from ..batches.samples import spec_of, told_samples
from ..batches.sizes import Sizes, as_given, have_open_sizes, is_wider, without_optional
from ..frameworks import one_step_at_a_time, steps_of
from .arriving import Arriving, out_of_the_allocator

__all__ = ["AtFirstBatch"]

_FIRST = 2  # batches of a pipeline that are looked at


class AtFirstBatch(Arriving):
    """A controller that looks at batches before they train.

    Attributes
    ----------
    hand : Hand
        For batches that were looked at.
    """

    @cached_property
    def hand(self) -> Hand:
        return Hand()

    @cached_property
    def _looked(self) -> WeakKeyDictionary[Any, int]:
        """So many batches of each pipeline."""
        return WeakKeyDictionary()

    def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Do what a train function does, and look at batches that come from Python, or are the first of a pipeline."""
        if not args or tf.config.functions_run_eagerly():
            return function(*args, **kwargs)
        iterator, *others = args
        if self._is_known(iterator):
            return self._made(self.sizes_of_specs(iterator.element_spec))(*args, **kwargs)
        if is_pipeline(iterator):
            return self._begin(iterator, *others, **kwargs)
        batch = next(iterator)
        self.arrives(batch)
        try:
            return self._made(self.sizes(batch))(itertools.chain([batch], iterator), *others, **kwargs)
        finally:
            self.shared = None

    def _begin(self, iterator: Any, *others: Any, **kwargs: Any) -> Any:
        """The steps of one execution on the next batches of a pipeline: the first ones, unless their sizes differ."""
        self._forget_compiled_before()
        spec, result = iterator.element_spec, None
        opened = have_open_sizes(spec)
        for k in range(steps_of(self.model)):
            try:
                batch = next(iterator)
            except StopIteration:  # the end of an epoch, which Keras waits for
                if k == 0:
                    raise
                break
            given = tf.nest.map_structure(spec_of, batch)
            told = tf.nest.map_structure(without_optional, spec)
            if not self._is_served(self.batch_of(given), told):
                batch = tf.nest.map_structure(out_of_the_allocator, batch)
            self.arrives(batch, told)
            came = self.batch_of(given)
            if came.shared:
                sized = self.as_traced(spec, came.key)
            else:
                sized = as_given(spec, batch) if opened else spec
                sized = sized if came.opened is None else with_apart(sized, came.opened)
            varies = len(told_sizes(given)) > 1 or (came.opened is not None and is_wider(spec, came.opened))
            one = self.hand.over(batch, sized)
            del batch
            try:
                with one_step_at_a_time(self.model):
                    result = self._made(self.sizes_of_specs(sized))(one, *others, **kwargs)
            finally:
                self.hand.drop()
                self.shared = None
            self._looked[iterator] = 0 if varies else self._looked.get(iterator, 0) + 1
        return result

    def _is_known(self, iterator: Any) -> bool:
        """Whether what a pipeline still gives needs no look.

        Its first batch may be the small one that was left over, where their order is shuffled. So two are looked at.
        """
        looked = self._looked.get(iterator, 0)
        if not looked or have_open_sizes(spec := iterator.element_spec) or self._depends_on_data():
            return False
        if looked < (_FIRST if told_samples(spec) is None else 1):
            return False
        if self.batch_axes and first_sizes(spec).count(None) > sum(self.batch_axes):
            return False  # first axes that are not the batch may come again
        return not self.may_be_full() or self.batch_of(spec).key in self.plans

    def _made(self, sizes: Sizes) -> Callable[..., Any]:
        """The train function for such sizes as it is now: a plan that was just made may have replaced it."""
        return self.functions.get(sizes, self.remake)

    def _guarded(self, function: Callable[..., Any]) -> Callable[..., Any]:
        self.functions.begin(function)
        return super()._guarded(function)
