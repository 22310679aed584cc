"""Data to run a step on, the user's or made up, and how the step is fed with it: as by `fit`, or as by who calls it."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from .measure import Device

__all__ = ["Fed", "example", "examples", "fed_as_by_fit", "fed_by_caller", "is_alike"]

_ALIGNED = 64  # bytes: where tensors begin


def examples(tensors: Sequence[Any], sample: Sequence[Any] | None) -> list[NDArray[Any]]:
    """For each tensor, an array of its shape and type: the sample's, if it is alike, or made-up data.

    Values do not matter for memory, but a step may fail on some. Arrays take nothing of the device's memory.
    """
    if sample is not None and is_alike(sample, tensors):
        return [np.asarray(a).astype(t.dtype.as_numpy_dtype) for a, t in zip(sample, tensors, strict=True)]
    return [_made_up(t) for t in tensors]


def is_alike(sample: Sequence[Any], tensors: Sequence[Any]) -> bool:
    """Whether a batch has the shapes of these tensors, so that a step can be run on it."""
    return [a.shape for a in sample] == [tuple(t.shape) for t in tensors]


def example(t: Any) -> tf.Tensor:
    """Made-up data of the shape and type of a tensor or a spec, as a tensor."""
    if t.dtype.is_floating:
        return tf.cast(tf.random.stateless_uniform(t.shape, [0, 0]), t.dtype)
    return tf.zeros(t.shape, t.dtype)


@dataclass(frozen=True, eq=False)
class Fed:
    """Runs one training step each time.

    Attributes
    ----------
    run : callable
        What runs it, and returns what it returns.
    kinds : int
        How many kinds of batches take turns: one size or several, and on the CPU either order of their tensors.
    """

    run: Callable[[], Any]
    kinds: int = 1

    def __call__(self) -> Any:
        return self.run()


def fed_as_by_fit(
    function: Callable[..., Any],
    batch: Sequence[NDArray[Any]],
    device: Device,
    ready: int = 5,
    places: Sequence[str] = (),
    shapes: Sequence[tf.TensorShape] = (),
    others: Sequence[Sequence[NDArray[Any]]] = (),
) -> Fed:
    """A training step on new data each time, fed as `fit` feeds it.

    On the CPU a pipeline prepares batches while the step runs, in the same allocator. They take memory, and they cut it
    into pieces. The tensors of a batch are made side by side there, in any order, and what comes later lies elsewhere
    then. So they are made forward and backward here, by turns. A GPU sees one batch at a time.

    Parameters
    ----------
    function : callable (*tensors)
        The step, to be traced.
    batch : sequence of arrays
        Its inputs.
    ready : int
        Batches that the pipeline keeps ready beside the one in use and the one that it makes. Here it is always the
        same number, so that peaks can be compared.
    places : sequence of str, optional
        The devices of replicas, each with its part of the inputs. By default all are on one device.
    shapes : sequence of tf.TensorShape, optional
        Of the inputs while the step is traced; by default those of the batch. With an open batch dimension loops take
        up to a tenth more. With a known one TensorFlow computes constants beforehand that depend on nothing else, and
        keeps them: 34 MB for the gradients of four Fourier transforms. `fit` has either.
    others : sequence of batches, optional
        Such inputs in other sizes, which take turns with the batch. They need `shapes` that are open.

    Notes
    -----
    On the CPU the pipeline reads the arrays themselves. Of a tensor TensorFlow may or may not make a copy in the
    allocator, and it would be there in every step. Of an array that is not aligned as tensors are it makes one that
    goes at once, and leaves a hole for another tensor of the batch: labels of 35 MB took a hole of 53.
    """
    if not batch or not device.is_cpu:
        fed = [_on_devices(one, places) for one in (batch, *others)]
        traced = shapes or [t.shape for t in fed[0]]
        specs = [tf.TensorSpec(shape, t.dtype) for shape, t in zip(traced, fed[0], strict=True)]
        concrete = tf.function(function, autograph=False).get_concrete_function(*specs)
        in_turn = itertools.cycle(fed)
        return Fed(lambda: concrete(*map(_copied, next(in_turn))), 1 + len(others))
    orders = (1, -1) if sum(a.nbytes > 0 for a in batch) > 1 else (1,)
    aligned = [tuple(map(_aligned, one)) for one in (batch, *others)]
    arrays = itertools.cycle([one for one in aligned for _ in orders])
    types, known_shapes = [tf.as_dtype(a.dtype) for a in batch], shapes or [a.shape for a in batch]

    def copied(order: int, *tensors: tf.Tensor) -> tuple[tf.Tensor, ...]:
        copies = list[tf.Tensor]()
        for t in list(map(tf.ensure_shape, tensors, known_shapes))[::order]:
            with tf.control_dependencies(copies[-1:]):
                copies.append(tf.raw_ops.DeepCopy(x=t))
        return tuple(copies[::order])

    data = tf.data.Dataset.range(1).repeat()
    data = data.map(lambda _: tuple(tf.numpy_function(lambda: next(arrays), [], types)))
    made = [data.map(functools.partial(copied, order)) for order in orders]
    data = tf.data.Dataset.choose_from_datasets(made, tf.data.Dataset.range(len(orders)).repeat())
    feed = iter(data.prefetch(ready))  # where none is asked for, tf.data would put a prefetch of its own
    step = tf.function(lambda: function(*next(feed)), autograph=False).get_concrete_function()
    return Fed(step, len(aligned) * len(orders))


def fed_by_caller(
    function: Callable[..., Any],
    batches: Sequence[Sequence[NDArray[Any]]],
    shapes: Sequence[tf.TensorShape] = (),
    are_there: bool = False,
) -> Fed:
    """A training step on a CPU, fed with batches that whoever calls it holds until it ends.

    Of the caller's arrays TensorFlow makes tensors for the call, in the allocator or elsewhere: that differs from run
    to run, as it does for the data of `fit`.

    Parameters
    ----------
    function : callable (*tensors)
        The step, to be traced.
    batches : sequence of batches
        These take turns.
    shapes : sequence of tf.TensorShape, optional
        Of the inputs while the step is traced; by default those of the first batch.
    are_there : bool
        The caller's tensors lie in the allocator already. The step then reads memory of NumPy's in their place, or they
        would be there twice.
    """
    aligned = [tuple(map(_aligned, one)) for one in batches]
    arrays, types = itertools.cycle(aligned), [tf.as_dtype(a.dtype) for a in aligned[0]]
    known_shapes = shapes or [tf.TensorShape(a.shape) for a in aligned[0]]

    def read() -> Any:
        given = tf.numpy_function(lambda: next(arrays), [], types)
        return function(*map(tf.ensure_shape, given, known_shapes))

    if are_there:
        return Fed(tf.function(read, autograph=False).get_concrete_function(), len(aligned))
    specs = [tf.TensorSpec(shape, dtype) for shape, dtype in zip(known_shapes, types, strict=True)]
    step = tf.function(function, autograph=False).get_concrete_function(*specs)
    return Fed(lambda: step(*map(tf.constant, next(arrays))), len(aligned))


def _aligned(array: NDArray[Any]) -> NDArray[Any]:
    """A copy of an array that a pipeline of TensorFlow's can read where it is."""
    if array.dtype.hasobject:
        return array
    memory = np.empty(array.nbytes + _ALIGNED, np.uint8)
    begin = -memory.ctypes.data % _ALIGNED
    copy = memory[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def _on_devices(batch: Sequence[NDArray[Any]], places: Sequence[str]) -> list[tf.Tensor]:
    """A batch as tensors, the part of each replica on its device."""
    tensors = []
    for k, array in enumerate(batch):
        with tf.device(places[k * len(places) // len(batch)] if places else None):
            tensors.append(tf.constant(array))
    return tensors


def _copied(t: tf.Tensor) -> tf.Tensor:
    """A copy on the device where a tensor is."""
    with tf.device(t.device):
        return tf.raw_ops.DeepCopy(x=t)


def _made_up(t: Any) -> NDArray[Any]:
    kind = t.dtype.as_numpy_dtype
    if t.dtype.is_floating:
        return np.random.default_rng(0).random(tuple(t.shape), np.float32).astype(kind)
    return np.full(tuple(t.shape), b"", object) if t.dtype == tf.string else np.zeros(tuple(t.shape), kind)
