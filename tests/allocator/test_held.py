"""What operations hold only while they run, from events as a GPU's allocator has them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkmate_tf.allocator.held import held_while_running
from checkmate_tf.allocator.workspace import Workspace

OUTPUT, TEMP = "output", "temp"


def workspaces(*events):
    """Of events (name, what, bytes, role) that allocate and (what,) that free; the thread may come before."""
    columns, lies = [], {}
    for event in events:
        thread, *event = event if isinstance(event[0], int) else (0, *event)
        if len(event) > 1:
            name, what, size, role = event
            lies[what] = size, name, role
        else:
            (what,) = event
            size, name, role = lies[what]
        columns.append((len(event) > 1, size, hash(what), thread, name, role))
    allocates, size, address, threads, names, roles = zip(*columns, strict=True)
    return held_while_running(np.array(allocates), np.array(size), np.array(address), np.array(threads), names, roles)


def held(*events):
    """All bytes of these."""
    return in_bytes(workspaces(*events))


def in_bytes(found):
    return {name: own.bytes for name, own in found.items()}


def test_memory_of_its_own_counts_and_outputs_do_not():
    assert held(("conv", "y", 100, OUTPUT), ("conv", "t", 40, TEMP), ("t",), ("relu", "z", 100, OUTPUT)) == {
        "conv": 40,
        "relu": 0,
    }


def test_a_result_in_memory_that_was_taken_as_its_own():
    """As the gradient of a convolution that Grappler turned to channels first (an H200, U-Net)."""
    grad = ("grad", "dx", 311, OUTPUT), ("grad", "twin", 311, TEMP), ("grad", "work", 467, TEMP), ("dx",), ("work",)
    assert held(*grad, ("next", "y", 5, OUTPUT), ("twin",)) == {"grad": 311 + 467, "next": 0}


def test_a_reader_that_allocates_nothing_frees_that_result():
    assert held(("grad", "dx", 155, OUTPUT), ("grad", "twin", 155, TEMP), ("dx",), ("twin",)) == {"grad": 155}


def test_one_after_the_other_and_both_at_once():
    one = ("op", "y", 10, OUTPUT), ("op", "a", 30, TEMP), ("a",), ("op", "b", 50, TEMP), ("b",)
    assert held(*one) == {"op": 50}
    both = ("op", "y", 10, OUTPUT), ("op", "a", 30, TEMP), ("op", "b", 50, TEMP), ("a",), ("b",)
    assert held(*both) == {"op": 80}


def test_outputs_that_come_late():
    """A recurrent layer allocates what it keeps for its gradient last."""
    layer = ("rnn", "y", 32, OUTPUT), ("rnn", "t", 179, TEMP), ("rnn", "kept", 160, OUTPUT), ("t",)
    assert held(*layer, ("next", "z", 1, OUTPUT)) == {"rnn": 179, "next": 0}
    assert held(("op", "t", 70, TEMP), ("t",), ("op", "y", 50, OUTPUT)) == {"op": 20}
    assert held(("op", "t", 30, TEMP), ("t",), ("op", "y", 50, OUTPUT)) == {"op": 0}


def test_outputs_that_nobody_reads_go_at_once():
    assert held(("op", "y", 50, OUTPUT), ("op", "z", 60, OUTPUT), ("y",), ("z",)) == {"op": 0}
    assert held(("op", "y", 50, OUTPUT), ("op", "t", 7, TEMP), ("t",), ("y",)) == {"op": 7}


def test_the_most_of_several_runs():
    def step(work):
        return ("conv", "y", 100, OUTPUT), ("conv", "t", work, TEMP), ("t",), ("relu", "z", 9, OUTPUT), ("y",), ("z",)

    assert held(*step(40), *step(70), *step(10)) == {"conv": 70, "relu": 0}


def test_steps_of_one_operation():
    step = ("op", "y", 100, OUTPUT), ("op", "t", 40, TEMP), ("t",), ("y",)
    assert held(*step, *step, *step) == {"op": 40}


def test_what_other_threads_do_meanwhile():
    assert held(
        (0, "conv", "y", 100, OUTPUT),
        (1, "small", "s", 3, OUTPUT),
        (0, "conv", "a", 40, TEMP),
        (1, "s"),
        (0, "conv", "b", 20, TEMP),
        (0, "b"),
        (0, "a"),
        (1, "y"),
    ) == {"conv": 60, "small": 0}


def test_frees_of_what_was_there_before():
    """The record does not know whose they were."""
    allocates, size, address = [False, True, True, False], [9, 100, 40, 40], [0, 256, 512, 512]
    columns = map(np.array, (allocates, size, address, [0] * 4))
    found = held_while_running(*columns, ("", "op", "op", "op"), ("", OUTPUT, TEMP, TEMP))
    assert in_bytes(found) == {"op": 40}


def test_nothing_is_known_of_memory_outside_of_operations():
    assert held(("", "batch", 100, ""), ("", "t", 100, TEMP), ("t",)) == {}


def test_chunks_in_the_order_in_which_they_are_taken():
    conv = ("conv", "y", 100, OUTPUT), ("conv", "a", 40, TEMP), ("conv", "b", 3, TEMP), ("a",), ("b",)
    assert workspaces(*conv) == {"conv": Workspace((), (40, 3))}
    early = ("rnn", "a", 40, TEMP), ("rnn", "y", 100, OUTPUT), ("rnn", "b", 3, TEMP), ("b",), ("a",)
    assert workspaces(*early) == {"rnn": Workspace((40,), (3,))}


def test_a_result_that_is_made_last():
    """Its output comes first, and is given back: as in a U-Net on an H200."""
    grad = ("grad", "dx", 226, OUTPUT), ("grad", "s", 2, TEMP), ("grad", "twin", 226, TEMP), ("grad", "w", 340, TEMP)
    ends = ("dx",), ("w",), ("s",)
    expected = {"grad": Workspace((226, 2), (340,))}
    assert workspaces(*grad, *ends) == expected
    assert workspaces(*grad, *ends, ("twin",)) == expected  # a reader that allocates nothing


def test_only_what_is_held_at_the_most_counts():
    op = ("op", "y", 10, OUTPUT), ("op", "a", 30, TEMP), ("a",), ("op", "b", 50, TEMP), ("op", "c", 5, TEMP)
    assert workspaces(*op, ("c",), ("b",)) == {"op": Workspace((), (50, 5))}
    late = ("op", "t", 70, TEMP), ("t",), ("op", "y", 50, OUTPUT)
    assert workspaces(*late) == {"op": Workspace((20,), ())}  # the result lies in the rest


@st.composite
def kernels(draw):
    """What a kernel does, and what it holds beyond its outputs: its outputs, memory of its own, results in that."""
    outputs = draw(st.lists(st.integers(1, 50), max_size=3))
    work = draw(st.lists(st.integers(1, 100), max_size=3))
    twins = [draw(st.booleans()) for _ in outputs]
    todo = [("+", f"y{k}", size, OUTPUT) for k, size in enumerate(outputs)]
    todo += [("+", f"t{k}", size, TEMP) for k, size in enumerate(work)]
    todo += [("+", f"w{k}", size, TEMP) for k, size in enumerate(outputs) if twins[k]]
    done, live, most = [], {}, 0
    ends = {f"t{k}" for k in range(len(work))} | {f"y{k}" for k, twin in enumerate(twins) if twin}
    todo = draw(st.permutations(todo))
    while todo or ends & live.keys():
        replaced = {f"y{k}" for k in range(len(outputs)) if f"w{k}" in live} | {k for k in live if k[0] == "t"}
        may_end = sorted(ends & live.keys() & replaced)
        if todo and not (may_end and draw(st.booleans())):
            sign, what, size, role = todo.pop()
            live[what] = size
            done.append((what, size, role))
        else:
            what = draw(st.sampled_from(may_end))
            del live[what]
            done.append((what,))
        most = max(most, sum(live.values()))
    assert sum(live.values()) == sum(outputs)
    own = bool(work) or any(twins)
    return done, most - sum(outputs) if own else 0, sorted(live)


@pytest.mark.long
@given(st.data())
def test_kernels_of_several_threads(data):
    """Kernels run in threads side by side, and free what others made when they are done. Memory is used again."""
    names = [f"op{k}" for k in range(6)]
    expected, events, live, free, upcoming = {}, [], [], [], 0
    running, last = {}, {}
    left = data.draw(st.integers(1, 12))
    while left or running:
        thread = data.draw(st.integers(0, 2))
        if thread in running:
            name, todo, stays, lies = running[thread]
            if todo:
                what, *rest = todo.pop(0)
                if rest:
                    if free and data.draw(st.booleans()):
                        lies[what] = free.pop(), *rest
                    else:
                        lies[what], upcoming = (upcoming, *rest), upcoming + 1
                address, size, role = lies[what]
                events.append((bool(rest), size, address, thread, name, role))
                if not rest:
                    free.append(address)
            else:
                live += [(lies[what], name) for what in stays]
                del running[thread]
        elif live and data.draw(st.booleans()):
            (address, size, role), name = live.pop(data.draw(st.integers(0, len(live) - 1)))
            events.append((False, size, address, thread, name, role))
            free.append(address)
        elif left:
            left -= 1
            name = data.draw(st.sampled_from([n for n in names if n != last.get(thread)]))
            todo, beyond, stays = data.draw(kernels())
            if any(len(t) > 1 for t in todo):
                expected[name] = max(expected.get(name, 0), beyond)
                last[thread] = name
            running[thread] = name, list(todo), stays, {}
    if events:
        allocates, size, address, threads, operations, roles = zip(*events, strict=True)
        arrays = (np.array(column) for column in (allocates, size, address, threads))
        assert in_bytes(held_while_running(*arrays, operations, roles)) == expected
