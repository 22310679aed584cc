"""Graphs as arrays: what a solver's process is given."""

from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
import pytest
from graphs import any_graphs, chain
from hypothesis import given

from checkmate_tf.files.arrays import graph_from_arrays, graph_to_arrays
from checkmate_tf.graph import Graph

COLUMNS = ("kinds", "costs", "sizes", "workspace", "held", "recompute_until")


def through_a_file(graph: Graph, **others) -> Graph:
    file = io.BytesIO()
    np.savez(file, **graph_to_arrays(graph), **others)
    file.seek(0)
    with np.load(file, allow_pickle=False) as arrays:
        return graph_from_arrays(arrays, graph.name)


@given(any_graphs())
def test_all_but_the_names_comes_back(graph):
    found = through_a_file(graph)
    assert (found.name, found.inputs, found.constant_bytes) == (graph.name, graph.inputs, graph.constant_bytes)
    for column in COLUMNS:
        np.testing.assert_array_equal(getattr(found, column), getattr(graph, column))
        assert getattr(found, column).dtype == getattr(graph, column).dtype
    assert found.names == tuple(map(str, range(len(graph))))


def test_more_than_32_bits_and_no_edges():
    graph = Graph("large", ["a"], np.array([0]), np.array([0.1]), np.array([2**50]), [[]], constant_bytes=2**52)
    found = through_a_file(graph)
    assert (found.sizes[0], found.constant_bytes, found.inputs) == (2**50, 2**52, ((),))


def test_other_arrays_are_ignored_and_none_may_be_missing():
    assert through_a_file(chain(2), budget_bytes=7).inputs == chain(2).inputs
    arrays = graph_to_arrays(replace(chain(2), held=np.ones(5)))
    del arrays["held"]
    with pytest.raises(KeyError, match="held"):
        graph_from_arrays(arrays)
