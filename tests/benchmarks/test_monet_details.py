"""The benchmark of MONeT's details: kinds of ways are told apart, and times are read from the course of a solve."""

import keras
import pytest

from benchmarks.figures import monet_details
from benchmarks.figures.monet_details import KINDS, SYSTEMS, answer, of_kinds, of_paces
from checkmate_tf.layers.operators import layer_operators

L = keras.layers


@pytest.fixture(autouse=True)
def small_network(monkeypatch):
    x = inputs = keras.Input((16, 16, 3))
    for width in (8, 16, 16):
        x = L.MaxPool2D()(L.ReLU()(L.BatchNormalization()(L.Conv2D(width, 3, padding="same")(x))))
    model = keras.Model(inputs, L.Dense(4)(L.Flatten()(x)))
    monkeypatch.setattr(monet_details, "operators_of", lambda name: layer_operators(model, 16))
    monkeypatch.setattr(monet_details, "SHARE", 0.8)
    monkeypatch.setitem(monet_details.NETWORKS, "small", ("small", 16))


def asked(run, what):
    request = {"network": "small", "run": run, "what": what, "limit": 1.0}
    return request | answer(request)


@pytest.mark.long
def test_each_kind_takes_ways_of_its_own_only():
    cells = {kind: asked("ways", kind) for kind in KINDS}
    for kind, cell in cells.items():
        allowed = KINDS[kind]
        assert cell["outcome"] == "solved" and cell["peak_bytes"] <= cell["budget_bytes"]
        assert allowed is None or set(cell["ways"]) <= set(allowed)
    assert not cells["no ways"]["ways"]
    assert cells["all ways"]["overhead"] <= cells["no ways"]["overhead"] + 1e-9
    text = of_kinds(list(cells.values()))
    assert "| small |" in text and text.count("%") >= len(KINDS)


def test_a_course_begins_and_ends_with_the_step(monkeypatch):
    monkeypatch.setattr(monet_details, "ALONG", "small")
    cell = asked("ways", "no ways")
    ends, memory = zip(*cell["course"], strict=True)
    assert list(ends) == sorted(ends) and max(memory) == cell["peak_bytes"]
    assert max(live for _, live in cell["plain_course"]) == cell["plain_bytes"]


@pytest.mark.long
def test_every_system_is_timed():
    cells = [asked("pace", system) for system in SYSTEMS]
    assert cells[-1]["outcome"] == "solved"  # ours: the others may find nothing in that time
    for cell in (c for c in cells if c["outcome"] == "solved"):
        assert cell["course"][-1][1] == cell["cost"]
        assert all(a[0] <= b[0] + 0.1 for a, b in zip(cell["course"], cell["course"][1:], strict=False))
    text = of_paces(cells)
    assert "Table 5" in text and "Table 6" in text and text.count("| small, 80% of") == 2


def test_times_are_to_the_best_bound_of_the_same_program():
    """Seconds until within 5% and 2% of it; what never comes so near says how far it was."""
    shared = {"network": "small", "budget_bytes": 1, "plain_bytes": 2, "base_cost": 100.0, "outcome": "solved"}
    near = {**shared, "what": "checkmate", "course": [[1.0, 120.0, 100.0], [2.0, 115.0, 110.0], [3.0, 112.0, 110.0]]}
    far = {**shared, "what": "problem9", "course": [[9.0, 130.0, 105.0]], "cost": 130.0, "seconds": 9.0}
    text = of_paces([far, {**near, "cost": 112.0, "seconds": 3.0}])
    five, two = (line for line in text.splitlines() if line.startswith("| small"))
    assert "2.0 s" in five and "3.0 s" in two and "never, 18% in 9 s" in five
