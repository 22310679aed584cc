"""Graphs as JSON documents, and a replayer of answers that knows only the format's rules."""

from __future__ import annotations

import math

import pytest

RESULT_FIELDS = [
    *("format", "strategy", "solver", "status", "budget_bytes", "cost", "base_cost", "peak_bytes", "lower_bound"),
    *("bound_order", "gap", "seconds", "minimum_budget_bytes", "plan"),
]


def node(**fields):
    return {"name": "v", "kind": "forward", "cost": 1.0, "bytes": 8, "inputs": [], **fields}


def document(*nodes, **fields):
    start = {"format": "checkmate-graph/1", "name": "g", "cost_unit": "us", "constant_bytes": 0}
    return {**start, "nodes": list(nodes), **fields}


PAIR = document(node(), node(name="w", kind="backward", inputs=[0]))


def without(data, field):
    return {key: value for key, value in data.items() if key != field}


def replay(graph, result):
    """Cost and peak of an answer, by the rules of the format alone: an output is allocated before inputs are freed."""
    nodes, plan, n = graph["nodes"], result["plan"], len(graph["nodes"])
    readers = [{j for j, v in enumerate(nodes) if i in v["inputs"]} for i in range(n)]
    live, computed, stage = set(), set(), 0
    cost, memory = 0.0, graph["constant_bytes"]
    peak = memory
    for at, (action, i) in enumerate(plan):
        v = nodes[i]
        if action == "deallocate":
            live.remove(i)
            memory -= v["bytes"]
            continue
        assert action == "compute"
        assert i not in live
        assert live.issuperset(v["inputs"])
        assert i not in computed or stage < v.get("recompute_until", n)
        freed = set()
        for what, k in plan[at + 1 :]:
            if what == "compute":
                break
            freed.add(k)
        held = any(readers[k] == {i} and k not in freed for k in v["inputs"])
        scratch = v.get("workspace_bytes", 0) + (v.get("held_bytes", 0) if held else 0)
        live.add(i)
        computed.add(i)
        memory += v["bytes"]
        cost += v["cost"]
        peak = max(peak, memory + scratch)
        while stage in computed:
            stage += 1
    assert computed == set(range(n))
    assert live == {i for i in range(n) if not readers[i]}
    return cost, peak


def check(graph, result):
    """An answer with a plan holds what it says."""
    assert list(result) == RESULT_FIELDS
    cost, peak = replay(graph, result)
    base = math.fsum(v["cost"] for v in graph["nodes"])
    assert result["format"] == "checkmate-result/1"
    assert result["status"] in ("optimal", "feasible")
    assert result["cost"] == pytest.approx(cost)
    assert result["base_cost"] == pytest.approx(base)
    assert result["peak_bytes"] == peak <= result["budget_bytes"]
    assert base <= result["lower_bound"] * (1 + 1e-9)
    assert result["lower_bound"] <= result["cost"]
    if base:
        assert result["gap"] == pytest.approx(result["cost"] / result["lower_bound"] - 1)
    assert result["bound_order"] in ("fixed", "stages", "free")
    assert result["minimum_budget_bytes"] <= peak
