"""Settings of the suite: an allocator that keeps statistics, caches of its own, and Grappler off on request.

`make test` leaves out what is marked `long`: the same as a shorter test shows, with other models, or many seconds.
Tests of 16-bit types are marked `sixteen_bits`. Where oneDNN is held below the processor (`ONEDNN_MAX_CPU_ISA`),
TensorFlow still asks it for kernels of these types that it then lacks, and plain models fail: `-m "not sixteen_bits"`.
"""

from __future__ import annotations

import gc
import os
import uuid

os.environ.setdefault("TF_CPU_ALLOCATOR_USE_BFC", "true")  # before TensorFlow is imported anywhere
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import hypothesis
import pytest

# No test fails for being slow, and each run tries the same examples; `--hypothesis-profile=anew` looks for others.
hypothesis.settings.register_profile("suite", deadline=None, derandomize=True)
hypothesis.settings.register_profile("anew", deadline=None)
hypothesis.settings.load_profile("suite")


_FROZEN: list[bool] = []  # not empty once objects are frozen in this process
SIXTEEN_BITS = {"float16", "bfloat16", "mixed", "mixed_float16"}  # types, and cases of these types


def pytest_configure(config):
    text = "feature(group, name, refused='', note='', **cases): a row of the table of benchmarks/product/support.py"
    config.addinivalue_line("markers", text)
    config.addinivalue_line("markers", "sixteen_bits: runs kernels of 16-bit types; parameters that say so are marked")
    config.addinivalue_line("markers", "long: not in `make test`; `only` or all `but` some of its parameters' names")


def _is_among(name: str, only: tuple[str, ...] = (), but: tuple[str, ...] = ()) -> bool:
    """Whether a parameter's name is one of `only`, or none of `but`."""
    return name in only if only else name not in but


def pytest_collection_modifyitems(items):
    """Results carry the features that their tests show; a marker with cases is for these parameters only."""
    for item in items:
        for marker in list(item.iter_markers("long")):
            if marker.kwargs and not _is_among(item.callspec.id, **marker.kwargs):
                item.own_markers.remove(marker)
        given = item.callspec.params if hasattr(item, "callspec") else {}
        names = [getattr(value, "name", value) for value in given.values()]
        if any(isinstance(name, str) and name in SIXTEEN_BITS for name in names):
            item.add_marker("sixteen_bits")
        for marker in item.iter_markers("feature"):
            cases = {k: v for k, v in marker.kwargs.items() if k not in ("refused", "note")}
            if all(str(given.get(k)) in ([v] if isinstance(v, str) else v) for k, v in cases.items()):
                item.user_properties.append(("feature", ": ".join(marker.args)))


@pytest.fixture(scope="session", autouse=True)
def _compiled():
    """A minute of Numba in a new checkout, and from its cache from then on: no test's time limit pays for it."""
    if "PYTEST_XDIST_WORKER" in os.environ:  # that is, where many tests run
        from numba_compiled import compile_all

        compile_all()


@pytest.fixture(scope="session", autouse=True)
def _cost_cache(tmp_path_factory):
    """Profiles of the tests stay out of the user's cache."""
    before = os.environ.get("CHECKMATE_TF_CACHE")
    os.environ["CHECKMATE_TF_CACHE"] = str(tmp_path_factory.mktemp("costs"))
    yield
    if before is None:
        del os.environ["CHECKMATE_TF_CACHE"]
    else:
        os.environ["CHECKMATE_TF_CACHE"] = before


@pytest.fixture(autouse=True)
def _schedule_cache(tmp_path_factory, monkeypatch):
    """Schedules are kept for the test that solved for them, and for no other."""
    folder = tmp_path_factory.getbasetemp() / "schedules" / uuid.uuid4().hex
    monkeypatch.setattr("checkmate_tf.fit.cache.schedule_folder", lambda: folder)


@pytest.fixture
def no_grappler():
    """TensorFlow's graph optimizer off: it rewrites two graphs of the same step in two ways."""
    import tensorflow as tf

    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    yield
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})


@pytest.fixture
def fresh_keras(monkeypatch):
    """Nothing left of earlier models."""
    import keras

    from checkmate_tf.keras import garbage

    monkeypatch.setattr(garbage, "frozen", lambda: bool(_FROZEN))  # to count what is takes a tenth of a second
    keras.backend.clear_session(free_memory=False)  # layers are numbered from the start, whatever ran before
    yield
    keras.backend.clear_session()  # collects garbage too
    gc.freeze()  # what is left stays: TensorFlow, Keras, functions that TensorFlow keeps. No later collection walks it
    _FROZEN.append(True)


@pytest.fixture
def folder():
    """That of the test's schedules."""
    from checkmate_tf.fit import cache

    return cache.schedule_folder()
