"""What a schedule does to a memory, as a value: the four numbers, and where chunks lie."""

from __future__ import annotations

import json
from dataclasses import fields, replace

import numpy as np
import pytest
from graphs import chain, unet
from hypothesis import given, settings
from hypothesis import strategies as st
from memories import memory_of

from checkmate_tf.errors import PlanError
from checkmate_tf.graph import BACKWARD as GRADIENT
from checkmate_tf.report.memory_use import AGAIN, BACKWARD, BEFORE, FORWARD, MemoryUse
from checkmate_tf.report.placing import memory_use, placed_fields
from checkmate_tf.schedule import Schedule, keep_all

KB = 1024
AGAIN_2 = [0, 1, 2, 3, 4, 5, 2, 6, 7, 8]


def scaled(graph, by=KB):
    return replace(graph, sizes=graph.sizes * by, workspace=graph.workspace * 0)


@pytest.fixture(scope="module")
def schedule():
    return Schedule(scaled(chain(4)), AGAIN_2)


def test_the_numbers_are_those_of_the_model(schedule):
    memory = memory_of(schedule.graph, there=(10 * KB, 5 * KB))
    found = memory_use(memory, schedule)
    placed = memory.placed(schedule.sequence)
    assert (found.placed_bytes, found.asked_bytes) == (placed.peak_bytes, placed.asked_bytes)
    assert 15 * KB < found.asked_bytes <= found.packed_bytes
    assert found.asked_bytes <= found.placed_bytes <= found.range_bytes
    assert not found.out_of_memory
    assert memory_use(memory, schedule, packing=False).packed_bytes is None


def test_every_chunk_has_a_kind_a_node_and_a_time(schedule):
    found = memory_use(memory_of(schedule.graph, there=(10 * KB, 5 * KB)), schedule)
    assert found.computations == 10 and found.chunks == len(found.address) == 11
    old = found.kind == BEFORE
    assert found.size[old].tolist() == [15 * KB], "neighbours that stay are one"
    assert (found.begin[old], found.end[old], found.node[old], found.address[old]) == (0, 10, -1, 0)
    assert found.node[~old].tolist() == AGAIN_2
    assert found.begin[~old].astype(int).tolist() == list(range(10))
    expected = [BACKWARD if k == GRADIENT else FORWARD for k in schedule.graph.kinds[AGAIN_2]]
    expected[6] = AGAIN
    assert found.kind[~old].tolist() == expected
    assert (found.asked <= found.size).all()


def test_a_batch_that_comes_in_the_step_was_there_before_it(schedule):
    """Node 10 is the batch; the first node reads it."""
    memory = memory_of(schedule.graph)
    given = memory.kernels
    kernels = given._replace(
        operations=np.append(given.operations, given.operations[-1] + 1),
        outputs=np.append(given.outputs, given.outputs[-1] + 1),
        reads=np.append(given.reads + (np.arange(len(given.reads)) > 0), given.reads[-1] + 1),
        read=np.insert(given.read, 0, len(given.bytes)),
        bytes=np.append(given.bytes, 3 * KB),
        pieces=np.append(given.pieces, 1),
        kept=np.append(given.kept, False),
        takes_over=np.append(given.takes_over, -1),
        workspaces=np.append(given.workspaces, given.workspaces[-1]),
        before=np.append(given.before, 0),
    )
    found = memory_use(replace(memory, kernels=kernels, first=len(given.operations) - 1), schedule)
    batch = found.kind == BEFORE
    assert (found.size[batch], found.node[batch]) == (3 * KB, -1)
    assert found.begin[batch] == 0 and 0 < found.end[batch] < 1
    assert found.computations == 10 and found.node[~batch].tolist() == AGAIN_2


def test_the_peak_is_where_the_most_is_in_use(schedule):
    found = memory_use(memory_of(schedule.graph, there=(KB,)), schedule)
    assert found.size[(found.begin <= found.peak_at) & (found.peak_at < found.end)].sum() == found.placed_bytes


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=9, max_size=9))
def test_chunks_that_are_in_use_at_a_time_do_not_overlap(sizes):
    graph = replace(scaled(chain(4)), sizes=np.array(sizes) * 300)
    found = memory_use(memory_of(graph), Schedule(graph, AGAIN_2))
    for i in range(len(found.address)):
        for j in range(i):
            together = found.begin[i] < found.end[j] and found.begin[j] < found.end[i]
            ends = found.address + found.size
            assert not together or ends[i] <= found.address[j] or ends[j] <= found.address[i]


def test_a_node_without_operations_is_passed_over(schedule):
    """Nodes beyond the kernels', or with nothing to allocate, shift nothing."""
    sizes = schedule.graph.sizes.copy()
    sizes[1] = 0
    graph = replace(schedule.graph, sizes=sizes)
    found = memory_use(memory_of(graph), Schedule(graph, AGAIN_2))
    assert found.node.tolist() == [k for k in AGAIN_2 if k != 1]


def test_out_of_memory_is_told(schedule):
    found = memory_use(memory_of(schedule.graph, limit_bytes=2 * KB), schedule)
    assert found.out_of_memory and found.chunks < 10


def test_of_many_chunks_the_largest_are_kept(monkeypatch):
    monkeypatch.setattr("checkmate_tf.report.placing._CHUNKS", 5)
    graph = unet()
    found = memory_use(memory_of(graph, 1 << 40), keep_all(graph))
    assert len(found.address) == 5 and found.chunks == len(graph)


def test_json_brings_it_back(schedule):
    found = memory_use(memory_of(schedule.graph, there=(KB,)), schedule)
    again = MemoryUse.from_dict(json.loads(found.to_json()))
    for field in fields(found):
        assert getattr(again, field.name) == pytest.approx(getattr(found, field.name), abs=1e-3), field.name


def test_arrays_belong_together_and_are_read_only(schedule):
    found = memory_use(memory_of(schedule.graph), schedule)
    with pytest.raises(ValueError, match="read-only"):
        found.address[0] = 1
    with pytest.raises(PlanError, match="one entry for each"):
        replace(found, kind=found.kind[1:])
    with pytest.raises(PlanError, match="ends before it begins"):
        replace(found, end=found.begin - 1)


def test_fields_of_a_report(schedule):
    found = placed_fields(memory_of(schedule.graph), schedule)
    assert found["placed_peak_bytes"] == found["memory_map"].placed_bytes
    assert found["packed_peak_bytes"] == found["memory_map"].packed_bytes
    assert set(placed_fields(None, schedule).values()) == {None}
