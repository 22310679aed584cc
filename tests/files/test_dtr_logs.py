"""Logs of operator calls, as Dynamic Tensor Rematerialization writes them, become graphs."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest

from checkmate_tf.errors import GraphError, PlanError
from checkmate_tf.graph import BACKWARD, FORWARD
from checkmate_tf.interchange import graph_from_dict, graph_to_dict, read_dtr_log
from checkmate_tf.plan import evaluate, plan_from_sequence
from checkmate_tf.schedule import keep_all
from checkmate_tf.strategies import SolveOptions, solve


def constant(name, size):
    return [
        {"INSTRUCTION": "CONSTANT", "NAME": name},
        {"INSTRUCTION": "MEMORY", "NAME": name, "MEMORY": str(size)},
    ]


def call(name, args, time=1000, **results):
    """Results as name=bytes, or name=(bytes, alias)."""
    lines = [{"INSTRUCTION": "CALL", "NAME": name, "ARGS": args, "RESULT": list(results), "TIME": str(time)}]
    for result, told in results.items():
        size, alias = told if isinstance(told, tuple) else (told, -1)
        lines.append({"INSTRUCTION": "MEMORY", "NAME": result, "MEMORY": str(size)})
        lines.append({"INSTRUCTION": "ALIAS", "NAME": result, "ALIAS": str(alias)})
    return lines


def mutate(name, args, *indices, time=1000):
    return [{"INSTRUCTION": "MUTATE", "NAME": name, "ARGS": args, "MUTATE": list(indices), "TIME": str(time)}]


def release(*names):
    return [{"INSTRUCTION": "RELEASE", "NAME": name} for name in names]


def copy(how, dst, src):
    return [{"INSTRUCTION": how, "DST": dst, "SRC": src}]


def annotate(text):
    return [{"INSTRUCTION": "ANNOTATE", "ANNOTATION": text}]


@pytest.fixture
def read(tmp_path):
    """Reads the graph of a log of these instructions."""

    def graph_of(*parts):
        path = tmp_path / "step.log"
        path.write_text("\n".join(json.dumps(line) for line in itertools.chain(*parts)) + "\n")
        return read_dtr_log(path)

    return graph_of


def trained(layers=6):
    """A chain of layers with weights, its gradients, and updates in place."""
    parts = [*annotate("START"), *constant("x0", 100)]
    for k in range(layers):
        parts += constant(f"w{k}", 10) + call("linear", [f"x{k}", f"w{k}"], 2000, **{f"x{k + 1}": 100})
    parts += annotate("BACKWARD") + call("loss", [f"x{layers}"], 500, g=100)
    for k in reversed(range(layers)):
        gradients = {f"gw{k}": 10, f"gx{k}": 100}
        parts += call("linear_grad", [f"x{k}", f"w{k}", "g" if k == layers - 1 else f"gx{k + 1}"], 4000, **gradients)
        parts += mutate("sgd", [f"w{k}", f"gw{k}"], 0, time=100) + release(f"gw{k}")
        parts += release(f"x{k + 1}", "g" if k == layers - 1 else f"gx{k + 1}")
    return [*parts, *release("gx0", "x0", "w0")]


def test_a_chain(read):
    graph = read(constant("x", 7), call("f", ["x"], 2500, a=100), call("g", ["a"], 500, b=50), release("a", "x"))
    assert graph.name == "step" and graph.constant_bytes == 7 and graph.cost_unit == "us"
    assert graph.names == ("f", "g", "outputs")
    assert [tuple(row) for row in graph.inputs] == [(), (0,), (1,)]
    assert graph.costs.tolist() == [2.5, 0.5, 0.0] and graph.sizes.tolist() == [100, 50, 0]
    assert keep_all(graph).peak_bytes == 157


def test_results_that_were_never_released_are_there_in_the_end(read):
    graph = read(call("f", [], a=100), call("g", ["a"], b=50))
    assert tuple(graph.inputs[-1]) == (0, 1)
    assert "outputs" not in read(call("f", [], a=100), release("a")).names


def test_a_result_that_is_released_unread_is_held_only_while_it_is_made(read):
    unread = [line for k in range(5) for line in [*call("f", ["w"], **{f"x{k}": 500}), *release(f"x{k}")]]
    graph = read(constant("w", 10), unread)
    assert keep_all(graph).peak_bytes == 510
    assert graph.sizes.tolist() == [0] * 5 and graph.workspace.tolist() == [500] * 5
    assert graph_to_dict(graph_from_dict(graph_to_dict(graph))) == graph_to_dict(graph)
    kept = read(constant("w", 10), unread, call("f", ["w"], y=500))
    assert kept.sizes.tolist() == [0] * 5 + [500, 0] and keep_all(kept).peak_bytes == 510


def test_a_view_is_no_node_and_its_time_is_that_of_what_it_looks_at(read):
    graph = read(
        constant("x", 7),
        call("view", ["x"], 300, v=(7, 0)),
        call("f", ["v"], 1000, a=100),
        call("view", ["a"], 200, u=(100, 0)),
        release("a"),
        call("g", ["u"], 500, b=50),
    )
    assert graph.names == ("f", "g", "outputs")
    assert graph.costs.tolist() == [1.2, 0.5, 0.0]
    assert [tuple(row) for row in graph.inputs] == [(), (0,), (0, 1)]  # the view was not released


def test_results_of_one_call_are_one_value(read):
    graph = read(call("f", [], a=100), call("split", ["a"], b=30, c=40, d=(100, 0)), call("g", ["c", "d"], e=5))
    assert graph.names[:3] == ("f", "split", "g")
    assert graph.sizes.tolist()[:3] == [100, 70, 5]
    assert tuple(graph.inputs[2]) == (0, 1)


def test_what_changes_in_place_is_another_value_from_then_on(read):
    graph = read(
        call("f", [], a=100),
        call("view", ["a"], v=(100, 0)),
        call("before", ["a"], b=1),
        mutate("relu_", ["a"], 0),
        call("after", ["v"], c=1),
    )
    assert graph.names == ("f", "before", "relu_", "after", "outputs")
    assert [tuple(row) for row in graph.inputs[:4]] == [(), (0,), (0,), (2,)]
    assert graph.sizes.tolist()[:4] == [100, 1, 100, 1]


def test_constants_change_once_after_all_that_read_them(read):
    graph = read(
        constant("w", 10),
        call("f", ["w"], a=100),
        mutate("sgd", ["w"], 0),
        call("g", ["w"], b=1),
        mutate("sgd", ["w"], 0),
    )
    first, second = 1, 3
    assert graph.sizes[[first, second]].tolist() == [0, 0]
    assert graph.recompute_until.tolist()[:4] == [first, 0, second, 0]
    assert set(graph.waits[first]) == {0} and set(graph.waits[second]) == {first, 2}
    assert tuple(graph.inputs[2]) == (first,) and tuple(graph.inputs[second]) == (first,)


@pytest.mark.parametrize("how", ["COPY", "COPY_FROM"])
def test_another_name_is_the_same_tensor(read, how):
    graph = read(call("f", [], a=100), copy(how, "b", "a"), release("a"), call("g", ["b"], c=1), release("b", "c"))
    assert graph.names == ("f", "g")
    assert tuple(graph.inputs[1]) == (0,)


def test_the_backward_pass_begins_where_the_log_says_or_a_name_does(read):
    told = read(call("f", [], a=1), annotate("BACKWARD"), call("g", ["a"], b=1))
    named = read(call("f", [], a=1), call("ReluBackward0", ["a"], b=1), call("g", ["b"], c=1))
    assert told.kinds.tolist() == [FORWARD, BACKWARD, BACKWARD]
    assert named.kinds.tolist() == [FORWARD, BACKWARD, BACKWARD, BACKWARD]


def test_nothing_counts_before_the_start(read):
    graph = read(constant("old", 1000), call("warmup", ["old"], z=1), annotate("START"), call("f", [], a=10))
    assert graph.names == ("f", "outputs") and graph.constant_bytes == 0


def test_a_training_step_is_solved(read):
    graph = read(trained())
    assert graph_to_dict(graph_from_dict(graph_to_dict(graph))) == graph_to_dict(graph)
    plain = keep_all(graph)
    for order in ("fixed", "free"):
        found = solve(graph, int(0.75 * plain.peak_bytes), options=SolveOptions(time_limit=2, order=order))
        assert found.peak_bytes <= 0.75 * plain.peak_bytes
        assert found.cost > graph.base_cost
        assert evaluate(graph, plan_from_sequence(graph, found.sequence)).cost == pytest.approx(found.cost)


def test_no_copy_reads_a_constant_that_has_changed(read):
    graph = read(trained(3))
    updates = [k for k, name in enumerate(graph.names) if name == "sgd"]
    layers = [k for k, name in enumerate(graph.names) if name == "linear"]
    assert sorted(graph.recompute_until[layers].tolist()) == updates
    assert np.all(graph.recompute_until[updates] == 0)


def test_no_order_lets_a_copy_read_a_constant_that_has_changed(read):
    graph = read(
        constant("w", 10) + constant("x", 10),
        call("f", ["w"], a=100),
        call("beside", ["x"], k=1),
        call("g", ["a"], gw=10),
        mutate("sgd", ["w", "gw"], 0),
        call("h", ["a"], b=1),
    )
    f, beside, g, sgd, h, outputs = range(6)
    evaluate(graph, plan_from_sequence(graph, [f, g, f, beside, sgd, h, outputs]))
    for wrong in ([f, g, sgd, f, h, beside, outputs], [f, beside, g, sgd, f, h, outputs]):
        with pytest.raises(PlanError):
            evaluate(graph, plan_from_sequence(graph, wrong))


def test_text_may_hold_what_other_texts_end_lines_with(tmp_path):
    lines = [*constant("w\u2028", 10), *call("f\u0085", ["w\u2028"], x=500)]
    rows = [json.dumps(line, ensure_ascii=False) for line in lines]
    for end in ("\n", "\r\n"):
        (tmp_path / "step.log").write_bytes(end.join([*rows, ""]).encode())
        assert read_dtr_log(tmp_path / "step.log").names == ("f\u0085", "outputs")


GOOD = [*constant("x", 7), *call("f", ["x"], a=100)]
BAD = {
    "no json": ("hello", "line 1 is not JSON"),
    "a list": ("[1]", "give an object with the fields INSTRUCTION"),
    "another instruction": ({"INSTRUCTION": "JUMP"}, "known are CONSTANT"),
    "no name": ({"INSTRUCTION": "RELEASE"}, "no field 'NAME'"),
    "an unknown argument": (call("f", ["y"], a=1), "'y' is not known"),
    "a constant without bytes": ([{"INSTRUCTION": "CONSTANT", "NAME": "x"}, *call("f", [], a=1)], "no MEMORY follows"),
    "a result without bytes": ([*call("f", [], a=1)[:1], *release("a")], "MEMORY and ALIAS of 'a'"),
    "bytes of something else": ([*GOOD, {"INSTRUCTION": "MEMORY", "NAME": "q", "MEMORY": "1"}], "do not make"),
    "an alias of something else": ([*GOOD, {"INSTRUCTION": "ALIAS", "NAME": "q", "ALIAS": "0"}], "does not make"),
    "an alias of no argument": (call("f", [], a=(1, 0)), "ALIAS is 0"),
    "a change of no argument": ([*GOOD, *mutate("g", ["a"], 1)], "MUTATE is 1"),
    "a change without arguments": ([*GOOD, *mutate("g", [], 0)], "MUTATE is 0; there is no argument"),
    "negative bytes": (constant("x", -1), "MEMORY is -1"),
    "bytes that are no number": (constant("x", "many"), "MEMORY is 'many'"),
    "bytes that look like a number": (constant("x", "--5"), "MEMORY is '--5'"),
    "too many bytes": ([*call("f", [], a=2**52), *call("g", [], b=2**52), *call("h", [], c=2**52)], "MEMORY in bytes"),
    "nothing": ([], "no calls"),
    "constants alone": (constant("x", 1), "no calls"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_logs_are_refused(name, tmp_path):
    lines, says = BAD[name]
    path = tmp_path / "bad.log"
    text = (
        lines
        if isinstance(lines, str)
        else "\n".join(json.dumps(x) for x in (lines if isinstance(lines, list) else [lines]))
    )
    path.write_text(text)
    with pytest.raises(GraphError, match="bad.log") as error:
        read_dtr_log(path)
    assert says in str(error.value)


def test_files_that_are_no_logs_are_refused(tmp_path):
    (tmp_path / "binary.log").write_bytes(bytes(range(128, 256)))
    for name in ("missing.log", "binary.log", "."):
        with pytest.raises(GraphError, match="cannot be read"):
            read_dtr_log(tmp_path / name)
