"""Random layered graphs have the numbers asked for, and are the same for the same seed."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkmate_tf.graph import FORWARD
from checkmate_tf.schedule import keep_all
from checkmate_tf.strategies.random_graphs import layered, usual_edges

TABLE2 = {(100, 236): 41_687, (250, 944): 132_156, (500, 2461): 255_995, (1000, 5875): 547_757}
"""Nodes, edges: 90% of the peak of the one graph of that size in Moccasin, table 2 (appendix A.1)."""


@pytest.mark.parametrize("shape", TABLE2)
def test_the_sizes_of_the_paper(shape):
    peaks = []
    for seed in range(4):
        graph = layered(*shape, seed)
        assert (len(graph), len(graph.edges)) == shape
        peaks.append(keep_all(graph).peak_bytes)
    assert 0.6 < np.mean(peaks) / (TABLE2[shape] / 0.9) < 1.7


@settings(max_examples=60, deadline=None)
@given(st.integers(20, 120), st.floats(2.4, 3.2), st.integers(0, 99))
def test_any_number_of_nodes_and_edges(n, degree, seed):
    m = round(degree * n)
    graph = layered(n, m, seed)
    assert (len(graph), len(graph.edges)) == (n, m)  # each reads nodes before it: Graph checks that it is acyclic
    assert (graph.kinds == FORWARD).all()
    assert (graph.sizes >= 0).all() and (graph.costs >= 1).all()
    assert graph.costs == pytest.approx(graph.sizes / 10 + 1, abs=1)
    again, other = layered(n, m, seed), layered(n, m, seed + 1)
    assert again.inputs == graph.inputs and (again.sizes == graph.sizes).all() and (again.costs == graph.costs).all()
    assert other.inputs != graph.inputs


def test_layers_are_joined():
    graph = layered(250, 944)
    depth = np.zeros(250, dtype=int)
    for j, row in enumerate(graph.inputs):
        depth[j] = max((depth[i] + 1 for i in row), default=0)
    assert 10 < depth.max() < 40  # ceil(sqrt(250 (1 / W - 1))) layers, W in [0.25, 0.5]: 16 to 28, and unequal ones
    lone = [i for i in range(250) if not graph.inputs[i] and not graph.users[i]]
    assert not lone


def test_sizes_are_the_mixture_of_the_paper():
    sizes = layered(1000, 5875).sizes / 1000
    assert sizes.mean() == pytest.approx(0.3 * 0.5 + 0.3 * 1 + 0.3 * 3 + 0.1 * 5, rel=0.1)


@pytest.mark.parametrize("shape", [(0, 0), (5, -1), (10, 3), (10, 1000)])
def test_what_does_not_exist_is_refused(shape):
    with pytest.raises(ValueError, match="nodes"):
        layered(*shape)


@pytest.mark.parametrize(("n", "m"), [(100, 236), (250, 944), (500, 2461), (1000, 5875)])
def test_the_usual_number_of_edges_is_that_of_the_paper(n, m):
    """Bartan et al., table 2."""
    assert usual_edges(n) == pytest.approx(m, rel=0.03)


@pytest.mark.parametrize("n", [6, 7, 10, 25, 60, 300])
def test_graphs_of_any_size_can_be_drawn_with_the_usual_edges(n):
    assert len(layered(n, usual_edges(n)).edges) == usual_edges(n)
