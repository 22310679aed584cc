"""Plans at the first batch, where `compile` was given no batch size. A larger batch is planned for when it comes.

A train function mostly gets an iterator whose batch dimension is open, and runs as a graph. There a batch cannot be
looked at. So the first batch of each iterator is taken out before, planned for if no plan serves it, and given back by
an iterator of its own. To the train function that looks as the one that the batch came from: it is traced once.

Inside of a graph that runs, a batch that is too large is gone. There it stays an error.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any
from weakref import WeakSet

import numpy as np
import tensorflow as tf

from ..device.region import reserve
from ..errors import BatchSizeError, InfeasibleBudgetError
from ..fit.options import PlanOptions, Progress
from ..units import format_bytes
from .controller import Controller, put
from .feeding import is_pipeline
from .frameworks import one_step_at_a_time, steps_of
from .progress import progress_bars
from .spec import batch_of, open_batch, sample_of

__all__ = ["AtFirstBatch"]

log = logging.getLogger("checkmate_tf")

_GIVE = "give batch_size= (the largest batch) to checkmate_tf"


class AtFirstBatch(Controller):
    """A controller that has no plan until a batch comes, on one device. Until then its `batch_size` is 0.

    Attributes
    ----------
    progress : bool or callable
        As `compile` takes it.
    function : callable or None
        The train function that was made last, without what is done around it.
    found_bytes : int
        What lay on the device when `compile` was called.
    """

    def __init__(
        self,
        model: Any,
        options: PlanOptions,
        plain_step: Callable[[Any], Any],
        progress: bool | Progress,
    ):
        super().__init__(model, options, 0, plain_step, told=False)
        self.progress = progress
        self.function: Callable[..., Any] | None = None
        device = self._device()
        reserve(device, options.budget.size_bytes or 0)  # before the data of `fit` comes
        self.found_bytes = device.foreign_bytes(0)
        self._begun: WeakSet[Any] = WeakSet()  # pipelines whose first batch was looked at

    def arrives(self, data: Any, spec: Any = None) -> bool:
        """Plan for a batch, if it is the first one or larger than all before.

        Parameters
        ----------
        data : nest of arrays or tensors
            As a step sees it. Tensors of a graph tell their shapes alone.
        spec : nest of tf.TensorSpec, optional
            Of the batches to come. By default they are as this one.

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
        given = tf.nest.map_structure(_spec_of, data)
        size = _largest(given)
        if size is not None and 0 < size <= self.batch_size:
            return False
        if not size:
            if self.batch_size:
                return False
            what = "is empty" if size == 0 else "comes in a graph that leaves its size open"
            raise BatchSizeError(
                f"the first batch of {self.model.name!r} {what}, so memory cannot be planned for it: {_GIVE}"
            )
        self._plan_for(size, given, spec, data)
        return True

    def _plan_for(self, size: int, given: Any, spec: Any, data: Any) -> None:
        self._forget_compiled_before()
        name, first = self.model.name, not self.batch_size
        before = self.batch_size, self.options, self.plans, self.key
        if first:
            log.info("%s: the first batch has %d samples: planning for that", name, size)
        else:
            text = "%s: a batch of %d samples came, memory was planned for %d: planning again; %s to plan once"
            log.warning(text, name, size, self.batch_size, _GIVE)
        try:
            batch_of(given)  # refuses inputs that disagree
            opened = open_batch(given if spec is None else spec)
            self.batch_size, self.plans, self.key = size, {}, None
            with progress_bars(self.progress) as tell:
                symbolic = any(tf.is_symbolic_tensor(t) for t in tf.nest.flatten(data))
                sample = None if symbolic else sample_of(tf.nest.map_structure(_without_optional, data), size)
                self.options = replace(self.options, progress=tell, sample=sample)
                self.plan(opened)
        except BaseException as error:
            self.batch_size, self.options, self.plans, self.key = before
            if first and self.attached and isinstance(error, Exception):
                error.add_note(self._said(error))
                self.detach()
            raise
        if self.attached:
            put(self.model, "checkmate", self.report)
            if not first and self.model.train_function is not None:
                self.model.make_train_function(force=True)

    def _said(self, error: Exception) -> str:
        """What is said beside an error that came with the first batch."""
        said = f"{self.model.name!r} was restored: it trains plainly until checkmate_tf.compile is called again."
        device = self._device()
        came = device.foreign_bytes(self.found_bytes) if device.is_cpu and self.options.verify else 0
        if came and isinstance(error, InfeasibleBudgetError):
            said += (
                f" {format_bytes(came)} came to the device since it was called, such as arrays given to fit, and "
                "batches that a pipeline keeps ready. The budget is for them, too: give fit a tf.data.Dataset that "
                f"reads batch by batch, or {_GIVE}, which then plans before they come."
            )
        return said

    def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Do what a train function does, and look at batches that come from Python, or are the first of a pipeline."""
        if not args or args[0] in self._begun or tf.config.functions_run_eagerly():
            return function(*args, **kwargs)
        iterator, *others = args
        if is_pipeline(iterator):
            return self._begin(iterator, *others, **kwargs)
        batch = next(iterator)
        self.arrives(batch)
        return self._made()(itertools.chain([batch], iterator), *others, **kwargs)

    def _begin(self, iterator: Any, *others: Any, **kwargs: Any) -> Any:
        """The steps of one execution on the first batches of a pipeline."""
        spec, result = iterator.element_spec, None
        for k in range(steps_of(self.model)):
            try:
                batch = next(iterator)
            except StopIteration:  # the end of an epoch, which Keras waits for
                if k == 0:
                    raise
                break
            if (_largest(tf.nest.map_structure(_spec_of, batch)) or 0) > self.batch_size:
                batch = tf.nest.map_structure(_out_of_the_allocator, batch)
            self.arrives(batch, tf.nest.map_structure(_without_optional, spec))
            one = _pipeline_of(batch, spec)
            del batch
            with one_step_at_a_time(self.model):
                result = self._made()(one, *others, **kwargs)
        self._begun.add(iterator)
        return result

    def _made(self) -> Callable[..., Any]:
        """The train function as it is now: a plan that was just made may have replaced it."""
        assert self.function is not None
        return self.function

    def _guarded(self, function: Callable[..., Any]) -> Callable[..., Any]:
        self.function = function
        return super()._guarded(function)


def _pipeline_of(batch: Any, spec: Any) -> Iterator[Any]:
    """An iterator over one batch, of the type of the iterator that it came from."""
    with tf.device("/device:CPU:0"):  # where batches lie that a pipeline makes
        one = tf.data.Dataset.from_tensors(batch)
    return iter(tf.data.experimental.from_variant(tf.data.experimental.to_variant(one), spec))


def _out_of_the_allocator(value: Any) -> Any:
    """Values where they are not measured as those of another tenant of the device."""
    return value.numpy() if isinstance(value, tf.Tensor) else value


def _without_optional(value: Any) -> Any:
    """What stands for None in a pipeline is None to a step."""
    optional = (tf.experimental.Optional, tf.OptionalSpec)
    return None if isinstance(value, optional) or type(value).__name__ == "NoneTensorSpec" else value


def _spec_of(value: Any) -> Any:
    value = _without_optional(value)
    if value is None or isinstance(value, (tf.SparseTensor, tf.RaggedTensor)):
        return value
    if not isinstance(value, tf.Tensor) and not (isinstance(value, np.ndarray) and value.dtype.kind in "biuf"):
        value = tf.convert_to_tensor(value)  # as Keras and TensorFlow do later
    return tf.TensorSpec(value.shape, tf.as_dtype(value.dtype))


def _largest(given: Any) -> int | None:
    """The most samples that an input has; None if that is open."""
    sizes = [t.shape[0] for t in tf.nest.flatten(given) if isinstance(t, tf.TensorSpec) and t.shape.rank]
    return max((s for s in sizes if s is not None), default=None)
