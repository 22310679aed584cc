"""Whatever goes wrong while planning, the model trains as it was, and nothing partial is left on disk.

A model is compiled, or trained as compiled, and something is raised inside one stage: Ctrl-C, no memory, no space on
disk, a solver that is killed. Then it trains one step, which must give the weights of a twin that was never compiled.
"""

from __future__ import annotations

import errno
import importlib
import logging
import os
import resource
import signal
import tempfile
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from cases import Case, assert_same_state, compile_quickly, make, state, train, vectors
from graphs import chain
from keras import layers

import checkmate_tf
from checkmate_tf.costs import cache as times
from checkmate_tf.device import measure
from checkmate_tf.errors import CheckmateError, InfeasibleBudgetError, OutputError
from checkmate_tf.files.graphs import write_graph
from checkmate_tf.files.jsonfile import write_bytes, write_json, write_text
from checkmate_tf.files.results import result_to_dict
from checkmate_tf.keras.training import plans, watched
from checkmate_tf.profiles.file import write_profile
from checkmate_tf.profiles.journal import Journal
from checkmate_tf.profiles.table import ProfileTable
from checkmate_tf.schedule import Schedule, keep_all
from checkmate_tf.solvers import json_process

pytestmark = [
    pytest.mark.usefixtures("fresh_keras", "no_grappler", "ctrl_c"),
    pytest.mark.filterwarnings("ignore:`shuffle=True` was passed"),
]


def tiny_model() -> keras.Model:
    """Statistics, seeds and slots of an optimizer: all that a step changes besides weights."""
    inputs = x = keras.Input((64, 8))
    for _ in range(3):
        x = layers.Dense(16, activation="tanh")(x)
    x = layers.GlobalAveragePooling1D()(layers.Dropout(0.2)(layers.BatchNormalization()(x)))
    model = keras.Model(inputs, layers.Dense(4, activation="softmax")(x), name="tiny")
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "sparse_categorical_crossentropy")
    return model


TINY = Case(tiny_model, vectors, budget=0.8)


@pytest.fixture(scope="module")
def twin():
    """States of a model that was never compiled by us, after each of two steps."""
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    model, states = make(TINY), []
    for _ in range(2):
        train(model, TINY, steps=1)
        states.append(state(model))
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})
    return states


@pytest.fixture
def searched(monkeypatch):
    """Best-first search has the optimum before a search and a process begin; here they do."""
    monkeypatch.setattr(importlib.import_module("checkmate_tf.strategies.checkmate"), "LARGEST", 0)


@pytest.fixture
def ctrl_c():
    """Python's own handler: a process that was started in the background ignores the signal."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler  # whoever changed it, put it back
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def disk(tmp_path, monkeypatch):
    """A folder for all that is written: caches, and temporary files."""
    for name in ("cache", "temporary"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("CHECKMATE_TF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("checkmate_tf.fit.cache.schedule_folder", lambda: tmp_path / "cache" / "schedules")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    return tmp_path


def files(folder: Path) -> list[str]:
    """All files below a folder, those that are hidden too; but not TensorFlow's own, which it removes at its end."""
    found = [path for path in folder.rglob("*") if path.is_file()]
    return sorted(str(path.relative_to(folder)) for path in found if "__autograph_generated" not in path.name)


def children() -> set[str]:
    """Processes that this one started and that still run."""
    tasks = Path("/proc/self/task").glob("*/children")
    return {child for task in tasks for child in task.read_text().split()}


def assert_nothing_is_left(model: keras.Model, twin: list[dict[str, np.ndarray]], disk: Path, step: int = 1) -> None:
    """The model is as it was and trains as its twin; what is on disk is whole; no child runs."""
    ours = [key for key in vars(model) if "checkmate" in key or key in ("train_step", "make_train_function")]
    assert not ours and not model.jit_compile
    assert not files(disk / "temporary")
    assert all(name.endswith(".json") and not Path(name).name.startswith(".") for name in files(disk))
    assert_trains_as(model, twin, step)


def assert_trains_as(model: keras.Model, twin: list[dict[str, np.ndarray]], step: int = 1) -> None:
    train(model, TINY, steps=1)
    for (name, found), (_, wanted) in zip(state(model).items(), twin[step - 1].items(), strict=True):
        assert found.tobytes() == wanted.tobytes(), name


def raising(monkeypatch, target, error: BaseException | int, after: int = 0) -> list[int]:
    """Let one call of a function raise an error, or the process get a signal. Returns the calls, to be counted."""
    owner, name = target if isinstance(target, tuple) else monkeypatch_target(target)
    real, calls = getattr(owner, name), []

    def fails(*given, **options):
        calls.append(1)
        if len(calls) == after + 1:
            if isinstance(error, int):
                signal.raise_signal(error)
            else:
                raise error
        return real(*given, **options)

    monkeypatch.setattr(owner, name, fails)
    return calls


def monkeypatch_target(path: str):
    from importlib import import_module

    module, _, name = path.partition(":")
    owner = import_module(module)
    *outer, last = name.split(".")
    for part in outer:
        owner = getattr(owner, part)
    return owner, last


# -- Ctrl-C -----------------------------------------------------------------------------------------------------------

STAGES = {
    "trace: the model": ("keras:Model.compute_loss", {}),
    "trace: its operations": ("checkmate_tf.trace.step:needed_operations", {}),
    "trace: their sizes": ("checkmate_tf.trace.sizes.static:copy_attributes", {}),
    "trace: the nodes": ("checkmate_tf.trace.program:merged", {}),
    "costs: counted": ("checkmate_tf.costs.flops:op_cost_flops", {}),
    "costs: measured": ("checkmate_tf.costs.timed:_OpTimer.time", {"costs": "profile"}),
    "costs: workspaces": ("checkmate_tf.costs.workspace:_workspace", {"verify": True}),
    "costs: the times are kept": ("os:replace", {"costs": "profile"}),
    "solve: the cache is asked": ("checkmate_tf.fit.cache:cache_key", {}),
    "solve: the cache is written": ("os:replace", {}),
    "emit": ("checkmate_tf.emit.emit:Emission.run", {"verify": True, "budget": "1GB"}),
    "measure: before the steps": ("checkmate_tf.device.measure:_Captured.numpy", {"verify": True, "budget": "1GB"}),
    "measure: after the first step": (
        "tensorflow:config.experimental.reset_memory_stats", {"verify": True, "budget": "1GB"}
    ),
    "measure: after the last step": (
        "checkmate_tf.device.measure:Device.peak_bytes", {"verify": True, "budget": "1GB"}
    ),
    "measure: a value is written": (
        "tensorflow:raw_ops.DisableCopyOnRead", {"verify": True, "budget": "1GB"}
    ),
    "measure: values are put back": (
        "checkmate_tf.device.measure:_Captured.assign", {"verify": True, "budget": "1GB"}
    ),
}  # fmt: skip


@pytest.mark.long(but=("solve: the cache is asked", "emit", "measure: after the first step"))
@pytest.mark.feature("Faults", "Ctrl-C at any point of compile and fit")
@pytest.mark.parametrize("stage", STAGES)
def test_ctrl_c_leaves_the_model_as_it_was(stage, monkeypatch, twin, disk):
    target, options = STAGES[stage]
    model, running = make(TINY), children()
    before = {key: value for key, value in vars(model).items() if not key.startswith("_")}
    with monkeypatch.context() as patch:
        calls = raising(patch, target, signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            compile_quickly(model, TINY, **options)
    assert calls
    after = {key: value for key, value in vars(model).items() if not key.startswith("_")}
    assert after.keys() == before.keys() and all(after[key] is before[key] for key in before)
    assert children() == running
    assert_nothing_is_left(model, twin, disk)


FIRST = ["trace: the model", "costs: counted", "solve: the cache is asked", "emit", "measure: after the first step"]


@pytest.mark.long
@pytest.mark.parametrize("stage", FIRST)
def test_ctrl_c_at_the_first_batch(stage, monkeypatch, twin, disk):
    """No plan is made, and the batch is not trained on. The next one is planned for."""
    target, options = STAGES[stage]
    model = compile_quickly(make(TINY), TINY, batch_size=None, **options)
    with monkeypatch.context() as patch:
        calls = raising(patch, target, signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            train(model, TINY, steps=1)
    assert calls and model.checkmate is None
    assert_trains_as(model, twin)
    assert model.checkmate.batch_size == TINY.batch
    checkmate_tf.restore(model)
    assert_nothing_is_left(model, twin, disk, step=2)


@pytest.mark.feature("Faults", "Ctrl-C at any point of compile and fit")
def test_ctrl_c_while_solving_gives_the_best_so_far(searched, twin, disk):
    """Strategies answer it with what they have; such an answer is not kept."""
    pressed, running = [], children()

    def press(stage, done, total, text):
        if stage == "solve" and "overhead" in text and not pressed:
            pressed.append(text)
            signal.raise_signal(signal.SIGINT)

    model = compile_quickly(make(TINY), TINY, progress=press, gap=0.0)
    assert pressed and model.checkmate.recomputations > 0
    assert not files(disk) and children() == running
    assert_trains_as(model, twin)
    checkmate_tf.restore(model)
    assert_nothing_is_left(model, twin, disk, step=2)


@pytest.mark.long
@pytest.mark.feature("Faults", "Ctrl-C at any point of compile and fit")
def test_ctrl_c_in_a_second_compile_keeps_the_first(monkeypatch, twin, disk):
    model = compile_quickly(make(TINY), TINY)
    first, step = model.checkmate, model.train_step
    with monkeypatch.context() as patch:
        raising(patch, STAGES["emit"][0], signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            compile_quickly(model, TINY, verify=True, budget="1GB")
    assert model.checkmate is first and model.train_step is step
    assert_trains_as(model, twin)


@pytest.mark.long(but=("costs: counted",))
@pytest.mark.feature("Faults", "Ctrl-C at any point of compile and fit")
@pytest.mark.parametrize("stage", ["trace: the nodes", "costs: counted", "solve: the cache is asked"])
def test_ctrl_c_while_fit_plans_for_other_data(stage, monkeypatch, twin, disk):
    """Data of another structure is planned for in a thread of its own, while Keras traces."""
    model = compile_quickly(make(TINY), TINY)
    x, y = TINY.data(TINY.batch)
    before = state(model)
    with monkeypatch.context() as patch:
        calls = raising(patch, STAGES[stage][0], KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            model.fit(x, y, sample_weight=np.ones(len(x)), batch_size=TINY.batch, verbose=0)
    assert calls
    now = state(model)
    assert all(now[key].tobytes() == before[key].tobytes() for key in before)
    assert_trains_as(model, twin)
    checkmate_tf.restore(model)
    assert_nothing_is_left(model, twin, disk, step=2)


class Crowded(measure.Device):
    """A device on which others take more than any budget."""

    def peak_bytes(self) -> int:
        return 10**10

    def current_bytes(self) -> int:
        return 10**10


@pytest.mark.long(only=("while training",))
@pytest.mark.feature("Faults", "Ctrl-C at any point of compile and fit")
@pytest.mark.parametrize("when", ["before training", "while training"])
def test_ctrl_c_while_fit_plans_again(when, monkeypatch, twin, disk):
    model = compile_quickly(make(TINY), TINY, verify=True, budget="1GB")
    first = model.checkmate
    assert first.measured_peak_bytes
    with monkeypatch.context() as patch:
        kind = Crowded if when == "before training" else type("Later", (Crowded,), {"current_bytes": lambda _: 0})
        patch.setattr(plans, "find_device", lambda: kind("CPU:0", 10**12, measurable=True))
        calls = raising(patch, (watched, "plan_again"), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            train(model, TINY, steps=1)
    assert calls and model.checkmate is first
    steps = 0 if when == "before training" else 1  # it is done when the peak is looked at
    checkmate_tf.restore(model)
    assert_nothing_is_left(model, twin, disk, step=steps + 1)


@pytest.mark.long(only=("emit",))
@pytest.mark.parametrize("stage", ["trace: the model", "costs: counted", "emit"])
def test_ctrl_c_while_a_gradient_function_is_made(stage, monkeypatch, twin, disk):
    """Its loss is the model's for a moment."""
    model = make(TINY)
    loss, options = model.loss, {"costs": "flops", "progress": False, "gap": 1.0, "budget": "1GB"}
    target = "keras:Model.__call__" if stage == "trace: the model" else STAGES[stage][0]
    with monkeypatch.context() as patch:
        calls = raising(patch, target, signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            checkmate_tf.gradient_function(model, "sparse_categorical_crossentropy", batch_size=TINY.batch, **options)
    assert calls and model.loss is loss
    assert_nothing_is_left(model, twin, disk)


# -- no memory --------------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.feature("Faults", "out of memory while a plan is measured")
def test_no_memory_in_one_measurement_plans_again(monkeypatch, twin, disk, caplog):
    """The steps that ran are undone; a smaller plan is measured."""
    error = tf.errors.ResourceExhaustedError(None, None, "OOM when allocating a tensor")
    calls = raising(monkeypatch, (measure.Device, "peak_bytes"), error)
    model = make(TINY)
    with suppress(InfeasibleBudgetError):
        compile_quickly(model, TINY, verify=True, budget="100MB")
    assert calls and "ran out of memory while it was measured: OOM when allocating" in caplog.text
    monkeypatch.undo()
    checkmate_tf.restore(model)
    assert_nothing_is_left(model, twin, disk)


@pytest.mark.long
def test_no_memory_to_put_a_value_back_is_tried_again(monkeypatch, twin, disk):
    """Without its value the model could not train."""
    error = tf.errors.ResourceExhaustedError(None, None, "OOM when allocating a tensor")
    model = make(TINY)
    with monkeypatch.context() as patch:
        calls = raising(patch, (measure._Captured, "assign"), error, after=2)
        compile_quickly(model, TINY, verify=True, budget="1GB")
    assert calls and model.checkmate.measured_peak_bytes
    checkmate_tf.restore(model)
    assert_nothing_is_left(model, twin, disk)


@pytest.mark.long(only=("peak_bytes",))
@pytest.mark.feature("Faults", "out of memory while a plan is measured")
@pytest.mark.parametrize("call", ["peak_bytes", "current_bytes"])
def test_no_memory_at_all_is_refused(call, monkeypatch, twin, disk):
    """Every measurement fails, or even to ask the device does."""

    def fail(device):
        raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating a tensor")

    model = make(TINY)
    with monkeypatch.context() as patch:
        patch.setattr(measure.Device, call, fail)
        expected = InfeasibleBudgetError if call == "peak_bytes" else (CheckmateError, tf.errors.ResourceExhaustedError)
        with pytest.raises(expected):
            compile_quickly(model, TINY, verify=True, budget=0.9, time_limit=3)
    assert_nothing_is_left(model, twin, disk)


# -- solvers that are killed ------------------------------------------------------------------------------------------


@pytest.mark.long(only=("milp",))
@pytest.mark.feature("Faults", "solver killed")
@pytest.mark.parametrize("strategy", ["checkmate", "milp"])
def test_a_killed_solver_leaves_nothing_behind(strategy, monkeypatch, searched, twin, disk):
    """What was found without it is used, or the budget is refused; its process and its folder are gone."""
    killed, real = [], json_process.JsonProcess.__init__

    def start(self, *given, **options):
        real(self, *given, **options)
        os.kill(self.pid, signal.SIGKILL)
        killed.append(self.pid)

    model, running = make(TINY), children()
    monkeypatch.setattr(json_process.JsonProcess, "__init__", start)
    compile_quickly(model, TINY, strategy=strategy, gap=0.0, time_limit=3)
    assert killed and model.checkmate.recomputations > 0
    assert model.checkmate.predicted_peak_bytes <= model.checkmate.budget_bytes
    assert children() == running
    monkeypatch.undo()
    assert_trains_as(model, twin)
    checkmate_tf.restore(model)


# -- disks that are full, or cannot be written ------------------------------------------------------------------------


@pytest.mark.long(only=("30",))
@pytest.mark.feature("Faults", "disk full, cache read-only")
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
def test_a_full_or_read_only_disk_is_no_reason_to_fail(number, monkeypatch, twin, disk, caplog):
    """Measured times and schedules cannot be kept: one warning each, and the model is planned all the same."""
    model = make(TINY)
    with monkeypatch.context() as patch:

        def fail(*given):
            raise OSError(number, os.strerror(number))

        patch.setattr(os, "replace", fail)
        compile_quickly(model, TINY, costs="profile")
    assert model.checkmate.recomputations > 0
    assert caplog.text.count("schedules are not kept") == 1 and "could not be cached" in caplog.text
    assert not files(disk)
    assert_trains_as(model, twin)


@pytest.mark.long
def test_nothing_at_all_can_be_written(searched, twin, disk, caplog):
    """Neither caches nor the solver's problem: the search needs no file."""
    model = make(TINY)
    with small_files(100):
        compile_quickly(model, TINY, costs="profile", gap=0.0, time_limit=3)
    assert model.checkmate.recomputations > 0
    assert "the solver process did not start" in caplog.text and "could not be cached" in caplog.text
    assert not files(disk)
    assert_trains_as(model, twin)


@pytest.mark.long
def test_a_cache_below_a_file_is_no_reason_to_fail(monkeypatch, twin, disk, caplog):
    (disk / "file").write_text("in the way")
    monkeypatch.setenv("CHECKMATE_TF_CACHE", str(disk / "file" / "cache"))
    monkeypatch.setattr("checkmate_tf.fit.cache.schedule_folder", lambda: disk / "file" / "cache" / "schedules")
    model = compile_quickly(make(TINY), TINY, costs="profile")
    assert model.checkmate.recomputations > 0
    assert caplog.text.count("schedules are not kept") == 1 and "could not be cached" in caplog.text
    assert files(disk) == ["file"]
    assert_trains_as(model, twin)


def table(batch: int) -> ProfileTable:
    one = np.ones((1, 1))
    return ProfileTable(
        "m", ((None, 2),), 3, "device", {}, "float32", "layer", (batch,), ("a",), ("loss",), one, one, one.astype(int)
    )


def journal(path: Path, number: int) -> None:
    found = Journal(path, "here")
    found.put("a", [float(number)] * 20)
    found.save()


def graph_named(number: int):
    return replace(chain(4), name=f"graph {number}")


WRITERS = {
    "graph.json": lambda path, k: write_graph(graph_named(k), path),
    "schedule.json": lambda path, k: keep_all(graph_named(k)).save(path),
    "plan.json": lambda path, k: keep_all(graph_named(k)).plan.save(path, graph_named(k)),
    "result.json": lambda path, k: write_json(result_to_dict(Schedule(chain(4), range(9), seconds=k)), path),
    "profile.json": lambda path, k: write_profile(table(k), path),
    "journal.json": journal,
    "times.json": lambda path, k: times.save(path, {f"operation {i}": float(k) for i in range(50)}),
    "page.html": lambda path, k: write_text(f"<p>{k}</p>" * 100, path),
    "bytes.bin": lambda path, k: write_bytes(bytes([k]) * 1000, path),
    "picture.png": lambda path, k: keep_all(chain(2 + k)).plot(path, size_inches=(8, 4), dpi=30),
    "picture.svg": lambda path, k: keep_all(chain(2 + k)).plot(path, size_inches=(8, 4), dpi=30),
}
WARNS = {"journal.json", "times.json"}


@contextmanager
def small_files(most_bytes: int):
    """The kernel writes no more than this to a file: what is longer is cut off, with an error."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("name", WRITERS)
def test_what_cannot_be_written_whole_is_not_written(name, tmp_path, monkeypatch):
    """The disk is full after some bytes, or Ctrl-C comes at the end: the old file stays, and no other."""
    path, write = tmp_path / name, WRITERS[name]
    logging.getLogger("checkmate_tf").setLevel(logging.CRITICAL)  # a log may be a file, too
    try:
        with small_files(100):
            if name in WARNS:
                write(path, 1)
            else:
                with pytest.raises(OutputError, match=f"{name}.* cannot be written: File too large"):
                    write(path, 1)
    finally:
        logging.getLogger("checkmate_tf").setLevel(logging.NOTSET)
    assert not os.listdir(tmp_path)
    write(path, 1)
    old = path.read_bytes()
    assert len(old) > 100 and os.listdir(tmp_path) == [name]
    with small_files(100), suppress(OutputError):
        write(path, 2)
    with monkeypatch.context() as patch:
        raising(patch, (os, "replace"), KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            write(path, 2)
    assert path.read_bytes() == old and os.listdir(tmp_path) == [name]
    write(path, 2)
    assert path.read_bytes() != old


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("a.xyz", "not a picture format; give one of .*png.*svg"),
        ("file/a.png", "folder .*file' cannot be made"),
        ("folder.png", "it is not a file"),
    ],
)
def test_pictures_that_cannot_be_written(path, says, tmp_path):
    (tmp_path / "file").write_text("in the way")
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(OutputError, match=says):
        keep_all(chain(2)).plot(tmp_path / path)
    assert sorted(os.listdir(tmp_path)) == ["file", "folder.png"]


def test_a_picture_without_a_suffix_is_a_png(tmp_path):
    keep_all(chain(2)).plot(tmp_path / "new" / "picture", size_inches=(8, 4), dpi=30)
    assert (tmp_path / "new" / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_the_twin_is_what_the_tests_take_it_for(twin):
    """Two steps are not one, and a compiled model's state is compared bit by bit."""
    assert any(a.tobytes() != b.tobytes() for a, b in zip(twin[0].values(), twin[1].values(), strict=True))
    models = make(TINY), compile_quickly(make(TINY), TINY)
    for model in models:
        train(model, TINY, steps=1)
    assert models[1].checkmate.recomputations > 0
    assert_same_state(*models)
