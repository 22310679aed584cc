"""A Keras callback that makes `fit` train within a memory budget, and logs what it takes."""

from __future__ import annotations

from typing import Any, Unpack

import keras

from ..errors import ModelError
from ..fit.options import Planning, options_of, takes_planning
from ..keras.api import compile as compile_for
from ..keras.frameworks import framework_of
from ..keras.training.controller import Controller, controller_of

__all__ = ["MemoryBudget"]


class MemoryBudget(keras.callbacks.Callback):
    """Makes `fit` train within a memory budget, as `checkmate_tf.compile` does.

    The plan is made when `fit` begins, or at its first batch if no batch size is given. The model stays compiled for
    the budget afterwards. So a second `fit` with this callback does not plan again. `checkmate_tf.restore(model)`
    undoes it. A model that was compiled for another budget is compiled for this one.

    At the end of each epoch the logs get `memory_budget` and, where the allocator keeps statistics, `memory_peak`:
    bytes, the most that lay on the device in this epoch, validation included. So they are in `history.history`.
    Callbacks that come later in the list, such as TensorBoard, see them, too.

    Parameters
    ----------
    budget : int, float or str
        As for `checkmate_tf.compile`.
    batch_size, input_spec, data, and all that is about planning
        As for `checkmate_tf.compile`.

    Raises
    ------
    CheckmateError
        If an argument cannot be used. All else that `checkmate_tf.compile` raises comes from `fit`; the model then
        trains as before.

    Examples
    --------
    >>> budget = checkmate_tf.callbacks.MemoryBudget("4GB")  # doctest: +SKIP
    >>> history = model.fit(x, y, epochs=3, callbacks=[budget])  # doctest: +SKIP
    >>> history.history["memory_peak"]  # doctest: +SKIP
    """

    @takes_planning
    def __init__(
        self,
        budget: object = "auto",
        *,
        batch_size: int | None = None,
        input_spec: Any = None,
        data: Any = None,
        **planning: Unpack[Planning],
    ):
        super().__init__()
        options_of(budget, planning)  # refuses at once what it can
        self.budget = budget
        self.batches: dict[str, Any] = {"batch_size": batch_size, "input_spec": input_spec, "data": data}
        self.planning = planning
        self._ours: Controller | None = None

    def __getstate__(self) -> dict[str, Any]:
        """A copy, and what is pickled, has compiled no model yet."""
        return self.__dict__ | {"_ours": None}

    def set_model(self, model: Any) -> None:
        """Keras says which model is trained."""
        if framework_of(model) is not keras:
            raise ModelError(f"{model.name!r} is no Keras 3 model: call checkmate_tf.compile(model, budget) before fit")
        super().set_model(model)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Compile the model for the budget, unless this callback has done so before."""
        if self._ours is None or controller_of(self.model) is not self._ours:
            compile_for(self.model, self.budget, **self.batches, **self.planning)
            self._ours = controller_of(self.model)  # it replaces the train function that `fit` has made

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Count the peak of this epoch alone."""
        if self._ours is not None:
            self._ours.begin_peak()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Log the budget, and the peak of this epoch."""
        if logs is None or self._ours is None or self._ours.report is None:
            return
        logs["memory_budget"] = self._ours.report.budget_bytes
        if (peak := self._ours.peak_bytes()) is not None:
            logs["memory_peak"] = peak
