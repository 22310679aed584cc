"""Settings of layers and losses as text, to tell two of them apart.

`exact_settings` is for those who must not confuse two layers: whatever differs reads differently. Where Keras does not
know a setting, its address stands for it. An address means nothing in another process, so the process is named too.

`lasting_settings` is for files: it is the same in any process. It leaves out what is not, and what depends on where a
model's source lies. So it may confuse two layers whose Python code differs.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["exact_settings", "exact_words", "lasting_settings", "lasting_words"]

_NO_MATTER = ("_initializer", "_regularizer", "_constraint")  # settings that take no time in a layer's call,
_ACTIVITY = "activity_regularizer"  # but for this one
_NAMES = frozenset(("name", "seed"))  # neither takes time; Keras makes up what is not given
_OF_SOURCE = frozenset(("module", "registered_name", "build_config", "shared_object_id", "code"))
_COUNTER = re.compile(r'_\d+(?=")')  # Keras counts names anew in each process
_ADDRESS = re.compile(r"\b0x[0-9a-f]+")
_PROCESS = secrets.token_hex(8)


def exact_settings(thing: Any) -> str:
    """All settings of a Keras object that take time, as text that no other settings have in any process.

    A name that stands for an object (a loss, "mse") is its own text.
    """
    if isinstance(thing, str):
        return thing
    text = _settings(thing, lambda key: False, exact_words) or f"at {id(thing):#x} of process {_PROCESS}"
    return f"{_name_of(thing)} {text}"


def lasting_settings(thing: Any) -> str:
    """The settings of a Keras object that take time and are plain values, as text that is the same in any process."""
    if isinstance(thing, str):
        return thing
    text = _settings(thing, _OF_SOURCE.__contains__, lasting_words)
    return f"{_name_of(thing)} {_COUNTER.sub('', text)}".rstrip()


def exact_words(value: Any) -> str:
    """Of a value that JSON has no word for. Nothing that differs may read the same."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{value.shape}{hashlib.sha256(value.tobytes()).hexdigest()}"
    text = repr(value)
    return f"{text} of process {_PROCESS}" if _ADDRESS.search(text) else text


def lasting_words(value: Any) -> str:
    """A plain value as text; of any other, its class."""
    value = value.item() if isinstance(value, np.generic) else value
    plain = value is None or isinstance(value, (bool, int, float, str))
    return repr(value) if plain else type(value).__name__


def _settings(thing: Any, left_out: Callable[[str], bool], words: Callable[[Any], str]) -> str:
    """Empty if Keras cannot tell them."""
    try:
        return json.dumps(_plain(thing.get_config(), left_out), sort_keys=True, default=words)
    except Exception:  # noqa: BLE001 - whatever the user's layer raises
        return ""


def _plain(value: Any, left_out: Callable[[str], bool]) -> Any:
    """Settings without the names of layers, without what takes no time, and without what is left out."""
    if isinstance(value, dict):
        keep = [k for k in value if _matters(str(k)) and not left_out(str(k))]
        return {str(k): _plain(value[k], left_out) for k in keep}
    return [_plain(v, left_out) for v in value] if isinstance(value, (list, tuple)) else value


def _name_of(thing: Any) -> str:
    """Of a function, or of a class."""
    return str(getattr(thing, "__name__", type(thing).__name__))


def _matters(key: str) -> bool:
    return key not in _NAMES and (key == _ACTIVITY or not key.endswith(_NO_MATTER))
