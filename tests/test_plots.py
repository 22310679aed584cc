"""Pictures: of the asked size, with units and legend, without touching a program's own matplotlib."""

import subprocess
import sys

import numpy as np
import pytest
from graphs import chain

from checkmate_tf.plan import COMPUTE
from checkmate_tf.report.plots import Curve, measured_curve, plot_memory, plot_schedule, predicted_curve
from checkmate_tf.schedule import Schedule, keep_all


def png_size(path):
    """Width and height, from the file's header."""
    head = path.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    return int.from_bytes(head[16:20], "big"), int.from_bytes(head[20:24], "big")


@pytest.fixture
def schedule():
    return keep_all(chain(12))


def test_predicted_curve_is_the_evaluators(schedule):
    curve = predicted_curve(schedule, "plain")
    assert len(curve.time_ms) == sum(s.op == COMPUTE for s in schedule.plan)
    assert curve.memory_bytes.max() == schedule.peak_bytes
    scale = 1e-3 if schedule.graph.cost_unit == "us" else 1.0
    assert curve.time_ms[-1] == pytest.approx(schedule.cost * scale)


def test_memory_picture_has_the_asked_size_and_says_what_it_shows(tmp_path, schedule):
    curves = [
        predicted_curve(schedule, "plain, predicted"),
        measured_curve([(0.0, 1e6), (0.001, 3e6), (0.002, 2e6)], "plain, measured"),
    ]
    path = tmp_path / "new" / "memory.png"
    figure = plot_memory(
        curves, path, budget_bytes=2_000_000, limit_bytes=2_200_000, title="A step", size_inches=(6, 4), dpi=50
    )
    assert png_size(path) == (300, 200)
    (axes,) = figure.axes
    assert "(MB)" in axes.get_ylabel()
    assert "(ms)" in axes.get_xlabel()
    texts = " ".join(t.get_text() for t in axes.get_legend().get_texts())
    for part in ("plain, predicted", "plain, measured (peak 3.00 MB)", "budget (2.00 MB)", "hard limit (2.20 MB)"):
        assert part in texts


def test_schedule_picture(tmp_path, schedule):
    path = tmp_path / "schedule.png"
    figure = plot_schedule(schedule, path, size_inches=(8, 3), dpi=40)
    assert png_size(path) == (320, 120)
    assert len(figure.axes) == 3


def test_a_schedule_without_stages_is_drawn_computation_by_computation():
    figure = plot_schedule(Schedule(chain(2), [0, 1, 2, 0, 0, 3, 4]), size_inches=(8, 3), dpi=40)
    computed, kept, _ = figure.axes
    assert computed.get_ylabel() == "computation"
    assert "2 of them again" in computed.get_title(loc="left")
    shown = ~kept.images[0].get_array().all(axis=2)  # rows: computations, columns: nodes
    # The second value of node 0 has no reader: it is gone before the third is computed.
    assert np.argwhere(shown).tolist() == [
        [1, 0],
        [2, 1],
        [3, 1],
        [3, 2],
        [4, 1],
        [4, 2],
        [5, 0],
        [5, 1],
        [5, 2],
        [6, 0],
        [6, 3],
    ]


def test_a_curve_needs_points():
    with pytest.raises(ValueError, match="as many times as memory values"):
        Curve("empty", np.zeros(0), np.zeros(0))


def test_matplotlib_is_imported_late_and_pyplot_never():
    code = """
import sys
import checkmate_tf.report.plots as plots
assert "matplotlib" not in sys.modules
plots.plot_memory([plots.measured_curve([(0, 1), (1, 2)], "a")])
assert "matplotlib.pyplot" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
