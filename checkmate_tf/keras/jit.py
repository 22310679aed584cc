"""Decides whether XLA compiles a model's planned step, and refuses what does not go with XLA."""

from __future__ import annotations

import logging
from typing import Any

import keras

from ..device.distribution import Distribution
from ..errors import JitCompileError, OperatorsError
from .frameworks import framework_of

__all__ = ["resolve_jit"]

log = logging.getLogger("checkmate_tf")


def resolve_jit(model: Any, operators: str, distribution: Distribution | None) -> bool:
    """Whether XLA is to compile the planned step: if the user asked for it, or Keras chose it, as it does on GPUs.

    Parameters
    ----------
    model : keras.Model
        Compiled.
    operators : str
        As `compile` takes it.
    distribution : Distribution or None
        How the model is spread over devices.

    Raises
    ------
    JitCompileError
        For models of tf_keras, and for models on several devices.
    OperatorsError
        If operators are to be chosen. That works neither under XLA nor on several devices. Where Keras chose XLA by
        itself, a message says that it is off.
    """
    jit_compile = _asked(model)
    if jit_compile and operators == "choose" and model._resolve_auto_jit_compile():
        log.warning('%s: jit_compile is set to False: operators="choose" is not served under XLA', model.name)
        return False
    if operators == "choose" and (jit_compile or distribution is not None):
        raise OperatorsError(
            f"{model.name!r} is {'compiled by XLA' if jit_compile else 'spread over several devices'}, where "
            'operators="choose" is not served: leave operators at "default"'
        )
    if jit_compile and distribution is not None:
        raise JitCompileError(
            f"{model.name!r} has jit_compile=True and is spread over {distribution.replicas} devices, which is not "
            "served together: compile the model with jit_compile=False"
        )
    return jit_compile


def _asked(model: Any) -> bool:
    if not model.jit_compile:
        return False
    if framework_of(model) is not keras:
        raise JitCompileError(
            f"{model.name!r} is a model of tf_keras with jit_compile=True, which works for Keras 3 only: compile the "
            "model with jit_compile=False"
        )
    return True
