"""Whatever is in a file, its loader gives a valid object or a typed error that names the file; and no code is run."""

from __future__ import annotations

import copy
import io
import json
import logging
import math
import os
import pickle
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from graphs import chain
from hypothesis import given, settings
from hypothesis import strategies as st

from checkmate_tf.costs import cache as times
from checkmate_tf.errors import BudgetError, CheckmateError, CostError, GraphError, PlanError
from checkmate_tf.files import answers, jsonfile
from checkmate_tf.files.answers import Answer, answer_from_dict, load_json
from checkmate_tf.files.graphs import graph_from_dict, graph_to_dict, read_graph
from checkmate_tf.files.jsonfile import to_json
from checkmate_tf.files.results import result_to_dict
from checkmate_tf.files.schedules import schedule_to_dict
from checkmate_tf.graph import Graph
from checkmate_tf.plan import Plan, evaluate
from checkmate_tf.profiles.artifact import read_artifact
from checkmate_tf.profiles.file import find_profile, profile_from_dict, profile_to_dict, read_profile
from checkmate_tf.profiles.journal import Journal
from checkmate_tf.profiles.table import ProfileTable
from checkmate_tf.schedule import Schedule, keep_all
from checkmate_tf.strategies.budgets import budget_in_bytes
from checkmate_tf.units import Budget, format_bytes, parse_budget

GRAPH = replace(chain(3), workspace=np.array([0, 1, 0, 0, 2, 0, 0]), constant_bytes=2)
SCHEDULE = Schedule(GRAPH, [0, 1, 2, 3, 1, 4, 5, 6], strategy="by hand", budget_bytes=100, seconds=0.5)
PROFILE = ProfileTable(
    model="dense",
    inputs=((None, 8),),
    parameters=80,
    device="a device",
    versions={"tensorflow": "2"},
    precision="float32",
    level="layer",
    batch_sizes=(1, 4),
    names=("dense", "loss", "grad_dense"),
    kinds=("forward", "loss", "backward"),
    median_us=np.array([[1.0, 2.0], [0.1, 0.1], [3.0, 5.0]]),
    spread_us=np.zeros((3, 2)),
    repetitions=np.ones((3, 2), dtype=np.int64),
)
JOURNAL = {
    "format": "checkmate-measurements/1",
    "setting": "here",
    "unit": "us",
    "measured": [{"key": "a", "values": [1.0, 2]}, {"key": "b", "values": []}],
}


# -- the loaders ------------------------------------------------------------------------------------------------------


def check_graph(graph: Graph) -> None:
    assert len(graph) and np.isfinite(graph.costs).all() and (graph.costs >= 0).all()
    assert keep_all(graph).peak_bytes >= graph.constant_bytes >= 0
    again = graph_from_dict(graph_to_dict(graph))
    assert again.names == graph.names and again.inputs == graph.inputs


def check_schedule(schedule: Schedule) -> None:
    found = evaluate(GRAPH, schedule.plan)
    assert found.peak_bytes == schedule.peak_bytes
    assert 0 <= schedule.gap <= 1 and schedule.lower_bound <= schedule.cost and schedule.seconds >= 0


def check_answer(answer: Answer) -> None:
    numbers = [v for v in answer.claims.values() if isinstance(v, float)]
    assert all(map(math.isfinite, numbers)) and all(isinstance(text, str) for text in answer.disagreements)
    if answer.fields is not None:
        schedule = Schedule(GRAPH, **answer.fields)
        assert schedule.peak_bytes <= answer.replayed.peak_bytes
        assert schedule.cost == answer.replayed.cost


def check_profile(table: ProfileTable) -> None:
    assert np.isfinite(table.costs(table.batch_sizes[-1])).all()
    assert not table.same_setting(profile_from_dict(json.loads(to_json(profile_to_dict(table)))))


def check_artifact(found: Any) -> None:
    assert found.cost_us.ndim == 1 and np.isfinite(found.cost_us).all() and (found.cost_us >= 0).all()


def check_measurements(journal: Journal) -> None:
    for length in range(4):
        values = journal.get("a", length)
        assert values is None or (len(values) == length and all(0 <= v < math.inf for v in values))


def check_times(found: dict[str, float]) -> None:
    assert all(isinstance(key, str) and 0 < us < math.inf for key, us in found.items())


def saved(array: np.ndarray, **options: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, **options)
    return buffer.getvalue()


@dataclass(frozen=True)
class Loader:
    """How a kind of file is read: a valid one, the call, what must hold of what it gives, and the type of its error.

    Without a type it never raises: it warns, and gives what it would without the file.
    """

    content: bytes
    load: Callable[[Path], Any]
    check: Callable[[Any], None]
    error: type[CheckmateError] | None
    suffix: str = "json"


LOADERS = {
    "graph": Loader(to_json(graph_to_dict(GRAPH)).encode(), read_graph, check_graph, GraphError),
    "schedule": Loader(
        to_json(schedule_to_dict(SCHEDULE)).encode(), lambda p: Schedule.load(p, GRAPH), check_schedule, PlanError
    ),
    "plan": Loader(
        to_json(schedule_to_dict(SCHEDULE)).encode(),
        lambda p: Schedule(GRAPH, Plan.load(p, GRAPH).sequence),
        check_schedule,
        PlanError,
    ),
    "result": Loader(
        to_json(result_to_dict(SCHEDULE)).encode(),
        lambda p: answer_from_dict(load_json(p), GRAPH, str(p)),
        check_answer,
        PlanError,
    ),
    "profile": Loader(to_json(profile_to_dict(PROFILE)).encode(), read_profile, check_profile, CostError),
    "folder of profiles": Loader(
        to_json(profile_to_dict(PROFILE)).encode(),
        lambda p: find_profile(p.parent, "layer", lambda table: "")[1],
        check_profile,
        CostError,
    ),
    "artifact": Loader(saved(np.array([[1.0, 2.0], [0.1, 0.0]])), read_artifact, check_artifact, CostError, "npy"),
    "measurements": Loader(json.dumps(JOURNAL).encode(), lambda p: Journal(p, "here"), check_measurements, None),
    "times": Loader(
        json.dumps({"format": 2, "unit": "us", "us": {"Conv2D f32": 12.5, "MatMul f32": 3}}).encode(),
        times.load,
        check_times,
        None,
    ),
}
JSON = [name for name, loader in LOADERS.items() if loader.suffix == "json"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A folder for the files of each loader."""
    return {name: tmp_path_factory.mktemp(name.replace(" ", "_")) for name in LOADERS}


@pytest.fixture(autouse=True)
def _quiet():
    """Warnings are not kept: there is one for each of many bad files."""
    logging.getLogger("checkmate_tf").setLevel(logging.CRITICAL)
    yield
    logging.getLogger("checkmate_tf").setLevel(logging.NOTSET)


def read(name: str, content: bytes, folder: Path) -> str:
    """Load a file with this content; what was said against it, if anything."""
    loader = LOADERS[name]
    path = folder / f"fuzzed.{loader.suffix}"
    path.write_bytes(content)
    try:
        found = loader.load(path)
    except CheckmateError as error:
        text = str(error)
        assert loader.error is not None and isinstance(error, loader.error)
        assert (path.name in text or folder.name in text) and len(text) < 1500
        text.encode()  # can be printed
        return text
    loader.check(found)
    return ""


@pytest.mark.parametrize("name", LOADERS)
def test_the_valid_files_are_read(name, folders):
    assert not read(name, LOADERS[name].content, folders[name])


# -- any bytes, and damaged files -------------------------------------------------------------------------------------


@pytest.mark.feature("Faults", "fuzzed files of graphs, schedules and profiles")
@pytest.mark.parametrize("name", LOADERS)
@given(content=st.binary(max_size=200))
@settings(max_examples=40)
def test_any_bytes(name, folders, content):
    read(name, content, folders[name])


NESTED = "[" * 5000 + "]" * 5000
FRAGMENTS = st.sampled_from([
    *("NaN", "Infinity", "-Infinity", "1e999", "-1e999", "1e308", "1e300", "-1e300", "5e-324", "0.1", "1.5", "-0.0"),
    *("0", "-1", "1", "2", "3", "7", "99", str(10**12), str(2**63), str(-(2**63)), str(10**400), "9" * 5000, "1.0"),
    *("null", "true", "false", "[]", "{}", '""', '"\\ud800"', '"us"', '"forward"', '"$(id)"', '"\\u0000"', "[null]"),
    *(NESTED, '{"a": ' * 2000 + "1" + "}" * 2000, '{"a": 1, "a": 2}', '[["compute", 0]]', '"' + "x" * 20_000 + '"'),
    *("", "x", "'a'", "0x10", "1_000", "__import__('os')", "// no", "\ufeff1"),
])  # fmt: skip


@st.composite
def damaged_json(draw: st.DrawFn, content: bytes) -> bytes:
    """Up to three places of a document replaced by any text, removed, repeated or given twice; then perhaps cut off."""
    data = json.loads(content)
    texts: dict[str, str] = {}
    for k in range(draw(st.integers(0, 3))):
        place, mark = data, f"@{k}@"
        while isinstance(place, (dict, list)) and place:
            key = draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
            below = place[key]
            if isinstance(below, (dict, list)) and below and draw(st.integers(0, 4)):
                place = below
                continue
            action = draw(st.sampled_from(["replace", "replace", "remove", "repeat", "wrap"]))
            if action == "replace":
                place[key], texts[mark] = mark, draw(FRAGMENTS)
            elif action == "remove":
                del place[key]
            elif action == "wrap":
                place[key] = [below] if draw(st.booleans()) else {str(key): below}
            elif isinstance(place, list):
                place.insert(key, copy.deepcopy(below))
            else:
                place[mark], texts[mark] = copy.deepcopy(below), json.dumps(key)  # the field a second time
            break
    text = json.dumps(data)
    for mark, fragment in texts.items():
        text = text.replace(f'"{mark}"', fragment)
    damaged = text.encode(draw(st.sampled_from(["utf-8", "utf-8", "utf-8", "utf-8-sig", "utf-16", "utf-32-le"])))
    cut = draw(st.one_of(st.just(len(damaged)), st.just(len(damaged)), st.integers(0, len(damaged))))
    return damaged[:cut] + draw(st.sampled_from([b"", b"", b"", b"\x00", b"}", b"\xff"]))


@pytest.mark.feature("Faults", "fuzzed files of graphs, schedules and profiles")
@pytest.mark.parametrize("name", JSON)
@given(data=st.data())
@settings(max_examples=100)
def test_damaged_documents(name, folders, data):
    read(name, data.draw(damaged_json(LOADERS[name].content)), folders[name])


HEADERS = {
    "descr": [
        *("'<f8'", "'<f8'", "'>f4'", "'<i8'", "'|u1'", "'<f2'", "'<f16'", "'|O'", "'O'", "'<U4'", "'<c16'", "'<M8[s]'"),
        *("'|V8'", "[('a', '<f8')]", "[('a', '|O')]", "('<f8', (1000000,))", "3", "None", "'" + "x" * 99 + "'"),
    ],
    "fortran_order": ["False", "False", "True", "1", "None"],
    "shape": [
        *("(3,)", "(3,)", "(2, 3)", "(2, 3)", "()", "(0,)", "(1, 3)", "(-1,)", "(3.0,)", "3", "(True,)", "(2, 0)"),
        *("(1000000000000,)", "(2, 1000000000000)", "(4294967296, 4294967296)", "(2, 2, 3)", "(" * 90 + ")" * 90),
        *("(9" + "9" * 5000 + ",)", "__import__('os').mkdir('trapped')", "-" * 3000 + "1", "(3,)}; {"),
    ],
}


@st.composite
def damaged_array(draw: st.DrawFn) -> bytes:
    """An .npy file with any header, length of header, version and numbers."""
    fields = [
        f"'{key}': {draw(st.sampled_from(choices))}" for key, choices in HEADERS.items() if draw(st.integers(0, 9))
    ]
    header = ("{" + ", ".join(fields) + "}").ljust(draw(st.sampled_from([0, 117, 118]))).encode() + b"\n"
    version = draw(st.sampled_from([1, 1, 1, 2, 3, 0, 9]))
    length = draw(st.sampled_from([len(header), len(header), len(header), 0, 60_000]))
    size = length.to_bytes(2 if version < 2 else 4, "little")
    numbers = np.array(draw(st.lists(st.floats(width=64), max_size=7))).tobytes()
    return b"\x93NUMPY" + bytes([version, 0]) + size + header + numbers + draw(st.binary(max_size=8))


@given(damaged_array())
@settings(max_examples=150)
@pytest.mark.filterwarnings("ignore:overflow encountered", "ignore:.*:SyntaxWarning", "ignore:Reading `.npy`")
def test_damaged_arrays(folders, content):
    folder = folders["artifact"]
    read("artifact", content, folder)
    assert not (folder / "trapped").exists() and not Path("trapped").exists()


# -- no code is run ---------------------------------------------------------------------------------------------------


class Trap:
    """Makes a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.path,)


def traps(path: Path) -> dict[str, bytes]:
    """Files that run code where they are trusted."""
    array = np.array([Trap(path)], dtype=object)
    archive = io.BytesIO()
    np.savez(archive, costs=array)
    source = f"__import__('os').mkdir({str(path)!r})"
    pickles = {f"pickle {p}": pickle.dumps(Trap(path), protocol=p) for p in range(pickle.HIGHEST_PROTOCOL + 1)}
    return {
        **pickles,
        "npy": saved(array, allow_pickle=True),
        "npz": archive.getvalue(),
        "python": source.encode(),
        "yaml": f"!!python/object/apply:os.mkdir [{str(path)!r}]".encode(),
        "text": json.dumps(source).encode(),
    }


@pytest.mark.feature("Faults", "fuzzed files of graphs, schedules and profiles")
@pytest.mark.parametrize("name", LOADERS)
def test_no_file_runs_code(name, folders, tmp_path):
    trap = tmp_path / "trapped"
    for content in traps(trap).values():
        assert read(name, content, folders[name]) or LOADERS[name].error is None
        assert not trap.exists()
    with pytest.raises(FileExistsError):  # they would have
        for content in (traps(trap)["pickle 0"], traps(trap)["pickle 5"]):
            pickle.loads(content)


# -- sizes are bounded ------------------------------------------------------------------------------------------------

HUGE = 10**12
CLAIMS = {
    "graph": [
        {"nodes": HUGE}, {"constant_bytes": HUGE**2}, {"nodes": [{"count": HUGE}]},
        {"nodes": [{"name": "v", "kind": "forward", "cost": 1, "bytes": 8, "inputs": [HUGE]}]},
        {"nodes": [{"name": "v", "kind": "forward", "cost": 1, "bytes": 8, "inputs": HUGE}]},
    ],
    "schedule": [{"graph": {"nodes": HUGE}}, {"plan": HUGE}, {"plan": [["compute", HUGE]]}, {"plan": [[HUGE, 0]]}],
    "result": [{"plan": HUGE}, {"plan": [["compute", HUGE]]}, {"plan": [["deallocate", -HUGE]]}],
    "profile": [{"nodes": HUGE}, {"batch_sizes": HUGE}, {"batch_sizes": [HUGE]}, {"inputs": [[HUGE]]}],
}  # fmt: skip


def peak_of(call: Callable[[], Any]) -> int:
    """Most bytes that Python and NumPy had allocated meanwhile."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("name", "k"), [(name, k) for name, claims in CLAIMS.items() for k in range(len(claims))])
def test_what_is_claimed_is_not_allocated(name, k, folders):
    content = json.dumps(json.loads(LOADERS[name].content) | CLAIMS[name][k]).encode()
    said: list[str] = []
    assert peak_of(lambda: said.append(read(name, content, folders[name]))) < 10 << 20
    assert any(place in said[0] for place in (str(HUGE), "has no field", "plan[0] is a list of 2"))


@pytest.mark.parametrize("shape", ["(1000000000000,)", "(2, 1000000000000)", "(4294967296, 4294967296)"])
def test_arrays_that_promise_more_than_they_hold(shape, folders):
    header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}".ljust(117).encode() + b"\n"
    content = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(64)
    said: list[str] = []
    assert peak_of(lambda: said.append(read("artifact", content, folders["artifact"]))) < 10 << 20
    assert "is not read as an array" in said[0]


@pytest.mark.parametrize("name", JSON)
def test_large_files_are_not_read(name, folders, monkeypatch):
    """A file of more bytes than a loader reads is refused without reading on."""
    for module in ("files.schedules.", "profiles.file.", "costs.cache.", "profiles.journal._"):
        monkeypatch.setattr(f"checkmate_tf.{module}MAX_FILE_BYTES", 1000)
    monkeypatch.setattr(jsonfile.read_json, "__defaults__", (1000,))
    content = LOADERS[name].content + b" " * (1 << 20)
    said: list[str] = []
    assert peak_of(lambda: said.append(read(name, content, folders[name]))) < 1 << 20
    assert "more than 1,000 bytes" in said[0] or LOADERS[name].error is None
    if name == "measurements":
        assert LOADERS[name].load(folders[name] / "fuzzed.json").found == 0
    if name == "times":
        assert not LOADERS[name].load(folders[name] / "fuzzed.json")


def test_reads_of_a_plan_are_bounded(monkeypatch):
    """A short plan may read much, if a node of its graph has many inputs."""
    n = 40
    names, inputs = [f"v{i}" for i in range(n + 2)], [[] for _ in range(n)] + [list(range(n)), []]
    graph = Graph("star", names, np.zeros(n + 2), np.ones(n + 2), np.ones(n + 2), inputs)
    again = [["deallocate", n], ["compute", n]] * 9
    plan = [["compute", i] for i in range(n + 1)] + again + [["compute", n + 1]]
    data = result_to_dict(keep_all(graph)) | {"plan": plan}
    assert answer_from_dict(data, graph).replayed.cost == n + 2 + 9
    monkeypatch.setattr(answers, "_MOST_READS", 10 * n - 1)
    with pytest.raises(PlanError, match=r"bad.json: the plan reads more than 399 values"):
        answer_from_dict(data, graph, "bad.json")


def test_misspellings_are_looked_for_in_few_fields(monkeypatch):
    """An object of a million fields that mean nothing is not compared with each field that there is."""
    compared = []
    monkeypatch.setattr(jsonfile.difflib, "get_close_matches", lambda field, *given: compared.append(field) or [])
    data = graph_to_dict(GRAPH)
    data["nodes"][0] |= {f"field {k}": k for k in range(500)}
    for node in data["nodes"]:
        node["note"] = "the same in every node"
    assert len(graph_from_dict(data)) == len(GRAPH)
    assert len(set(compared)) == len(compared) <= 51


# -- advice -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in JSON if LOADERS[name].error])
def test_what_cannot_be_read_says_what_to_give(name, tmp_path):
    path = tmp_path / "file.json"
    for content in (b"", b"\xff", NESTED.encode(), b"[1, 2", b"{'a': 1}"):
        path.write_bytes(content)
        with pytest.raises(LOADERS[name].error, match=r"file\.json (is not JSON|is nested).*; give a file with "):
            LOADERS[name].load(path)
    if name != "folder of profiles":
        with pytest.raises(LOADERS[name].error, match=r"none\.json' cannot be read: No such file.*; give a file with "):
            LOADERS[name].load(tmp_path / "none.json")


# -- budgets ----------------------------------------------------------------------------------------------------------

SIZES = st.from_regex(r"\A\s?-?[0-9]{0,4}[.,_]?[0-9]{0,30}(e\+?[0-9]{1,5})? ?([kmgtKMGT]?i?[bB]?|%|auto)\Z")


@given(st.one_of(SIZES, SIZES, st.text(max_size=12), st.sampled_from(["auto", "nan", "inf", "1e999GB", "٣GB", "0x10"])))
@settings(max_examples=200)
def test_any_text_is_a_budget_or_refused(text):
    try:
        budget = parse_budget(text)
    except BudgetError as error:
        assert ascii(text) in ascii(str(error)) or repr(text) in str(error)
    else:
        assert isinstance(budget, Budget)
        assert budget.auto or (0 < (budget.fraction or 0) <= 1) or format_bytes(budget.size_bytes)
        assert [budget.auto, budget.fraction is not None, budget.size_bytes is not None].count(True) == 1
    try:
        found = budget_in_bytes(text, GRAPH)
    except BudgetError:
        return
    assert isinstance(found, int) and 0 <= found <= 2**62


@pytest.mark.parametrize(
    ("budget", "says"),
    [
        (10**400, "a number of more than 60 digits is more than"),
        (-(10**400), "not a positive number"),
        (10**5000, "is more than"),
        (Fraction(10**400), "is more than"),
        (2**62 + 1, "is more than 2"),
        ("1e300", "is more than 2"),
        ("9" * 5000, "has 5,000 characters"),
        ("9" * 5000 + "%", "has 5,001 characters"),
        ("9" * 400 + ".5", "has 402 characters"),
        ("9" * 100_000 + "x", "has 100,001 characters"),
    ],
    ids=range(10),
)
def test_budgets_of_any_size(budget, says):
    with pytest.raises(BudgetError, match=says) as caught:
        parse_budget(budget)
    assert len(str(caught.value)) < 300
    if isinstance(budget, str):
        with pytest.raises(BudgetError):
            budget_in_bytes(budget, GRAPH)


def test_times_too_large_for_a_float_are_dropped(tmp_path):
    for unit in times._BOUNDS:
        path = tmp_path / f"{unit}.json"
        path.write_text(
            json.dumps({"format": times._FORMAT, "unit": unit, unit: {"a": 10**400, "b": -(10**400), "c": 2}})
        )
        assert times.load(path, unit) == {"c": 2}
