"""A row of the table of orders is put together from the parts of one network, and only if they are of one graph."""

import pytest

from benchmarks.lib.cells import FAILED
from benchmarks.product.orders import BOUND, LEASTS, SYSTEMS, joined


def parts(**changed):
    """All parts of a network; those named have other entries."""
    shared = {"network": "net", "shares": [0.5], "time_limit": 1.0, "outcome": "solved"}
    graph = {"nodes": 9, "constant": 1, "plain_peak": 5}
    return [shared | graph | {"part": part} | changed.get(part, {}) for part in (LEASTS, BOUND, *SYSTEMS)]


def test_parts_of_one_graph_are_a_row():
    (cell,) = joined(parts())
    assert cell["outcome"] == "solved"
    assert joined(parts()[1:]) == []


@pytest.mark.parametrize("entry", ["nodes", "constant", "plain_peak"])
def test_parts_of_different_graphs_are_none(entry):
    (cell,) = joined(parts(**{BOUND: {entry: 0}}))
    assert cell["outcome"] == FAILED and "--again --networks net" in cell["reason"]


def test_a_part_that_failed_says_why():
    failed = {"outcome": FAILED, "reason": "no memory", "nodes": None}
    (cell,) = joined(parts(free=failed))
    assert cell["reason"] == "no memory"


def test_other_budgets_are_refused():
    with pytest.raises(SystemExit, match="other budgets"):
        joined(parts(free={"shares": [0.4]}))
