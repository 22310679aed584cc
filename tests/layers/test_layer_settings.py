"""Settings as text: exact ones, and those that last from one process to the next."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
keras = pytest.importorskip("keras")

from checkmate_tf.layers.settings import exact_settings, exact_words, lasting_settings, lasting_words  # noqa: E402

L = keras.layers


class _Told:
    """Tells its settings, as a layer of Keras."""

    def __init__(self, **settings):
        self.settings = settings

    def get_config(self):
        return self.settings


class _Untold:
    """Tells none."""

    def get_config(self):
        raise NotImplementedError


def test_names_seeds_and_initializers_take_no_time():
    for settings in (exact_settings, lasting_settings):
        one = settings(L.Dropout(0.5, name="a", seed=1))
        assert one == settings(L.Dropout(0.5, name="b", seed=2)) != settings(L.Dropout(0.4))
        assert settings(L.Dense(2)) == settings(L.Dense(2, kernel_initializer="zeros")) != settings(L.Dense(3))
        assert settings(L.Dense(2)) != settings(L.Dense(2, activity_regularizer="l2"))


def test_exact_settings_confuse_nothing():
    first, second = _Untold(), _Untold()
    assert exact_settings(first) == exact_settings(first) != exact_settings(second)
    functions = [lambda x: x, lambda x: x]
    assert len({exact_settings(_Told(f=f)) for f in functions}) == 2
    assert exact_settings("mse") == "mse" and exact_words(1) == "1"


def test_an_address_of_another_process_is_another():
    """An address may be there again."""
    code = (
        "import checkmate_tf.layers.settings as s\n"
        "class Here:\n    def __repr__(self): return '<here at 0x7f00>'\n"
        "print(s.exact_words(Here()))"
    )
    said = {subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout for _ in range(2)}
    assert len(said) == 2 and all(text.startswith("<here at 0x7f00> of process") for text in said)


def test_lasting_settings_have_nothing_of_a_process_or_a_place():
    assert lasting_settings(_Untold()) == lasting_settings(_Untold()) == "_Untold"
    one, other = _Told(f=lambda x: x, module="a", layer=["dense_3"]), _Told(f=print, module="b", layer=["dense"])
    assert lasting_settings(one) != lasting_settings(other)  # a function and a builtin
    assert lasting_settings(one) == lasting_settings(_Told(f=lambda x: 2 * x, module="b", layer=["dense_12"]))
    assert lasting_settings("mse") == "mse" and lasting_settings(test_exact_settings_confuse_nothing).startswith("test")
    assert [lasting_words(value) for value in (1, "a", None, {2})] == ["1", "'a'", "None", "set"]
