"""Pictures: of the asked size, with units and legend, without touching a program's own matplotlib."""

import subprocess
import sys

import numpy as np
import pytest
from graphs import chain, unet
from reports import report

from checkmate_tf.draw.canvas import short
from checkmate_tf.draw.cost_plot import layers, plot_costs
from checkmate_tf.draw.graph_plot import places, plot_graph
from checkmate_tf.draw.plots import Curve, measured_curve, plain_curve, plot_memory, plot_schedule, predicted_curve
from checkmate_tf.draw.report_plot import peaks
from checkmate_tf.graph import BACKWARD, Graph
from checkmate_tf.plan import COMPUTE
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


def test_the_plain_curve_is_that_of_keeping_all(schedule):
    found, wanted = plain_curve(schedule.graph), predicted_curve(schedule, "plain")
    assert found.time_ms.tolist() == wanted.time_ms.tolist()
    assert found.memory_bytes.tolist() == wanted.memory_bytes.tolist()


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


def test_a_schedule_plots_itself(tmp_path, schedule):
    figure = schedule.plot(tmp_path / "own.png", size_inches=(8, 3), dpi=40)
    assert png_size(tmp_path / "own.png") == (320, 120)
    assert [axes.get_title(loc="left")[:2] for axes in figure.axes] == ["R:", "S:", "Pr"]


def test_what_is_computed_again_is_marked():
    """Node 2 is computed in stages 2 and 6: one blue cell, one orange."""
    graph = chain(4)
    computed, *_ = plot_schedule(Schedule(graph, [0, 1, 2, 3, 4, 5, 2, 6, 7, 8]), size_inches=(8, 3), dpi=40).axes
    shown = computed.images[0].get_array()
    assert "1 of them again" in computed.get_title(loc="left")
    assert (shown[2, 2] != shown[6, 2]).any()
    assert (shown[2, 2] == shown[3, 3]).all()
    assert (shown[5, 2] == 1).all()


def layered(**fields):
    """A chain of layers with gradients named after them."""
    names = ["a", "b", "c", "loss", "grad_c", "grad_b", "grad_a"]
    given = {"costs": [1.0, 2.0, 3.0, 0.0, 6.0, 4.0, 2.0], "sizes": [10, 20, 30, 4, 30, 20, 10]}
    inputs = [[], [0], [0, 1], [2], [2, 3], [1, 4], [0, 5]]
    kinds = np.array([0, 0, 0, 1, BACKWARD, BACKWARD, BACKWARD])
    columns = {key: np.array(value) for key, value in given.items()}
    return Graph(**{"name": "net", "names": names, "kinds": kinds, "inputs": inputs, **columns, **fields})


def test_gradients_are_drawn_below_their_layers():
    assert places(layered()).tolist() == [[0, 0], [1, 0], [2, 0], [3, 0], [2, -1], [1, -1], [0, -1]]
    unnamed = places(chain(3))  # f0 f1 f2 loss g2 g1 g0: names do not tell
    assert unnamed[4:].tolist() == [[3, -1], [1.5, -1], [0, -1]]
    assert places(layered(kinds=np.full(7, BACKWARD)))[:, 1].tolist() == [0] * 7


def test_graph_picture_names_layers_and_rings_what_is_computed_again(tmp_path):
    counts = [1, 2, 1, 1, 1, 1, 1]
    figure = plot_graph(layered(), tmp_path / "graph.png", counts=counts, size_inches=(6, 3), dpi=40)
    assert png_size(tmp_path / "graph.png") == (240, 120)
    axes, scale = figure.axes
    assert [t.get_text() for t in axes.get_xticklabels()] == ["a", "b", "c", "loss"]
    texts = [t.get_text() for t in axes.get_legend().get_texts()]
    assert texts == ["computed again (1 nodes)", "30 B", "8 B"]
    assert "cost (ms)" in scale.get_ylabel()
    ringed = axes.collections[-3].get_offsets()
    assert ringed.tolist() == [[1, 0]]


def test_layers_add_up():
    found = layers(layered(), [1, 3, 1, 1, 1, 1, 1])
    assert found.names == ("a", "b", "c", "loss")
    assert found.forward.tolist() == [1, 2, 3, 0]
    assert found.backward.tolist() == [2, 4, 6, 0]
    assert found.again.tolist() == [0, 4, 0, 0]
    assert found.forward_bytes.tolist() == [10, 20, 30, 4]
    assert found.backward_bytes.tolist() == [10, 20, 30, 0]
    graph = unet()  # gradients that no layer's name tells are rows of their own; nothing is lost
    rows = layers(graph)
    assert len(rows.names) == len(graph)
    assert rows.forward.sum() + rows.backward.sum() == pytest.approx(graph.base_cost)


def test_cost_picture(tmp_path):
    figure = plot_costs(layered(), tmp_path / "costs.png", counts=[1, 2, 1, 1, 1, 1, 1], dpi=40)
    left, right = figure.axes
    assert left.get_xlabel() == "cost (ms)"
    assert right.get_xlabel() == "size (B)"
    assert [t.get_text() for t in left.get_legend().get_texts()] == ["forward", "backward", "computed again"]
    many = plot_costs(chain(60), size_inches=(6, 4), dpi=40).axes[0]
    assert len(many.get_yticks()) == 30
    assert "smaller layers left out" in many.get_title(loc="left")


@pytest.mark.long(but=("a$b", "two\\nlines"))
@pytest.mark.parametrize("name", ["a$b", "$\\frac$", "two\nlines", "x" * 500, "\x07", ""])
def test_names_are_shown_as_they_are(tmp_path, name):
    """A `$` begins no formula, which matplotlib would refuse to draw."""
    graph = layered(names=[name] * 7, name=name)
    plot_graph(graph, tmp_path / "graph.png", size_inches=(6, 3), dpi=40)
    plot_costs(graph, tmp_path / "costs.png", size_inches=(6, 3), dpi=40)
    plot_schedule(Schedule(graph, range(7), strategy=name), tmp_path / "schedule.png", size_inches=(6, 3), dpi=40)


def test_short_names():
    assert short("conv1") == "conv1"
    assert short("a" * 20 + "b" * 20, 11) == "aaaaa…bbbbb"
    assert short("one\ntwo\x07") == "one two"


def test_report_picture_has_what_was_predicted_and_measured(tmp_path):
    figure = report(training_peak_bytes=5_900_000).plot(tmp_path / "report.png", size_inches=(10, 4), dpi=40)
    assert png_size(tmp_path / "report.png") == (400, 160)
    left, right = figure.axes
    texts = " ".join(t.get_text() for t in left.get_legend().get_texts())
    for part in ("plain, predicted", "plan, measured (5.80 MB)", "while training (5.90 MB)", "budget (6.00 MB)"):
        assert part in texts
    assert [t.get_text() for t in right.texts] == ["10.0 MB", "5.50 MB", "5.80 MB", "5.90 MB"]
    heights = [patch.get_height() for patch in right.patches]
    assert heights[8:] == pytest.approx([8.5, 4.0, 4.3, 4.4])  # MB: what is neither variables nor inputs


def test_report_picture_without_a_measurement_and_with_samples():
    unmeasured = report(measured_peak_bytes=None, not_measured="no statistics")
    assert [size for _, size in peaks(unmeasured)] == [10_000_000, 5_500_000]
    assert len(unmeasured.plot(size_inches=(10, 4), dpi=40).axes[1].texts) == 2
    left = report().plot(samples=[(0.0, 1e6), (0.001, 5.8e6)], size_inches=(10, 4), dpi=40).axes[0]
    assert left.lines[0].get_ydata() == pytest.approx([1.0, 5.8])


def test_a_curve_needs_points():
    with pytest.raises(ValueError, match="as many times as memory values"):
        Curve("empty", np.zeros(0), np.zeros(0))


def test_matplotlib_is_imported_late_and_pyplot_never():
    code = """
import sys
import checkmate_tf.draw.plots as plots
import checkmate_tf.report.page, checkmate_tf.cli.report, checkmate_tf.schedule
assert not {"matplotlib", "tensorflow", "ortools"} & set(sys.modules)
plots.plot_memory([plots.measured_curve([(0, 1), (1, 2)], "a")])
assert "matplotlib.pyplot" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
