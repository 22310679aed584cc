"""What was profiled over batch sizes: the fit, the files, the graphs that take their costs from it."""

from __future__ import annotations

import json
import logging
import math
import os
import pickle

import numpy as np
import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
keras = pytest.importorskip("keras")
from profiles import dense_model, table_of  # noqa: E402

from checkmate_tf.errors import BatchSizeError, CostError  # noqa: E402
from checkmate_tf.layers.graph import layer_graph  # noqa: E402
from checkmate_tf.profiles import file  # noqa: E402
from checkmate_tf.profiles.artifact import graph_with_artifact, read_artifact  # noqa: E402
from checkmate_tf.profiles.file import (  # noqa: E402
    PROFILE_FORMAT,
    find_profile,
    profile_from_dict,
    profile_to_dict,
    read_profile,
    write_profile,
)
from checkmate_tf.profiles.table import FLOOR_US, graph_with_profile, merged  # noqa: E402

# The fit ----------------------------------------------------------------------------------------------------------


def test_the_fit_recovers_a_line():
    batches = (1, 8, 32)
    table = table_of(batches, [[5 + 2.0 * b for b in batches], [0.25 * b for b in batches], [40.0] * 3])
    np.testing.assert_allclose(table.fit(), [[5, 2], [0, 0.25], [40, 0]], atol=1e-9)
    np.testing.assert_allclose(table.costs(100), [205, 25, 40])


def test_the_fit_is_never_negative_nor_falling():
    table = table_of((2, 4), [[1.0, 10.0], [9.0, 3.0], [4.0, 4.0]])
    a, b = table.fit().T
    assert (a >= 0).all() and (b >= 0).all()
    # through the origin, the best slope for (2, 1), (4, 10) is (2 * 1 + 4 * 10) / (4 + 16); of a falling one, the mean
    assert a[0] == 0 and b[0] == pytest.approx(42 / 20)
    assert b[1] == 0 and a[1] == pytest.approx(6)


def test_a_batch_that_was_run_costs_what_was_measured():
    table = table_of((2, 4, 8), [[1.0, 50.0, 3.0], [1.0, 2.0, 3.0], [1.0, 2.0, 3.0]])
    assert table.costs(4)[0] == 50.0
    assert table.costs(np.int64(4))[0] == 50.0
    assert table.origin(4) == "measured at batch 4"
    assert table.origin(6).startswith("fitted") and table.origin(16).startswith("extrapolated")


def test_one_batch_size_is_taken_as_proportional():
    table = table_of((4,), [[8.0], [1e-1], [2.0]])
    np.testing.assert_allclose(table.costs(8), [16, 0.2, 4])
    assert table.costs(1)[1] == FLOOR_US
    assert "proportional" in table.origin(8)


@pytest.mark.parametrize("batch", [0, -1, 2.5, True, "2"])
def test_what_is_no_batch_is_refused(batch):
    with pytest.raises(BatchSizeError):
        table_of().costs(batch)


def test_tables_are_joined_by_batch_size():
    both = merged(table_of((2, 8)), table_of((4, 8), [[10.0, 20.0], [30.0, 40.0], [50.0, 60.0]]))
    assert both.batch_sizes == (2, 4, 8)
    assert both.median_us[0].tolist() == [1.0, 10.0, 20.0]  # of batch 8, the new one
    for change in ({"device": "quipu"}, {"precision": "mixed_float16"}, {"parameters": 9}, {"names": ("a", "b", "c")}):
        with pytest.raises(CostError, match="cannot be joined"):
            merged(table_of(), table_of((8, 16), **change))


@pytest.mark.parametrize(
    "change",
    [
        {"batch_sizes": (4, 2)},
        {"batch_sizes": (2, 4, 8)},
        {"medians": ((0.0, 1.0), (1.0, 1.0), (1.0, 1.0))},
        {"medians": ((math.nan, 1.0), (1.0, 1.0), (1.0, 1.0))},
        {"level": "galaxy"},
        {"kinds": ("forward",)},
    ],
)
def test_tables_that_make_no_sense_are_refused(change):
    with pytest.raises(CostError):
        table_of(**change)


# Files ------------------------------------------------------------------------------------------------------------


def test_a_file_gives_back_what_was_written(tmp_path):
    table = table_of()
    write_profile(table, tmp_path / "p.json")
    again = read_profile(tmp_path / "p.json")
    assert not table.same_setting(again) and again.batch_sizes == table.batch_sizes
    for key in ("median_us", "spread_us", "repetitions"):
        np.testing.assert_array_equal(getattr(again, key), getattr(table, key))
    document = json.loads((tmp_path / "p.json").read_text())
    assert document["format"] == PROFILE_FORMAT and document["unit"] == "us"
    assert document["nodes"][2] == {
        "name": "grad_dense",
        "kind": "backward",
        "median": [7.0, 11.0],
        "spread": [0.5, 0.5],
        "repetitions": [3, 3],
    }


def _at(document, *place, value):
    for key in place[:-1]:
        document = document[key]
    document[place[-1]] = value


@pytest.mark.feature("Faults", "fuzzed files of graphs, schedules and profiles")
@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        (("format",), "checkmate-profile/2", "not a profile"),
        (("unit",), "ms", "unit is 'ms'"),
        (("level",), "block", "level is 'block'"),
        (("batch_sizes",), [4, 2], "ascending"),
        (("batch_sizes",), [0, 4], "batch_sizes is 0"),
        (("batch_sizes",), [], "batch_sizes is a list of 0"),
        (("versions",), {"keras": 3}, "versions"),
        (("inputs",), [["three"]], "inputs is 'three'"),
        (("parameters",), True, "parameters is True"),
        (("nodes",), {}, "nodes is an object"),
        (("nodes", 1), 3, "node 1 is 3"),
        (("nodes", 1, "kind"), "sideways", r"node 1 \('loss'\): kind is 'sideways'"),
        (("nodes", 1, "median"), [1.0], r"node 1 \('loss'\): median is a list of 1"),
        (("nodes", 1, "median"), [1.0, 0], "above 0"),
        (("nodes", 1, "median"), [1.0, "2"], "median is '2'"),
        (("nodes", 1, "median"), [1.0, 1e30], "an hour"),
        (("nodes", 1, "spread"), [1.0, -1.0], "spread is -1.0"),
        (("nodes", 1, "repetitions"), [1, 1.5], "repetitions is 1.5"),
        (("nodes", 2, "name"), 7, "node 2: name is 7"),
        (("model",), "m" * 20_000, "10,000 characters"),
    ],
)
def test_malformed_profiles_name_the_place(place, value, said):
    document = profile_to_dict(table_of())
    _at(document, *place, value=value)
    with pytest.raises(CostError, match=said):
        profile_from_dict(document, "shared.json")


@pytest.mark.parametrize("field", ["model", "inputs", "nodes", "unit", "precision"])
def test_missing_fields_are_named(field):
    document = profile_to_dict(table_of())
    del document[field]
    with pytest.raises(CostError, match=f"no field '{field}'"):
        profile_from_dict(document)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[1, 2", "not JSON"),
        ('{"a": 1, "a": 2}', "twice"),
        ("[NaN]", "NaN"),
        ("[" * 100_000, "nested|JSON"),
        ("3", "not a"),
    ],
)
def test_files_that_are_no_profiles_are_refused(tmp_path, text, said):
    path = tmp_path / "p.json"
    path.write_text(text)
    with pytest.raises(CostError, match=said):
        read_profile(path)


def test_large_and_missing_files_are_refused(tmp_path, monkeypatch):
    with pytest.raises(CostError, match="cannot be read"):
        read_profile(tmp_path / "none.json")
    write_profile(table_of(), tmp_path / "p.json")
    monkeypatch.setattr(file, "MAX_FILE_BYTES", 100)
    with pytest.raises(CostError, match="more than 100 bytes"):
        read_profile(tmp_path / "p.json")


def test_a_folder_gives_the_profile_that_serves(tmp_path, caplog):
    serves = lambda table: "" if table.parameters == 8 else "another number of parameters"  # noqa: E731
    with pytest.raises(CostError, match="holds no profiles"):
        find_profile(tmp_path, "layer", serves)
    (tmp_path / "graph.json").write_text('{"format": "checkmate-graph/1"}')
    write_profile(table_of(parameters=9), tmp_path / "other.json")
    write_profile(table_of(level="op"), tmp_path / "ops.json")
    with pytest.raises(CostError, match=r"ops.json: it is at op level; .*other.json: another number|other.*ops"):
        find_profile(tmp_path, "layer", serves)
    write_profile(table_of(), tmp_path / "this.json")
    assert find_profile(tmp_path, "layer", serves)[0].name == "this.json"
    (tmp_path / "damaged.json").write_text('{"format": "checkmate-profile/1"}')
    (tmp_path / "text.json").write_text("not JSON")
    with caplog.at_level(logging.WARNING):
        assert find_profile(tmp_path, "layer", serves)[0].name == "this.json"
    assert "damaged.json has no field" in caplog.text and "text.json is not JSON" in caplog.text
    with pytest.raises(CostError, match="text.json is not JSON"):
        find_profile(tmp_path / "text.json", "layer", serves)
    write_profile(table_of(), tmp_path / "twin.json")
    with pytest.raises(CostError, match="several"):
        find_profile(tmp_path, "layer", serves)


# Graphs with profiles ---------------------------------------------------------------------------------------------


def test_a_graph_takes_the_costs_of_its_profile():
    graph = layer_graph(dense_model(), 4)
    names = tuple(name.replace("dense", "dense_77") for name in ("dense", "loss", "grad_dense"))
    costed = graph_with_profile(graph, table_of(names=names), 4)  # Keras counts layers anew in each process
    assert costed.costs.tolist() == [2, 5, 11] and costed.cost_unit == "us"
    with pytest.raises(CostError, match="node 0 is 'conv'"):
        graph_with_profile(graph, table_of(names=("conv", "loss", "grad_conv")), 4)
    with pytest.raises(CostError, match="has 2 nodes"):
        graph_with_profile(graph, table_of(medians=((1.0, 2.0), (3.0, 4.0))), 4)
    with pytest.raises(CostError, match="op level"):
        graph_with_profile(graph, table_of(level="op"), 4)


def test_profiles_of_the_artifact_are_read(tmp_path):
    graph = layer_graph(dense_model(), 256)
    np.save(tmp_path / "b256_p32xlarge.npy", np.array([[1.5, 0.0, 3.0], [0.1, 0.0, 0.3]]))
    found = read_artifact(tmp_path / "b256_p32xlarge.npy")
    assert found.cost_us.tolist() == [1.5, 0, 3] and found.deviation_us.tolist() == [0.1, 0, 0.3]
    assert found.batch_size == 256
    costed = graph_with_artifact(graph, tmp_path / "b256_p32xlarge.npy", 256)
    assert costed.costs.tolist() == [1.5, 0, 3] and costed.cost_unit == "us"
    with pytest.raises(CostError, match="batch 256 by its name"):
        graph_with_artifact(graph, tmp_path / "b256_p32xlarge.npy", 128)
    np.save(tmp_path / "costs.npy", np.array([1, 2, 3]))
    assert read_artifact(tmp_path / "costs.npy").deviation_us is None
    assert read_artifact(tmp_path / "costs.npy").batch_size is None
    np.save(tmp_path / "VGG16_32_p32xlarge.npy", np.ones(77))
    assert read_artifact(tmp_path / "VGG16_32_p32xlarge.npy").batch_size == 32
    with pytest.raises(CostError, match="costs of 77 nodes, but the graph of .* has 3"):
        graph_with_artifact(graph, tmp_path / "VGG16_32_p32xlarge.npy", 32)


class _Trap:
    """Runs code when it is unpickled."""

    def __reduce__(self):
        return os.mkdir, ("trapped",)


@pytest.mark.parametrize(
    ("array", "said"),
    [
        (np.ones((3, 2)), r"shape \(3, 2\)"),
        (np.ones((0,)), r"shape \(0,\)"),
        (np.array([1, np.nan, 2]), "cost of node 1 is nan"),
        (np.array([[1.0, 2.0], [0.0, -1.0]]), "deviation of node 1 is -1.0"),
        (np.array(["a"]), "array of numbers"),
        (np.array([1 + 1j]), "array of numbers"),
    ],
)
def test_arrays_that_are_no_costs_are_refused(tmp_path, array, said):
    np.save(tmp_path / "a.npy", array)
    with pytest.raises(CostError, match=said):
        read_artifact(tmp_path / "a.npy")


@pytest.mark.feature("Faults", "no code is run from a file")
def test_arrays_never_run_code(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save(tmp_path / "object.npy", np.array([_Trap()], dtype=object), allow_pickle=True)
    (tmp_path / "pickle.npy").write_bytes(pickle.dumps(_Trap()))
    header = np.lib.format.magic(1, 0) + b"\x76\x00{'descr': '<f8', 'fortran_order': False, 'shape': (99999999999,), }"
    (tmp_path / "promise.npy").write_bytes(header.ljust(128))
    (tmp_path / "empty.npy").write_bytes(b"")
    for name in ("object.npy", "pickle.npy", "promise.npy", "empty.npy", "missing.npy"):
        with pytest.raises(CostError):
            read_artifact(tmp_path / name)
    assert not (tmp_path / "trapped").exists()
