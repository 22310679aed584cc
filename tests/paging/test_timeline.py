"""Graphs with copies to the host, what plans with copies take, and when everything in them happens."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from graphs import training
from hypothesis import given, settings
from hypothesis import strategies as st

from checkmate_tf.errors import GraphError, PlanError, StrategyError
from checkmate_tf.files.arrays import graph_to_arrays
from checkmate_tf.files.graphs import graph_to_dict
from checkmate_tf.graph import FORWARD, Graph, Host
from checkmate_tf.paging import timeline, with_host, without_host
from checkmate_tf.plan import COMPUTE, evaluate, plan_from_sequence
from checkmate_tf.schedule import Schedule, keep_all
from checkmate_tf.strategies import solve

MIB = 1 << 20


def small(costs=(1, 1, 1, 1, 1, 1)) -> Graph:
    """a -> b -> c -> d (loss) -> e (reads b) -> f (reads a); each value takes 4 MiB."""
    inputs = [[], [0], [1], [2], [1, 3], [0, 4]]
    return Graph("small", list("abcdef"), [0, 0, 0, 1, 2, 2], costs, [4 * MIB] * 6, inputs)


def paged(graph: Graph, *, to_host: float = 4 * MIB, from_host: float = 2 * MIB) -> Graph:
    return with_host(graph, to_host, from_host)


def test_forward_values_that_are_read_late_can_be_copied():
    graph = paged(small())
    assert graph.names[6:] == ("a to the host", "b to the host")
    assert graph.copies == {0: 6, 1: 7}
    assert graph.host.to_host.tolist() == [1, 1]
    assert graph.host.from_host.tolist() == [2, 2]
    assert graph.readers == (*small().users,) + ((), ())
    assert graph.base_cost == small().base_cost


def test_small_values_and_gradients_stay():
    graph = replace(small(), sizes=[MIB - 1, *[4 * MIB] * 5])
    assert paged(graph).copies == {1: 6}
    chosen = with_host(training([[], [0], [1]], [1, 1, 1], [4, 4, 4]), 1.0, 1.0, least_bytes=1).copies
    assert all(training([[], [0], [1]], [1, 1, 1], [4, 4, 4]).kinds[i] == FORWARD for i in chosen)


def test_a_latency_is_part_of_each_copy():
    host = with_host(small(), 4 * MIB, 2 * MIB, latency=0.5).host
    assert host.to_host.tolist() == [1.5, 1.5]
    assert host.from_host.tolist() == [2.5, 2.5]


def test_without_host_is_the_graph_before():
    graph = replace(small(), recompute_until=[6, 3, 6, 0, 6, 0])
    again = without_host(paged(graph))
    assert without_host(graph) is graph
    for key in ("names", "inputs", "waits", "users", "cost_unit", "constant_bytes"):
        assert getattr(again, key) == getattr(graph, key)
    for key in ("kinds", "costs", "sizes", "workspace", "held", "recompute_until"):
        assert np.array_equal(getattr(again, key), getattr(graph, key))


@pytest.mark.parametrize(
    "host",
    [
        Host(6, np.ones(1), np.ones(1)),  # two nodes copy
        Host(5, np.ones(3), np.ones(3)),  # one of them computes
        Host(8, np.ones(0), np.ones(0)),  # those that copy take no memory, but are nodes
    ],
)  # fmt: skip
def test_nodes_that_copy_are_checked(host):
    graph = paged(small())
    if host.first == 8:
        host, graph = Host(6, np.ones(2), np.ones(2)), replace(graph, host=None, sizes=[4 * MIB] * 8)
    with pytest.raises(GraphError, match="no copies of a value each"):
        replace(graph, host=host)


def test_a_value_has_one_copy():
    graph = paged(small())
    with pytest.raises(GraphError, match="no copies of a value each"):
        replace(graph, inputs=[*graph.inputs[:6], (0,), (0,)])


def test_bad_rates_and_second_hosts_are_refused():
    for bad in ((0.0, 1.0, 0.0), (1.0, np.inf, 0.0), (1.0, np.nan, 0.0), (1.0, 1.0, -1.0)):
        with pytest.raises(GraphError, match="rates above 0"):
            with_host(small(), *bad[:2], latency=bad[2])
    with pytest.raises(GraphError, match="already"):
        paged(paged(small()))


def test_a_value_leaves_and_comes_back():
    graph = paged(small())
    plan = plan_from_sequence(graph, [0, 1, 6, 2, 3, 4, 0, 5])
    found = evaluate(graph, plan)
    assert (found.memory // MIB).tolist() == [4, 8, 8, 8, 12, 12, 8, 12]
    times = timeline(graph, plan)
    assert times.starts.tolist() == [0, 1, 1, 2, 3, 4, 5, 7]  # its copy begins when it is computed
    assert times.ends.tolist() == [1, 2, 2, 3, 4, 5, 7, 8]
    assert times.waits == {0: 2.0}
    assert (found.cost, found.overhead) == (8.0, pytest.approx(1 / 3))  # the last one waits for it
    assert found.counts.tolist() == [1, 1, 1, 1, 1, 1, 1, 0]


def test_a_value_that_comes_early_is_not_waited_for():
    graph = paged(small())
    early = evaluate(graph, plan_from_sequence(graph, [0, 1, 6, 2, 0, 3, 4, 5]))
    assert (early.cost, early.overhead) == (6.0, 0.0)
    assert early.peak_bytes == 16 * MIB


def test_what_takes_the_memory_of_a_copy_waits_for_it():
    graph = paged(small(), to_host=MIB)  # four units for a copy
    plan = plan_from_sequence(graph, [0, 1, 6, 2, 3, 4, 0, 5])
    assert evaluate(graph, plan).cost == 5 + 3 + 2 + 1
    assert timeline(graph, plan).waits == {0: 3.0 + 2.0}


def test_copies_go_one_after_another():
    graph = paged(small(), to_host=2 * MIB)  # two units for a copy: from 1 to 3, and from 3 to 5
    times = timeline(graph, plan_from_sequence(graph, [0, 1, 2, 7, 6, 3, 1, 4, 0, 5]))
    at = dict(zip([0, 1, 2, 7, 6, 3], zip(times.starts.tolist(), times.ends.tolist(), strict=False), strict=False))
    assert (at[6], at[7], at[3]) == ((1, 3), (3, 5), (5, 6))


def test_a_copy_may_be_left_out_and_then_the_value_is_computed_again():
    graph = paged(small())
    found = evaluate(graph, plan_from_sequence(graph, [0, 1, 2, 3, 4, 0, 5]))
    assert (found.cost, found.counts.tolist()) == (7.0, [2, 1, 1, 1, 1, 1, 0, 0])
    assert keep_all(graph).sequence.tolist() == [0, 1, 2, 3, 4, 5]


def test_effects_forbid_to_compute_again_but_not_to_bring_back():
    graph = paged(replace(small(), recompute_until=[0] * 6))
    plan_from_sequence(graph, [0, 1, 6, 2, 3, 4, 0, 5])
    assert Schedule(graph, [0, 1, 6, 2, 3, 4, 0, 5]).cost == 8.0
    with pytest.raises(PlanError, match="may not be computed again"):
        evaluate(graph, plan_from_sequence(graph, [0, 1, 2, 3, 4, 0, 5]))


def test_a_plan_that_reads_what_is_gone_is_refused():
    graph = paged(small())
    with pytest.raises(PlanError):
        evaluate(graph, plan_from_sequence(graph, [6, 0, 1, 2, 3, 4, 5]))
    plan = list(plan_from_sequence(graph, [0, 1, 6, 2, 3, 4, 0, 5]))
    wrong = [s._replace(reads=()) if s.op == COMPUTE and s.register == 6 else s for s in plan]
    with pytest.raises(PlanError, match="not in memory"):
        evaluate(graph, wrong)


def test_what_is_brought_back_needs_no_workspace():
    graph = paged(replace(small(), workspace=[8 * MIB, 0, 0, 0, 0, 0]))
    found = evaluate(graph, plan_from_sequence(graph, [0, 1, 6, 2, 3, 4, 0, 5]))
    assert found.memory[0] == 12 * MIB
    assert found.memory[6] == 8 * MIB


def test_a_copy_that_is_waited_for_late_keeps_its_reader_from_computing_in_place():
    """b computes into the memory of a, which only it reads: not while a is being copied."""
    fields = {"workspace": [0, -4 * MIB, 0, 0], "held": [0, 4 * MIB, 0, 0]}
    graph = Graph("inplace", list("abcd"), [0, 0, 1, 2], [1] * 4, [4 * MIB] * 4, [[], [0], [1], [2]], **fields)
    host = Host(4, np.ones(1), np.ones(1))
    graph = replace(
        graph, names=list("abcd") + ["a to the host"], kinds=[0, 0, 1, 2, 0], costs=[1, 1, 1, 1, 0],
        sizes=[4 * MIB] * 4 + [0], inputs=[[], [0], [1], [2], [0]], workspace=[0, -4 * MIB, 0, 0, 0],
        held=[0, 4 * MIB, 0, 0, 0], recompute_until=[5] * 5, waits=[()] * 5, host=host,
    )  # fmt: skip
    before = evaluate(graph, plan_from_sequence(graph, [0, 4, 1, 2, 3])).memory
    after = evaluate(graph, plan_from_sequence(graph, [0, 1, 4, 2, 3])).memory
    assert (before[2], after[1]) == (4 * MIB, 8 * MIB)


def test_files_of_graphs_have_no_copies():
    for write in (graph_to_dict, graph_to_arrays):
        with pytest.raises(GraphError, match="without_host"):
            write(paged(small()))


def test_only_the_default_strategy_knows_of_copies():
    with pytest.raises(StrategyError, match="knows nothing of copies"):
        solve(paged(small()), "1GB", "chen-sqrt")


# A second opinion -----------------------------------------------------------------------------------------------------


def played(graph: Graph, sequence: list[int]) -> tuple[float, int]:
    """When a plan ends, and its peak: three queues that serve their items in turn, moment by moment."""
    first, copies = graph.first_copy, graph.copies
    versions: dict[int, int] = {}
    jobs: list[dict] = []
    for place, node in enumerate(sequence):
        copy = copies.get(node)
        known = node in versions and copy in versions
        kind = "out" if node >= first else "in" if known else "compute"
        reads = [] if kind != "compute" else [versions[i] for i in graph.inputs[node]]
        jobs.append({"kind": kind, "node": node, "reads": reads, "copy": versions.get(copy) if known else None})
        versions[node] = place
        if kind == "out":
            jobs[place]["of"] = versions[graph.inputs[node][0]]
    outs = sorted((j for j in range(len(jobs)) if jobs[j]["kind"] == "out"), key=lambda j: jobs[j]["of"])
    ins = [j for j in range(len(jobs)) if jobs[j]["kind"] == "in"]
    computes = [j for j in range(len(jobs)) if jobs[j]["kind"] == "compute"]
    done: dict[int, float] = {}
    while len(done) < len(jobs):
        for j in range(len(jobs)):
            job = jobs[j]
            if j in done:
                continue
            queue = {"out": outs, "in": ins, "compute": computes}[job["kind"]]
            before = queue[: queue.index(j)]
            if job["kind"] == "out":  # not in the plan's place: after the value, and the copies before it
                needed = [job["of"], *before]
                length = graph.host.to_host[job["node"] - first]
            elif job["kind"] == "in":  # after all computations before it, and all copies waited for before it
                needed = [*before, job["copy"], *(i for i in range(j) if jobs[i]["kind"] != "in")]
                length = graph.host.from_host[copies[job["node"]] - first]
            else:
                needed = [*job["reads"], *(i for i in range(j) if jobs[i]["kind"] != "in")]
                length = graph.costs[job["node"]]
            if all(i in done for i in needed):
                done[j] = max((done[i] for i in needed), default=0.0) + float(length)
    alive = {j: j for j in range(len(jobs))}
    for j, job in enumerate(jobs):
        for i in (*job["reads"], *([job["of"]] if job["kind"] == "out" else ())):
            alive[i] = j
    last = {node: j for j, node in enumerate(sequence)}
    for node, j in last.items():
        if not graph.users[node]:
            alive[j] = len(jobs)
    peak = max(sum(int(graph.sizes[jobs[i]["node"]]) for i in range(j + 1) if alive[i] >= j) for j in range(len(jobs)))
    return max(done.values()), peak


@st.composite
def paged_plans(draw: st.DrawFn) -> tuple[Graph, list[int]]:
    """A chain or a little more, with copies, and a sequence in which some values leave and come back."""
    n = draw(st.integers(2, 5))
    inputs = [[]] + [sorted({k - 1, draw(st.integers(0, k - 1))}) for k in range(1, n)]
    costs = draw(st.lists(st.integers(0, 5), min_size=n, max_size=n))
    sizes = draw(st.lists(st.integers(1, 9), min_size=n, max_size=n))
    graph = training(inputs, costs, sizes)
    whole = with_host(graph, draw(st.sampled_from([0.5, 1.0, 4.0])), draw(st.sampled_from([0.5, 2.0])), least_bytes=1)
    sequence = list(range(len(graph)))
    for value, copy in whole.copies.items():
        if draw(st.booleans()):
            made = sequence.index(value)
            out = draw(st.integers(made + 1, len(sequence)))
            sequence.insert(out, copy)
            for _ in range(draw(st.integers(0, 2))):
                sequence.insert(draw(st.integers(out + 1, len(sequence))), value)
    return whole, sequence


@settings(max_examples=300, deadline=None)
@given(paged_plans())
def test_the_timeline_and_the_peak_are_those_of_three_queues(given_plan):
    graph, sequence = given_plan
    plan = plan_from_sequence(graph, sequence)
    end, peak = played(graph, sequence)
    times = timeline(graph, plan)
    assert times.cost == pytest.approx(end)
    assert times.computing + sum(times.waits.values()) <= times.cost + 1e-9
    assert evaluate(graph, plan).cost == pytest.approx(end)
    assert evaluate(graph, plan).peak_bytes == peak
