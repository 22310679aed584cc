"""What a batch looks like: from the data, from a given spec, or from the model itself."""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ...errors import BatchSizeError, DynamicShapeError, ModelError, TraceError
from ...units import is_whole
from ..frameworks import is_from_keras, structs_of
from .apart import first_sizes, open_but, samples_of, told_sizes, with_apart
from .pipelines import sized_spec
from .ragged import NOT_KNOWN, have_ragged, is_ragged, opened_ragged

__all__ = [
    "batch_bytes",
    "data_spec",
    "open_batch",
    "packed",
    "sample_of",
    "targets_guessed",
    "specs_of_tensors",
    "with_tuples",
]

_ASK = "give batch_size=, input_spec= (tf.TensorSpecs with a batch dimension) or data= (arrays or a tf.data.Dataset)"


def data_spec(
    model: keras.Model, batch_size: int | None, input_spec: Any, data: Any, by_fit: bool = True
) -> tuple[Any, int]:
    """Structure, types and shapes of a batch with the batch dimension open, and the batch size to plan for.

    Where inputs have several sizes along their first axis, it is known of those that are not the batch (`apart.py`).

    Parameters
    ----------
    model : keras.Model
    batch_size : int or None
    input_spec : nest of tf.TensorSpec or None
        `(x, y)` or `(x, y, sample_weight)`, as a step sees them.
    data : tuple of arrays, array, tf.data.Dataset, or None
        An array alone is the only input of a model that is given no targets. A dataset is not read.
    by_fit : bool
        Whether `fit` hands batches over, in a structure of its own, and not the user.

    Returns
    -------
    (nest of tf.TensorSpec, int)

    Raises
    ------
    BatchSizeError
        If none of the three tells the batch size, or what they tell does not fit together.
    ModelError
        If the model does not tell what its data looks like.
    """
    if batch_size is not None and not is_whole(batch_size, 1):
        raise BatchSizeError(f"batch_size={batch_size!r} is not a positive whole number")
    if input_spec is not None:
        spec = told = _checked(input_spec)
    elif data is not None:
        spec = told = _spec_of_data(data)
    elif batch_size is not None:
        spec = told = open_batch(_spec_of_model(model))
    else:
        raise BatchSizeError(f"no batch size: memory cannot be planned without one; {_ASK}")
    if have_ragged(spec):
        raise ModelError(NOT_KNOWN)
    if batch_size is None and None in first_sizes(spec) and isinstance(data, tf.data.Dataset):
        open_batch(spec)  # or one would be asked for a size that does not help
        told = sized_spec(data)
        if samples_of(told) is None:
            raise BatchSizeError(
                "the given data set does not tell the size of its batches, and is not read to find it, or training "
                "would go on in another order, or without a batch; give batch_size=, the largest batch"
            )
    opened, batch = _with_open_batch(told, batch_size)
    opened = with_apart(open_batch(spec), opened)
    if by_fit and input_spec is None and not isinstance(data, tf.data.Dataset):  # whose structure stays
        opened = packed(with_tuples(opened))
    return opened, batch


def _with_open_batch(told: Any, batch_size: int | None) -> tuple[Any, int]:
    """The specs with the batch open, and its size: the given one, or else the one that they tell."""
    sizes, open_ones = told_sizes(told), None in first_sizes(told)
    if batch_size is None and not sizes:
        raise BatchSizeError(f"the batch dimension of the given data is open, so the batch size is unknown; {_ASK}")
    if batch_size is None and len(sizes) > 1 and open_ones:
        raise BatchSizeError(
            f"inputs disagree on the batch size: {sizes}, and some leave it open, so it is unknown: give batch_size="
        )
    whole = open_batch(told)
    batch = int(batch_size or samples_of(told) or 0)
    if len(sizes) < 2 and not (open_ones and sizes and sizes[0] > batch):
        if sizes and sizes[0] > batch:
            raise BatchSizeError(
                f"the given data has batches of {sizes[0]}, batch_size is {batch}: they must agree; leave batch_size "
                "out, or give a larger one"
            )
        return whole, batch
    if batch not in sizes and not open_ones:
        raise BatchSizeError(
            f"inputs disagree on the batch size: {sizes}, and batch_size={batch} is none of them: leave batch_size "
            "out, or give the size that is the batch"
        )
    return open_but(told, batch), batch


def specs_of_tensors(data: Any) -> Any:
    """Specs of a batch of tensors. Ragged and sparse ones stay, and so does None."""
    return tf.nest.map_structure(_spec_of, data)


def open_batch(spec: Any) -> Any:
    """The same specs with the first dimension None."""

    def opened(t: Any) -> Any:
        if t is None or is_ragged(t):
            return t if t is None else opened_ragged(t)
        if not isinstance(t, tf.TensorSpec):
            raise ModelError(f"{type(t).__name__} inputs have no size that can be known: make them dense")
        if t.shape.rank is None or None in t.shape[1:].as_list():
            raise DynamicShapeError(
                f"an input of shape {t.shape} has an open dimension besides the batch, so its size is unknown: give "
                "the size in input_spec=, or neither batch_size= nor data=, and each size is planned for when it comes"
            )
        return tf.TensorSpec([None, *t.shape[1:]] if t.shape.rank else [], t.dtype)

    return tf.nest.map_structure(opened, spec)


def packed(data: Any) -> Any:
    """A batch, or its specs, without the parts that are None at its end, as Keras packs what it has unpacked.

    To its own step `x`, `(x,)` and `(x, None, None)` are the same: `train_on_batch` hands over `(x, y, None)`, where
    `fit` hands over `(x, y)`. What cannot be unpacked stays, for Keras to refuse.
    """
    if isinstance(data, (tuple, list)) and not 0 < len(data) <= 3:
        return data
    x, y, weights = keras.utils.unpack_x_y_sample_weight(data)
    return keras.utils.pack_x_y_sample_weight(x, y) if weights is None else (x, y, weights)


def with_tuples(nest: Any) -> Any:
    """The same with tuples in place of lists, as pipelines make them, and so `fit`."""
    if isinstance(nest, dict):
        same = copy.copy(nest)  # of whatever class
        same.update({key: with_tuples(value) for key, value in nest.items()})
        return same
    if not isinstance(nest, (list, tuple)):
        return nest
    parts = map(with_tuples, nest)
    return type(nest)(*parts) if hasattr(nest, "_fields") else tuple(parts)


def batch_bytes(spec: Any, batch_size: int) -> int:
    """Bytes of a batch with an open first dimension."""
    given = [t for t in tf.nest.flatten(spec) if t is not None]
    return sum(math.prod(batch_size if d is None else d for d in t.shape) * t.dtype.size for t in given)


def sample_of(data: Any, batch_size: int, opened: Any) -> list[Any] | None:
    """A batch of the arrays given to `compile`, flattened, and made as large as `opened` by repetition.

    None if there are no arrays, or empty ones. A dataset is not read: one that shuffles would go on in another order.
    `opened` are the specs of the same, with the batch open.
    """
    if data is None or isinstance(data, tf.data.Dataset):
        return None
    sample: list[Any] = []
    given, specs = ([t for t in tf.nest.flatten(nest) if t is not None] for nest in (data, opened))
    for one, spec in zip(given, specs, strict=True):
        if is_ragged(one):
            sample += [part.numpy() for part in tf.nest.flatten(one, expand_composites=True)]
            continue
        array = np.asarray(one)
        for axis, size in enumerate(spec.shape):
            wanted, given = batch_size if size is None else size, array.shape[axis]
            if wanted and not given:
                return None
            array = array if given == wanted else array.take(np.arange(wanted) % given, axis)
        sample.append(array)
    return sample


def _spec_of(t: Any) -> Any:
    if t is None:
        return None
    return tf.TensorSpec(t.shape, t.dtype) if isinstance(t, tf.Tensor) else t


def _spec_of_data(data: Any) -> Any:
    if isinstance(data, tf.data.Dataset):
        return data.element_spec
    if isinstance(data, tf.distribute.DistributedDataset):
        raise ModelError("data is spread over devices already: give the tf.data.Dataset that it was made of")
    arrays = tuple(data) if isinstance(data, (tuple, list)) else (data,)

    def one(array: Any) -> Any:
        if array is None or is_ragged(array):
            return array
        try:
            t = tf.convert_to_tensor(array)
        except (ValueError, TypeError) as error:
            raise ModelError(
                f"data= has a {type(array).__name__}, which is no array ({error}): give one batch of arrays, or a "
                "tf.data.Dataset"
            ) from error
        dtype = tf.as_dtype(keras.config.floatx()) if t.dtype.is_floating else t.dtype  # as Keras's adapters cast
        return tf.TensorSpec(t.shape, dtype)

    specs = tf.nest.map_structure(one, arrays)
    if not any(is_ragged(t) or (t is not None and t.shape.rank) for t in tf.nest.flatten(specs)):
        raise ModelError(
            "data= has no array with a batch dimension, but "
            f"{', '.join(type(part).__name__ for part in tf.nest.flatten(arrays))}: give one batch of arrays, or a "
            "tf.data.Dataset"
        )
    return specs


def _checked(input_spec: Any) -> Any:
    """The same, if it is made of specs."""
    for part in tf.nest.flatten(input_spec):
        if not (part is None or is_ragged(part) or isinstance(part, tf.TypeSpec)):
            raise ModelError(
                f"input_spec= has a {type(part).__name__}, which is no tf.TensorSpec: give (x, y) of "
                "tf.TensorSpec(shape, dtype), or a batch of arrays as data="
            )
    return input_spec


def _spec_of_model(model: keras.Model) -> Any:
    """(x, y) of a model with declared inputs and outputs: y follows from each output's loss."""
    if not getattr(model, "inputs", None) or not getattr(model, "outputs", None):
        raise ModelError(
            f"{model.name!r} does not declare its inputs (a subclassed model): give data= (a batch of arrays, or a "
            "tf.data.Dataset) or input_spec= instead of batch_size alone"
        )
    inputs, outputs = structs_of(model)
    x = tf.nest.map_structure(lambda t: tf.TensorSpec(t.shape, t.dtype), inputs)
    y = tf.nest.map_structure(_target, outputs, _losses(model, outputs))
    if isinstance(y, dict) and getattr(model, "_compile_metrics", None) is None:  # else each output needs its target
        y = {name: target for name, target in y.items() if target is not None}
    return (x,) if all(t is None for t in tf.nest.flatten(y)) else (x, y)


@contextlib.contextmanager
def targets_guessed(model: keras.Model, loss: Any, guessed: bool) -> Iterator[None]:
    """Says that targets were guessed, if the step cannot be traced, and why that may be.

    Parameters
    ----------
    model : keras.Model
    loss : nest of losses
        What it is trained with.
    guessed : bool
        Whether the data is known from the model alone.

    Raises
    ------
    TraceError
        As what runs within.
    """
    try:
        yield
    except TraceError as error:
        uncertain = [one for one in keras.tree.flatten(loss) if not _tells_targets(one)]
        if not guessed or not uncertain:
            raise
        names = ", ".join(dict.fromkeys(map(_name_of, uncertain)))
        raise TraceError(
            f"{error}. From batch_size= alone, targets for a loss that is not known ({names}) were guessed: they look "
            f"like the output of {model.name!r}. If they do not, give data= (a batch, or a tf.data.Dataset) or "
            "input_spec=, or leave batch_size= out, and the plan is made for the first batch"
        ) from error


def _tells_targets(loss: Any) -> bool:
    """Whether a loss is known to take targets such as `_target` guesses them."""
    return is_from_keras(loss) and "ctc" not in _name_of(loss).lower()


def _name_of(loss: Any) -> str:
    if isinstance(loss, str):
        return loss
    return str(getattr(loss, "name", None) or getattr(loss, "__name__", None) or type(loss).__name__)


def _losses(model: keras.Model, outputs: Any) -> Any:
    """The loss of each output, in the outputs' structure."""
    given = model.loss
    flat = tf.nest.flatten(outputs)
    if isinstance(given, dict):
        names = list(outputs) if isinstance(outputs, dict) else model.output_names
        order = [given.get(name) for name in names]
    elif isinstance(given, (list, tuple)):
        order = list(given)
    else:
        order = [given] * len(flat)
    if len(order) != len(flat):
        raise ModelError("the losses do not match the model's outputs one to one; give data= or input_spec=")
    return tf.nest.pack_sequence_as(outputs, order)


def _target(output: Any, loss: Any) -> Any:
    if loss is None:
        return None
    if "sparse" in _name_of(loss).lower():
        return tf.TensorSpec(output.shape[:-1], tf.int64)
    return tf.TensorSpec(output.shape, keras.config.floatx())
