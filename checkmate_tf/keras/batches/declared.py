"""Batches in the types that a plan was made for, where Keras's own step casts them to these, or past them, anyway.

A batch size alone tells no types. A plan is then made for the types that a model's inputs declare, and for targets as
its losses take them. But NumPy's integers have 64 bits, and declared token ids mostly 32. Another type would be another
structure of data, with a plan of its own. So integers are cast before the step:

- inputs of a functional or sequential model, which casts each to its declared type before any layer sees it. Where that
  is a float, they stay: under mixed precision, floats are cast before that, too;
- targets, where all losses and metrics are Keras's own, and of its default float type. These cast integers to that, so
  the numbers do not depend on the width, nor on whether they come as such floats.

Nothing else is cast: a loss or a step of one's own may look at the type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.models.functional import Functional

from ..frameworks import is_from_keras, is_own_step
from .spec import packed

__all__ = ["Casts", "casts_of"]


@dataclass(frozen=True)
class Casts:
    """What integers are cast to.

    Attributes
    ----------
    inputs, targets : nest of tf.DType, or None
        None: they stay as they are.
    """

    inputs: Any
    targets: Any

    def apply(self, data: Any) -> Any:
        """A packed batch, or its specs, in these types. What has another structure stays."""
        if isinstance(data, (tuple, list)) and not 0 < len(data) <= 3:
            return data
        x, y, weights = keras.utils.unpack_x_y_sample_weight(data)
        return packed((_cast(x, self.inputs), _cast(y, self.targets, to_floats=True), weights))


def casts_of(model: keras.Model, spec: Any, step: Callable[[Any], Any]) -> Casts | None:
    """What batches of a model are cast to, whose plan is for the types in `spec`; None if nothing may be cast.

    Parameters
    ----------
    model : keras.Model
        Compiled.
    spec : nest of tf.TensorSpec
        A packed batch, as the model declares it.
    step : callable
        The training step.
    """
    if not is_own_step(step) or not _casts_inputs(model):
        return None
    x, y, _ = keras.utils.unpack_x_y_sample_weight(spec)
    return Casts(_types(x), _types(y) if all(map(_leaves_types, _losses_and_metrics(model))) else None)


def _casts_inputs(model: Any) -> bool:
    """Whether its call is Keras's own, which casts declared inputs, and what reads them after that is, too."""
    kind = type(model)
    if any(getattr(kind, name) is not getattr(keras.Model, name) for name in ("compute_loss", "compute_metrics")):
        return False
    if kind.__call__ is not keras.Model.__call__:
        return False
    functional = model._functional if kind.call is keras.Sequential.call else model
    return isinstance(functional, Functional) and type(functional).call is Functional.call


def _losses_and_metrics(model: Any) -> Iterator[Any]:
    """What `compile` was given of both: names, functions and objects."""
    metrics = model._compile_metrics
    given = [model.loss]
    if metrics is not None:
        given += [metrics._user_metrics, metrics._user_weighted_metrics]
    for one in given:
        yield from keras.tree.flatten(one)


def _leaves_types(given: Any) -> bool:
    """Whether targets of another width give a loss or a metric the same numbers: Keras's own, of the default type."""
    return is_from_keras(given) and getattr(given, "dtype", None) in (None, keras.config.floatx())


def _types(specs: Any) -> Any:
    return tf.nest.map_structure(lambda t: None if t is None else t.dtype, specs)


def _cast(nest: Any, types: Any, to_floats: bool = False) -> Any:
    """The same with integers of these types; whether they may become floats."""
    if nest is None or types is None:
        return nest
    try:
        tf.nest.assert_same_structure(nest, types, check_types=False)
    except (TypeError, ValueError):
        return nest
    return tf.nest.map_structure(partial(_cast_one, to_floats=to_floats), nest, types, check_types=False)


def _cast_one(t: Any, dtype: tf.DType | None, to_floats: bool) -> Any:
    if dtype is None or not (isinstance(t, (tf.TensorSpec, np.ndarray, tf.Tensor))):
        return t
    given = tf.as_dtype(t.dtype)
    if (
        given == dtype
        or not given.is_integer
        or given == tf.uint64
        or not (dtype.is_integer or (to_floats and dtype.is_floating))
    ):
        return t
    if isinstance(t, tf.TensorSpec):
        return tf.TensorSpec(t.shape, dtype)
    return t.astype(dtype.as_numpy_dtype) if isinstance(t, np.ndarray) else tf.cast(t, dtype)
