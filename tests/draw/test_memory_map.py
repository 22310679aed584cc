"""The map of a memory: every chunk is a rectangle, long stretches are cut, the peak is marked."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from graphs import chain
from memories import memory_of
from reports import report

from checkmate_tf.draw.memory_map import plot_memory_map
from checkmate_tf.errors import OutputError
from checkmate_tf.report import MemoryUse
from checkmate_tf.report.placing import memory_use
from checkmate_tf.schedule import Schedule

MB = 1_000_000
SMALL = {"size_inches": (7, 4), "dpi": 40}


def use(*chunks, **fields):
    """Of (address, size, asked, begin, end, kind, node)."""
    columns = zip(*chunks, strict=True) if chunks else [[]] * 7
    names = ("address", "size", "asked", "begin", "end", "kind", "node")
    values = {"asked_bytes": 9 * MB, "packed_bytes": None, "placed_bytes": 10 * MB, "range_bytes": 12 * MB}
    more = {"out_of_memory": False, "computations": 10, "peak_at": 4.5, "chunks": len(chunks)}
    return MemoryUse(**values, **more, **{k: np.array(v) for k, v in zip(names, columns, strict=True)}, **fields)


FORWARD = (2 * MB, 3 * MB, 3 * MB, 1.0, 8.0, 1, 0)
LOSSY = (5 * MB, 4 * MB, 3 * MB, 2.0, 6.0, 3, 1)
BEFORE = (3 * MB // 2, MB // 2, MB // 2, 0.0, 10.0, 0, -1)


def corners(collection):
    """(begin, end, low, high) of each rectangle."""
    return [(*p.vertices[:, 0][[0, 1]], *p.vertices[:, 1][[0, 2]]) for p in collection.get_paths()]


def texts(axes):
    return [t.get_text() for t in axes.texts]


def test_a_chunk_is_a_rectangle_and_what_it_loses_another():
    axes = plot_memory_map(use(BEFORE, FORWARD, LOSSY), **SMALL).axes[0]
    drawn = {c.get_label(): corners(c) for c in axes.collections}
    assert drawn["there before"] == [(0, 10, 1.5, pytest.approx(2))]
    assert drawn["forward"] == [(1, 8, pytest.approx(2), pytest.approx(5))]
    ((_, _, low, high),) = drawn["backward"]
    ((begin, end, lost, top),) = drawn["lost inside of chunks"]
    assert (begin, end) == (2, 6)
    assert (low, high, lost, top) == pytest.approx((5, 8, 8, 9), abs=1e-3)  # requests are rounded up
    assert "computed again" not in drawn
    assert axes.get_ylabel() == "address (MB)"


def test_the_peak_is_marked():
    axes = plot_memory_map(use(FORWARD), **SMALL).axes[0]
    (line,) = axes.lines
    assert line.get_xdata() == [4.5, 4.5] and line.get_label() == "peak (10.0 MB in use)"


def test_long_stretches_are_cut():
    """500 MB that nobody uses, and 200 MB that stay: the chunks of the step keep their scale."""
    far = (700 * MB, 3 * MB, 3 * MB, 1.0, 8.0, 1, 0)
    large = (0, 200 * MB, 200 * MB, 0.0, 10.0, 0, -1)
    axes = plot_memory_map(use(large, far), **SMALL).axes[0]
    drawn = {c.get_label(): corners(c) for c in axes.collections}
    ((_, _, bottom, edge),) = drawn["there before"]
    ((_, _, low, high),) = drawn["forward"]
    assert bottom == 0 and edge < 1 and low == pytest.approx(edge) and high - low == pytest.approx(3)
    assert texts(axes) == ["200 MB that stay, cut short", "500 MB\nnot used"]
    assert "long stretches cut" in axes.get_ylabel()


def test_holes_that_are_short_or_used_at_times_stay():
    above = (6 * MB, 2 * MB, 2 * MB, 0.0, 1.0, 1, 0)
    between = (4 * MB, 2 * MB, 2 * MB, 5.0, 6.0, 2, 0)
    axes = plot_memory_map(use((0, 4 * MB, 4 * MB, 0.0, 9.0, 1, 0), between, above), **SMALL).axes[0]
    assert not texts(axes) and axes.get_ylim()[1] == pytest.approx(8 * 1.01)


def test_large_chunks_are_named_and_what_is_left_out_is_said():
    found = replace(use(BEFORE, FORWARD, LOSSY), chunks=9)
    axes = plot_memory_map(found, names=["conv$1", "x" * 90], title="net", **SMALL).axes[0]
    assert texts(axes)[0] == "conv$1" and "…" in texts(axes)[1]
    assert axes.get_title(loc="left") == "net: white is free; 6 small or short-lived chunks left out"


def test_nothing_to_draw():
    assert plot_memory_map(use(), **SMALL).axes[0].get_title(loc="left") == "Memory over the step: white is free"


def test_a_report_draws_its_map(tmp_path):
    graph = chain(4)
    schedule = Schedule(graph, [0, 1, 2, 3, 4, 5, 2, 6, 7, 8])
    found = report(schedule, memory_map=memory_use(memory_of(graph), schedule))
    found.plot_memory_map(tmp_path / "map.png", **SMALL)
    assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(OutputError, match="no map of CPU:0"):
        report().plot_memory_map()
