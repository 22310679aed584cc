"""Models by name, as commands take them: in keras.applications, a `.keras` file, or `file.py:function`."""

from __future__ import annotations

import difflib
import importlib.util
import sys
from pathlib import Path
from typing import Any

from ..errors import CheckmateError

__all__ = ["BadInput", "compile_if_needed", "load_model", "parse_shape"]

_FORMS = "give a name in keras.applications (e.g. ResNet50), a .keras file, or file.py:function"


class BadInput(CheckmateError, ValueError):
    """What somebody typed, as the name of a model or an argument of a command, cannot be used."""


def parse_shape(text: str | None) -> tuple[int, ...] | None:
    """`"96,96,3"` or `"96x96x3"` as a tuple.

    Raises
    ------
    BadInput
        If it is not a list of positive whole numbers.
    """
    if text is None:
        return None
    parts = text.lower().replace("x", ",").strip("() ").split(",")
    if not all(part.strip().isdigit() and int(part) > 0 for part in parts):
        raise BadInput(f"--input-shape {text!r} is not a shape: give height, width and channels, e.g. 96,96,3")
    return tuple(int(part) for part in parts)


def load_model(name: str, input_shape: tuple[int, ...] | None = None, classes: int | None = None) -> tuple[Any, Any]:
    """The model, and a batch of data if the user's function gave one.

    Parameters
    ----------
    name : str
    input_shape, classes : optional
        For keras.applications only.

    Raises
    ------
    BadInput
        Says what is wrong with the name, the file or the function, and what to do.
    """
    path, colon, function = name.rpartition(":")
    from_file = name.endswith((".keras", ".h5", ".py")) or (colon and path.endswith(".py"))
    if from_file and (input_shape or classes):
        raise BadInput("--input-shape and --classes are for keras.applications names; a file fixes its own")
    if colon and path.endswith(".py"):
        return _from_function(Path(path), function)
    if name.endswith(".py"):
        raise BadInput(
            f"{name!r} names a file but no function in it: give {name}:function, which returns a Keras model"
        )
    if name.endswith(".h5"):
        raise BadInput(
            f"{name!r} is in Keras's older format: save it with model.save('model.keras'), or use file.py:function"
        )
    if name.endswith(".keras"):
        return _from_file(Path(name)), None
    return _from_applications(name, input_shape, classes), None


def _from_applications(name: str, input_shape: tuple[int, ...] | None, classes: int | None) -> Any:
    import keras

    makers = {k: v for k, v in vars(keras.applications).items() if callable(v) and k[:1].isupper()}
    match = {k.lower(): k for k in makers}.get(name.lower())
    if match is None:
        near = difflib.get_close_matches(name.lower(), [k.lower() for k in makers], 3, 0.5)
        hint = ", ".join(k for k in makers if k.lower() in near)
        raise BadInput(f"there is no model {name!r}: {_FORMS}" + (f". Did you mean {hint}?" if hint else ""))
    arguments: dict[str, Any] = {"weights": None}
    if input_shape:
        arguments["input_shape"] = input_shape
    if classes:
        arguments["classes"] = classes
    try:
        return makers[match](**arguments)
    except (ValueError, TypeError) as error:
        raise BadInput(
            f"keras.applications.{match} refuses this: {error}; change --input-shape or --classes"
        ) from error


def _from_file(path: Path) -> Any:
    import keras

    if not path.is_file():
        raise BadInput(f"there is no file {str(path)!r}: {_FORMS}")
    try:
        return keras.saving.load_model(path, safe_mode=True)  # a file never runs code
    except Exception as error:  # noqa: BLE001 - whatever a damaged or foreign file makes Keras raise
        reason = " ".join(str(error).split())
        raise BadInput(
            f"Keras does not load {str(path)!r}: {reason[:500]}. A file never runs code here: if it holds Lambda "
            "layers or classes of your own, write a function that builds or loads the model and give file.py:function"
        ) from error


def _from_function(path: Path, function: str) -> tuple[Any, Any]:
    import keras

    if not path.is_file():
        raise BadInput(f"there is no file {str(path)!r}: {_FORMS}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.resolve().parent))
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
        maker = getattr(module, function, None)
        if not callable(maker):
            names = [k for k, v in vars(module).items() if callable(v) and getattr(v, "__module__", "") == path.stem]
            raise BadInput(f"{str(path)!r} has no function {function!r}; it has {', '.join(names) or 'none'}")
        made = maker()
    except BadInput:
        raise
    except Exception as error:  # noqa: BLE001 - whatever the user's own code raises
        where = _last_line(error, path)
        raise BadInput(
            f"{path}:{function} failed{where}: {type(error).__name__}: {error}; it must run without arguments"
        ) from error
    model, data = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if not isinstance(model, keras.Model):
        raise BadInput(
            f"{path}:{function} returned {type(model).__name__}: it must return a Keras model, or (model, (x, y)) with "
            "a batch of its data"
        )
    return model, data


def _last_line(error: BaseException, path: Path) -> str:
    """Where in the user's file it failed."""
    trace, line = error.__traceback__, None
    while trace is not None:
        if Path(trace.tb_frame.f_code.co_filename).name == path.name:
            line = trace.tb_lineno
        trace = trace.tb_next
    return f" at line {line}" if line else ""


def compile_if_needed(model: Any, optimizer: str | None, loss: str | None) -> str:
    """Compile a model that is not compiled yet, or that the user wants to be compiled with something else.

    Returns
    -------
    str
        What was chosen, as a line to print; empty if the model is left as it is.

    Raises
    ------
    BadInput
        If Keras does not know the optimizer or the loss.
    """
    if model.compiled and optimizer is None and loss is None:
        return ""
    chosen_optimizer = optimizer or (model.optimizer if model.compiled else "adam")
    chosen_loss = loss or (model.loss if model.compiled else _default_loss(model))
    try:
        model.compile(optimizer=chosen_optimizer, loss=chosen_loss)
        model.loss if callable(chosen_loss) else _known_losses(chosen_loss)
    except (ValueError, TypeError) as error:
        raise BadInput(f"Keras refuses optimizer {optimizer!r} with loss {loss!r}: {error}") from error
    name = chosen_optimizer if isinstance(chosen_optimizer, str) else type(chosen_optimizer).__name__
    because = "as asked" if optimizer or loss else "the model was not compiled; choose with --optimizer and --loss"
    return f"compiled with optimizer {name} and loss {chosen_loss} ({because})"


def _known_losses(loss: Any) -> None:
    """Keras looks a loss up when it first trains; look now."""
    import keras
    import tensorflow as tf

    for one in tf.nest.flatten(loss):
        keras.losses.get(one)


def _default_loss(model: Any) -> Any:
    """From the activation that each output ends with."""
    outputs = getattr(model, "outputs", None) or []
    losses = [_loss_of(output) for output in outputs]
    return losses[0] if len(set(losses)) == 1 else (losses or "mse")


def _loss_of(output: Any) -> str:
    history = getattr(output, "_keras_history", None)
    activation = getattr(getattr(history, "operation", None), "activation", None)
    name = getattr(activation, "__name__", "")
    return {"softmax": "sparse_categorical_crossentropy", "sigmoid": "binary_crossentropy"}.get(name, "mse")
