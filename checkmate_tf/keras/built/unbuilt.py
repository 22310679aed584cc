"""Has losses, metrics and the optimizer stay unbuilt until the data comes that they are built for.

Keras builds them at the first batch, for good: it chooses what "accuracy" means by the shape of the targets, which
outputs have a loss by their structure, and slots by what is trained then. A plan that is made before needs them built,
for data that may be guessed. So they are taken back when it is made, and put in place when the step of that plan is
first traced to train. Until then, and if there is no plan, the model is as it was.

What is taken back are attributes, and the lists, dicts and sets that they hold: Keras and TensorFlow keep books on
variables in several of these. They are written past what tracks changes, which would keep books on that, too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import keras
from keras.src.utils.tracking import Tracker

__all__ = ["Aside", "left_built", "left_unbuilt"]


class _State:
    """The attributes of objects as they are now, and what their containers hold."""

    def __init__(self, objects: list[Any]):
        self.objects = objects
        self._held: dict[int, tuple[Any, Any, dict[str, Any]]] = {}
        for each in objects:
            self._add(each)

    def _add(self, holder: Any) -> None:
        attributes = dict(getattr(holder, "__dict__", {}))
        inside = _inside(holder)
        self._held[id(holder)] = holder, inside, attributes
        parts = [*(inside.values() if isinstance(inside, dict) else inside), *attributes.values()]
        while parts:
            part = parts.pop()
            if issubclass(type(part), tuple):
                parts += part
            elif id(part) not in self._held and issubclass(type(part), (list, dict, set, Tracker)):
                self._add(part)

    def put(self, before: _State | None = None) -> None:
        """Make the objects as they were. Their attributes that are no other than `before` stay as they are now."""
        for holder, inside, attributes in self._held.values():
            if issubclass(type(holder), list):
                list.__setitem__(holder, slice(None), inside)
            elif issubclass(type(holder), dict):
                dict.clear(holder)
                dict.update(holder, inside)
            elif issubclass(type(holder), set):
                set.clear(holder)
                set.update(holder, inside.values())
            if hasattr(holder, "__dict__"):
                stay = {} if before is None else before._same(holder, attributes)
                vars(holder).clear()
                vars(holder).update(attributes | stay)

    def _same(self, holder: Any, later: dict[str, Any]) -> dict[str, Any]:
        """The attributes of an object as they are now, of those that were here what they were later."""
        if id(holder) not in self._held:
            return {}
        then, none = self._held[id(holder)][2], object()
        return {name: now for name, now in vars(holder).items() if then.get(name, none) is later.get(name, none)}

    def lasts(self) -> bool:
        """Whether the objects are still as they were."""
        now = _State(self.objects)._held
        return now.keys() == self._held.keys() and all(
            _are_same(a, b) for k, then in self._held.items() for a, b in zip(then[1:], now[k][1:], strict=True)
        )


@dataclass(frozen=True)
class _Built:
    """What was built, and how it was before: the optimizer, and losses and metrics."""

    optimizer: _State
    others: _State
    built: _State


class Aside:
    """What was built of a model for plans that have not trained yet, by the data that it was built for."""

    def __init__(self, model: Any):
        self._model = model
        self._built: dict[Any, _Built] = {}

    @contextlib.contextmanager
    def building(self, key_of: Callable[[], Any]) -> Iterator[None]:
        """Take back what is built inside. It is kept, unless that fails, for the data that `key_of` tells at the end.

        What was built for the same data before is in place inside, so that it is not built again.
        """
        optimizer, others = _states(self._model)
        earlier = self._built.get(key_of())
        if earlier is not None:
            earlier.built.put()
        try:
            yield
            if not (optimizer.lasts() and others.lasts()):
                built = _State([*optimizer.objects, *others.objects])
                self._built[key_of()] = earlier or _Built(optimizer, others, built)
        finally:
            optimizer.put()
            others.put()

    def holds(self, key: Any) -> bool:
        """Whether something is kept that was built for such data."""
        return key in self._built

    def is_stale(self, key: Any) -> bool:
        """Whether the optimizer was built or changed by others since something was built for such data."""
        return key in self._built and not self._built[key].optimizer.lasts()

    def settle(self, key: Any) -> None:
        """Put in place what was built for such data, and forget the rest: it trains now."""
        found = self._built.get(key)
        self.forget()
        if found is None:
            return
        if not found.others.lasts():  # `evaluate` built them, and its function updates those
            object.__setattr__(self._model, "test_function", None)
        found.built.put(found.others)  # a user may have set an attribute of a metric since

    def forget(self, key: Any = None) -> None:
        """Forget what was built for such data, or for any."""
        if key is None:
            self._built.clear()
        else:
            self._built.pop(key, None)


@contextlib.contextmanager
def left_unbuilt(model: Any) -> Iterator[None]:
    """Take back what is built inside of a model's losses, metrics and optimizer."""
    states = _states(model)
    try:
        yield
    finally:
        for state in states:
            state.put()


@contextlib.contextmanager
def left_built(model: Any) -> Iterator[None]:
    """Take back what is built inside only if that fails."""
    states = _states(model)
    try:
        yield
    except BaseException:
        for state in states:
            state.put()
        raise


def _states(model: Any) -> tuple[_State, _State]:
    """Of the optimizer, and of losses and metrics. Those of Keras 2 are left alone."""
    if not isinstance(model, keras.Model):
        return _State([]), _State([])
    optimizer = getattr(model, "optimizer", None)
    loss, metrics = getattr(model, "_compile_loss", None), getattr(model, "_compile_metrics", None)
    given = keras.tree.flatten(
        [getattr(metrics, name, None) for name in ("_user_metrics", "_user_weighted_metrics")]
    )  # some make their variables at the first batch
    optimizers = [optimizer, getattr(optimizer, "inner_optimizer", None)]
    others = [loss, metrics, *(each for each in given if isinstance(each, keras.Metric))]
    return tuple(_State([each for each in some if each is not None]) for some in (optimizers, others))  # type: ignore[return-value]


def _inside(holder: Any) -> Any:
    """What a container holds, as a container of its own. A set's is by identity: filled again, it has another order."""
    if issubclass(type(holder), dict):
        return dict(holder)
    if issubclass(type(holder), set):
        return {id(each): each for each in holder}
    return list(holder) if issubclass(type(holder), list) else []


def _are_same(a: Any, b: Any) -> bool:
    """Whether two containers hold the same objects, not only equal ones."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(value is b[key] for key, value in a.items())
    return len(a) == len(b) and all(x is y for x, y in zip(a, b, strict=True))
