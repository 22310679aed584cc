"""While loops: how often they run, and the bytes of the tensor lists that they fill.

A loop's lists (TensorArrays, and the accumulators that its gradient reads) hold one tensor an iteration. Several lists
may hold the same tensor. A list of reads of a variable holds nothing of its own. So bytes are counted by the distinct
tensors that the body makes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import function_def_to_graph

from ..ops import called_nodes, view_of

__all__ = [
    "LOOPS",
    "PUSHES",
    "copy_functions",
    "function_graph",
    "grown_to",
    "grows",
    "list_sizes",
    "most_rounds",
    "pushes_back",
    "root_of",
    "step_of",
    "trip_count",
]

LOOPS = ("While", "StatelessWhile")
"""Types of loops. TensorFlow's own count their rounds in their first variable."""

# Operations that add a tensor to a list, and which input it is.
PUSHES = {"TensorListPushBack": 1, "TensorListSetItem": 2}

_CHANGE_LENGTH = frozenset(
    f"TensorList{change}" for change in ("PopBack", "PushBack", "PushBackBatch", "Resize", "ConcatLists")
)
_TAKES_ELEMENT = "TensorListGetItem"
_COMPARISONS = frozenset({"Less", "LessEqual", "Greater", "GreaterEqual"})


def function_graph(graph: tf.Graph, name: str) -> tf.Graph:
    """The body of a function known to `graph`, as a graph that knows the same functions."""
    function = graph._functions[name]
    definition = getattr(function, "cached_definition", None) or function.definition
    with tf.Graph().as_default() as host:
        copy_functions(graph, host)
        body = function_def_to_graph.function_def_to_graph(definition)
    copy_functions(graph, body)  # it may call others
    return body


def copy_functions(source: tf.Graph, target: tf.Graph) -> None:
    """Copy the functions (loop bodies, branches) of a graph to another."""
    for function in source._functions.values():
        if not target._is_function(function.name if isinstance(function.name, str) else function.name.decode()):
            target._add_function(function)


def list_sizes(
    body: tf.Graph,
    bytes_of: Callable[[tf.Tensor], int | None],
    iterations: int | None,
    last_read: Sequence[int] | None = None,
) -> tuple[list[int | None], set[int]]:
    """Bytes that a loop keeps in each of the lists it returns.

    Parameters
    ----------
    body : FuncGraph
    bytes_of : callable
        Bytes of a tensor of the body; None if they are not known.
    iterations : int or None
        None if not known.
    last_read : sequence of int, optional
        When each output of the loop is read for the last time. A tensor that several lists hold is counted with the
        one that is read last; by default, with the first.

    Returns
    -------
    list of int or None
        For each output of the body. 0 for what is no list, None where the size cannot be known.
    set of int
        Outputs whose elements are those of a list that the loop was given: they outlive that list.
    """
    position = {id(t): k for k, t in enumerate(body.inputs)}
    counted: set[int] = set()
    sizes: list[int | None] = [0] * len(body.outputs)
    passed_on: set[int] = set()
    latest_first = sorted(range(len(sizes)), key=lambda k: -(last_read[k] if last_read else 0))
    for k in latest_first:
        for pushed in _pushed(body.outputs[k]):
            origin = _origin(pushed, body, position)
            if origin is None or id(origin) in counted:
                continue
            counted.add(id(origin))
            if origin.op.type == _TAKES_ELEMENT:
                passed_on.add(k)
            size, total = bytes_of(origin), sizes[k]
            sizes[k] = None if size is None or iterations is None or total is None else total + size * iterations
    return sizes, passed_on


def grows(op: tf.Operation) -> bool:
    """Whether an operation makes a list as long as its index asks for: that of a TensorArray of dynamic size."""
    return op.type == "TensorListSetItem" and bool(op.get_attr("resize_if_index_out_of_bounds"))


def pushes_back(result: tf.Tensor, given: tf.Tensor, body: tf.Graph) -> int | None:
    """How many tensors the body of a loop appends to the list that it is given.

    None if they cannot be told: the list that it returns is made of the given one in another way, and something in the
    body or in its functions changes the length of a list.
    """
    count = _appended(result, given)
    return 0 if count is None and not _changes_lengths(body) else count


def _appended(result: tf.Tensor, given: tf.Tensor) -> int | None:
    """How many tensors were appended to a list that became another; None if it did not, or may have grown."""
    appended, t = 0, root_of(result)
    while t.op.type in PUSHES and not grows(t.op):
        appended += t.op.type == "TensorListPushBack"
        t = root_of(t.op.inputs[0])
    if t is given:
        return appended
    terms = t.op.inputs if t.op.type == "AddN" else ()  # of lists that are equally long
    return next((appended + count for term in terms if (count := _appended(term, given)) is not None), None)


def grown_to(
    result: tf.Tensor, given: tf.Tensor, body: tf.Graph, start: Sequence[np.ndarray | None], rounds: int
) -> int | None:
    """How long a list has to be for all that a loop writes into it, if it grows with what is written; else None.

    Parameters
    ----------
    result, given : tf.Tensor
        The list that the body returns, and the one that it is given.
    start : sequence of array or None
        The first values of the variables of the loop.
    rounds : int
        How often it runs.
    """
    places = {id(t): k for k, t in enumerate(body.inputs)}
    length, t = 0, root_of(result)
    while t.op.type == "TensorListSetItem":
        index = root_of(t.op.inputs[1])
        last, k = tf.get_static_value(index), places.get(id(index))
        if k is not None and (begin := start[k]) is not None and (step := step_of(body, k)) is not None:
            last = int(begin) + max(0, step * (rounds - 1))
        if last is None:
            return None
        length = max(length, int(last) + 1)
        t = root_of(t.op.inputs[0])
    return length if t is given and length and rounds else None


def _changes_lengths(body: tf.Graph) -> bool:
    """Whether a list may come to have another length, in a graph or in a function that it calls."""
    operations = body.get_operations()
    nodes = [node for op in operations for node in called_nodes(op) if node is not None]
    kinds = {op.type for op in operations} | {node.op for node in nodes}
    resized = any(node.attr["resize_if_index_out_of_bounds"].b for node in nodes)
    return bool(kinds & _CHANGE_LENGTH) or resized or any(map(grows, operations))


def most_rounds(
    condition: tf.Graph,
    body: tf.Graph,
    known: Sequence[np.ndarray | None],
    value: Callable[[tf.Tensor], np.ndarray | None] = tf.get_static_value,
) -> int | None:
    """How often a loop runs at most; None if it may run as long as its data decides.

    It ends as soon as one of the tests fails that its condition takes together. So the least count of them is a bound.

    Parameters
    ----------
    condition, body, known
        As for `trip_count`.
    value : callable(tensor) -> array or None
        The value of a tensor of the condition that is no variable of the loop.
    """
    tests, todo = list[tf.Operation](), [root_of(condition.outputs[0]).op]
    while todo:
        op = todo.pop()
        if op.type == "LogicalAnd":
            todo += [root_of(t).op for t in op.inputs]
        else:
            tests.append(op)
    rounds = [_rounds(test, condition, body, known, value) for test in tests]
    return min((count for count in rounds if count is not None), default=None)


def trip_count(condition: tf.Graph, body: tf.Graph, known: Sequence[np.ndarray | None]) -> int | None:
    """How often a loop runs, if it counts from one known number to another, as loops of keras.ops do; else None.

    Parameters
    ----------
    condition, body : FuncGraph
        The condition compares a variable of the loop with a constant, or with a variable that the body leaves alone;
        the body adds a constant to it, or subtracts one.
    known : sequence of array or None
        The first values of the variables of the loop, where shapes alone decide them.
    """
    return _rounds(root_of(condition.outputs[0]).op, condition, body, known, tf.get_static_value)


def _rounds(
    test: tf.Operation,
    condition: tf.Graph,
    body: tf.Graph,
    known: Sequence[np.ndarray | None],
    value: Callable[[tf.Tensor], np.ndarray | None],
) -> int | None:
    """How often a comparison of the condition holds; None if it does not count from one known number to another."""
    if test.type not in _COMPARISONS or not test.inputs[0].dtype.is_integer:
        return None
    inputs = {id(t): k for k, t in enumerate(condition.inputs)}
    ends = [inputs.get(id(root_of(t))) for t in test.inputs]
    steps = [0 if k is None else step_of(body, k) for k in ends]
    start = [value(root_of(t)) if k is None else known[k] for t, k in zip(test.inputs, ends, strict=True)]
    if any(v is None or np.ndim(v) for v in start) or None in steps:
        return None
    left, right = (int(v) for v in start if v is not None)
    speed = sum(sign * step for sign, step in zip((1, -1), steps, strict=True) if step is not None)
    apart = left - right
    if test.type.startswith("Greater"):
        apart, speed = -apart, -speed
    if speed <= 0:
        return None
    return max(0, -(-(1 - apart if test.type.endswith("Equal") else -apart) // speed))


def step_of(body: tf.Graph, k: int) -> int | None:
    """The number that the body of a loop adds to its k-th variable; None if it is not the same each time."""
    before, after = body.inputs[k], root_of(body.outputs[k])
    if after is before:
        return 0
    sign = {"AddV2": 1, "Add": 1, "Sub": -1}.get(after.op.type)
    if sign is None:
        return None
    terms = [root_of(t) for t in after.op.inputs]
    if sign > 0 and terms[1] is before:
        terms.reverse()
    if terms[0] is not before:
        return None
    step = tf.get_static_value(terms[1])
    return None if step is None or np.ndim(step) else sign * int(step)


def root_of(t: tf.Tensor) -> tf.Tensor:
    """The tensor that owns the buffer of a view, or of a view of a view."""
    while (source := view_of(t.op, t.value_index)) is not None:
        t = t.op.inputs[source]
    return t


def _pushed(result: tf.Tensor) -> list[tf.Tensor]:
    """The tensors that the body adds to a list that it returns."""
    pushed = []
    t = root_of(result)
    while t.op.type in PUSHES:
        pushed.append(t.op.inputs[PUSHES[t.op.type]])
        t = root_of(t.op.inputs[0])
    return pushed


def _origin(t: tf.Tensor, body: tf.Graph, position: dict[int, int]) -> tf.Tensor | None:
    """The tensor of the body that owns the buffer of `t`; None if it was made outside, and is no element of a list."""
    for _ in range(len(body.inputs) + 1):
        t = root_of(t)
        if t.op.type in ("ReadVariableOp", "Const"):
            return None
        k = position.get(id(t))
        if k is None:
            return t
        previous = root_of(body.outputs[k])  # the value of the iteration before
        if previous is t:
            return None
        t = previous
    return None
