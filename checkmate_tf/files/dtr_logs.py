"""Logs of PyTorch programs as Dynamic Tensor Rematerialization (Kirisame et al., ICLR 2021) writes them, as graphs.

A log has one JSON object a line. Its INSTRUCTION is one of these; numbers may be text:

- CONSTANT (NAME), then MEMORY (NAME, MEMORY: bytes): a tensor that is always there: a weight, or the batch.
- CALL (NAME, ARGS, RESULT, TIME: nanoseconds), then MEMORY and ALIAS (NAME, ALIAS) for each result. ALIAS is the index
  of the argument whose memory the result shares, or -1.
- MUTATE (NAME, ARGS, MUTATE: indices of arguments, TIME): these arguments have another content from now on.
- COPY (DST, SRC) and COPY_FROM (DST, SRC): another name for a tensor. RELEASE (NAME): a name that is not used again.
- ANNOTATE (ANNOTATION): "START", before which nothing counts, or "BACKWARD". PIN is passed over.

As a graph:

- A CALL is a node. Its value has the bytes of all its results that share no memory: they are freed together.
- A CALL whose results all share memory is no node. Its time is that of the node whose memory it looks at. A look at a
  constant does not count.
- A MUTATE is a node with a new value, and reads the old one; all names of that memory see it. That of a constant has no
  bytes of its own and runs once, after all calls before it: what has read the constant cannot be computed again then.
- Names that were never released are what the program has in the end: a last node reads all of them.
- A value that is released and that no node reads is held only while its node runs: its bytes are that node's workspace.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import GraphError, show_value
from ..graph import BACKWARD, FORWARD, Graph, after_all_below
from ..units import MOST_BYTES
from .jsonfile import MOST_BYTES as MOST_FILE_BYTES
from .jsonfile import FieldCheck, parse_json

__all__ = ["read_dtr_log"]

_CHECK = FieldCheck(GraphError)
_FIELDS = {
    "CONSTANT": ("NAME",),
    "MEMORY": ("NAME", "MEMORY"),
    "ALIAS": ("NAME", "ALIAS"),
    "CALL": ("NAME", "ARGS", "RESULT", "TIME"),
    "MUTATE": ("NAME", "ARGS", "MUTATE", "TIME"),
    "COPY": ("DST", "SRC"),
    "COPY_FROM": ("DST", "SRC"),
    "RELEASE": ("NAME",),
    "PIN": ("NAME",),
    "ANNOTATE": ("ANNOTATION",),
}
_MOST_TIME = 10**18  # ns
_MOST_TENSORS = 10**6  # arguments or results of one call
_US = 1e-3  # of a nanosecond
_ADVICE = "give a log of Dynamic Tensor Rematerialization: a JSON object a line"


def read_dtr_log(path: str | os.PathLike[str]) -> Graph:
    """Read a log of operator calls as a graph with costs in microseconds.

    Parameters
    ----------
    path : path
        A log in JSON lines, as the PyTorch prototype of DTR writes it.

    Returns
    -------
    Graph
        In the order of the calls. It has the name of the file.

    Raises
    ------
    GraphError
        If the file cannot be read, or is no such log. Names the file, the line and the field, and says what to do.

    Notes
    -----
    O(lines + arguments).
    """
    log = _Log(Path(path).stem)
    for where, line in _lines(path):
        log.take(where, line)
    return log.graph(str(path))


def _lines(path: str | os.PathLike[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each line's object with its place; lines up to an annotation "START" are left out."""
    try:
        with open(path, "rb") as file:
            content = file.read(MOST_FILE_BYTES + 1)
        # not `splitlines`: JSON's text may hold other ends of lines, such as U+2028
        rows = [(f"{path}, line {k}", row) for k, row in enumerate(content.decode().split("\n"), 1) if row.strip()]
    except (OSError, ValueError) as why:
        raise GraphError(f"{str(path)!r} cannot be read: {getattr(why, 'strerror', None) or why}; {_ADVICE}") from None
    if len(content) > MOST_FILE_BYTES:
        raise GraphError(f"{path} has more than {MOST_FILE_BYTES:,} bytes, the most that is read; log one step")
    found = [(where, _instruction(row, where)) for where, row in rows]
    starts = [k for k, (_, line) in enumerate(found) if line.get("ANNOTATION") == "START"]
    yield from found[starts[0] + 1 if starts else 0 :]


def _instruction(row: str, where: str) -> dict[str, Any]:
    try:
        line = parse_json(row)
    except (ValueError, RecursionError) as error:
        raise GraphError(f"{where} is not JSON: {show_value(row.strip())} ({error}); {_ADVICE}") from None
    _CHECK.fields(line, where, ("INSTRUCTION",))
    name = line["INSTRUCTION"]
    if not isinstance(name, str) or name not in _FIELDS:
        _CHECK.refuse(where, "INSTRUCTION", name, f"known are {', '.join(_FIELDS)}; {_ADVICE}")
    _CHECK.fields(line, where, ("INSTRUCTION", *_FIELDS[name]))
    return dict(line)


@dataclass(eq=False)
class _Storage:
    """Memory that tensors share.

    Attributes
    ----------
    node : int or None
        What has made its content; None for that of a constant at the beginning.
    readers : list of int
        Nodes that have read this content.
    """

    size: int
    constant: bool
    node: int | None = None
    readers: list[int] = field(default_factory=list)


@dataclass(eq=False)
class _Call:
    """A call whose results' MEMORY and ALIAS lines are still to come."""

    where: str
    name: str
    args: list[_Storage]
    results: dict[str, None]  # in order
    cost: float
    sizes: dict[str, int] = field(default_factory=dict)
    aliases: dict[str, int] = field(default_factory=dict)


class _Log:
    """What a log has told so far."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.names: list[str] = []
        self.kinds: list[int] = []
        self.costs: list[float] = []
        self.sizes: list[int] = []
        self.inputs: list[list[int]] = []
        self.until: dict[int, int] = {}
        self.changes: list[int] = []  # nodes that change constants
        self.constant_bytes = 0
        self.tensors: dict[str, _Storage] = {}  # by name
        self.kind = FORWARD
        self.call: _Call | None = None
        self.constant: tuple[str, str] | None = None  # its name, whose MEMORY is still to come, and its place

    def take(self, where: str, line: dict[str, Any]) -> None:
        """Go on by one line."""
        what = line["INSTRUCTION"]
        if what == "MEMORY":
            self._memory(where, line)
        elif what == "ALIAS":
            self._alias(where, line)
        else:
            self._finish()
            getattr(self, f"_{what.lower()}")(where, line)

    def graph(self, source: str) -> Graph:
        """The whole of it."""
        self._finish()
        if not self.names:
            raise GraphError(f"{source} has no calls of operators: there is nothing to plan; {_ADVICE}")
        total = self.constant_bytes + sum(self.sizes)
        if total > MOST_BYTES:
            raise GraphError(f"{source}: all values together have {total:.2e} bytes: is MEMORY in bytes?")
        left = {s.node for s in self.tensors.values() if s.node is not None}
        if left:
            self._add("outputs", sorted(left), 0.0, 0)
        n = len(self.names)
        sizes, read = np.array(self.sizes), np.zeros(n, bool)
        read[[i for row in self.inputs for i in row]] = True
        until = np.array([self.until.get(k, n) for k in range(n)], np.int64)
        return Graph(
            name=self.name, names=self.names, kinds=np.array(self.kinds), costs=np.array(self.costs),
            sizes=np.where(read, sizes, 0), workspace=np.where(read, 0, sizes), inputs=self.inputs,
            constant_bytes=self.constant_bytes, recompute_until=until, waits=after_all_below(self.changes, n),
        )  # fmt: skip

    # -- instructions ----------------------------------------------------------------------------------------------
    def _memory(self, where: str, line: dict[str, Any]) -> None:
        name, size = _name(line, where, "NAME"), _whole(line, where, "MEMORY", 0, MOST_BYTES)
        if self.constant is not None and self.constant[0] == name:
            self.tensors[name] = _Storage(size, constant=True)
            self.constant_bytes += size
            self.constant = None
        elif self.call is not None and name in self.call.results:
            self.call.sizes[name] = size
        else:
            raise GraphError(f"{where}: MEMORY is of {name!r}, which the lines before it do not make; {_ADVICE}")

    def _alias(self, where: str, line: dict[str, Any]) -> None:
        name = _name(line, where, "NAME")
        if self.call is None or name not in self.call.results:
            raise GraphError(f"{where}: ALIAS is of {name!r}, which the call before it does not make; {_ADVICE}")
        self.call.aliases[name] = _whole(line, where, "ALIAS", -1, len(self.call.args) - 1)

    def _constant(self, where: str, line: dict[str, Any]) -> None:
        self.constant = (_name(line, where, "NAME"), where)

    def _call(self, where: str, line: dict[str, Any]) -> None:
        results = [_text(r, where, "RESULT") for r in _CHECK.items(line["RESULT"], where, "RESULT", 0, _MOST_TENSORS)]
        name, cost = _name(line, where, "NAME"), _US * _whole(line, where, "TIME", 0, _MOST_TIME)
        self._seen_backward(name)
        self.call = _Call(where, name, self._read(line, where), dict.fromkeys(results), cost)

    def _mutate(self, where: str, line: dict[str, Any]) -> None:
        name, cost = _name(line, where, "NAME"), _US * _whole(line, where, "TIME", 0, _MOST_TIME)
        args = self._read(line, where)
        given = _CHECK.items(line["MUTATE"], where, "MUTATE", 0, _MOST_TENSORS)
        if given and not args:
            _CHECK.refuse(where, "MUTATE", given[0], "there is no argument that could change: ARGS is empty")
        indices = [_CHECK.whole(_number(m), where, "MUTATE", 0, len(args) - 1) for m in given]
        self._seen_backward(name)
        changed = list(dict.fromkeys(args[m] for m in indices))
        node = self._add(name, _made(args), cost, sum(s.size for s in changed if not s.constant))
        for storage in args:
            storage.readers.append(node)
        for storage in changed:
            if storage.constant:  # in place, so it runs once, and its readers cannot run again
                self.until |= {r: min(self.until.get(r, node), node) for r in storage.readers}
                self.until[node] = 0
                self.changes.append(node)
            storage.node, storage.readers = node, []

    def _copy(self, where: str, line: dict[str, Any]) -> None:
        self.tensors[_name(line, where, "DST")] = self._known(_name(line, where, "SRC"), where)

    _copy_from = _copy

    def _release(self, where: str, line: dict[str, Any]) -> None:
        self.tensors.pop(_name(line, where, "NAME"), None)  # logs release tensors of before they began

    def _pin(self, where: str, line: dict[str, Any]) -> None:
        pass

    def _annotate(self, where: str, line: dict[str, Any]) -> None:
        if line["ANNOTATION"] == "BACKWARD":
            self.kind = BACKWARD

    # -- what they come to -----------------------------------------------------------------------------------------
    def _seen_backward(self, name: str) -> None:
        if "backward" in name.lower():
            self.kind = BACKWARD

    def _known(self, name: str, where: str) -> _Storage:
        if name not in self.tensors:
            raise GraphError(f"{where}: {name!r} is not known: it was not made, or released before; {_ADVICE}")
        return self.tensors[name]

    def _read(self, line: dict[str, Any], where: str) -> list[_Storage]:
        args = _CHECK.items(line["ARGS"], where, "ARGS", 0, _MOST_TENSORS)
        return [self._known(_text(a, where, "ARGS"), where) for a in args]

    def _add(self, name: str, inputs: list[int], cost: float, size: int) -> int:
        self.names.append(name)
        self.kinds.append(self.kind)
        self.costs.append(cost)
        self.sizes.append(size)
        self.inputs.append(inputs)
        return len(self.names) - 1

    def _finish(self) -> None:
        """What a call makes is known when the lines on its results are over."""
        if self.constant is not None:
            raise GraphError(f"{self.constant[1]}: no MEMORY follows the constant {self.constant[0]!r}; {_ADVICE}")
        call, self.call = self.call, None
        if call is None:
            return
        missing = [r for r in call.results if r not in call.sizes or r not in call.aliases]
        if missing:
            raise GraphError(f"{call.where}: MEMORY and ALIAS of {missing[0]!r} do not follow; {_ADVICE}")
        own = [r for r in call.results if call.aliases[r] < 0]
        shared = {r: call.args[call.aliases[r]] for r in call.results if call.aliases[r] >= 0}
        if own or not shared:
            node = self._add(call.name, _made(call.args), call.cost, sum(call.sizes[r] for r in own))
            for storage in call.args:
                storage.readers.append(node)
            self.tensors |= {r: _Storage(call.sizes[r], False, node) for r in own}
        else:
            looked_at = next(iter(shared.values())).node
            if looked_at is not None:
                self.costs[looked_at] += call.cost
        self.tensors |= shared


def _made(storages: list[_Storage]) -> list[int]:
    """The nodes that have made what lies there."""
    return sorted({s.node for s in storages if s.node is not None})


def _name(line: dict[str, Any], where: str, key: str) -> str:
    return _text(line[key], where, key)


def _text(value: Any, where: str, key: str) -> str:
    return _CHECK.text(value, where, key, most=1000)


def _whole(line: dict[str, Any], where: str, key: str, least: int, most: int) -> int:
    return _CHECK.whole(_number(line[key]), where, key, least, most)


def _number(value: Any) -> Any:
    """A number that is written as text, as a number."""
    return int(value) if isinstance(value, str) and len(value) < 30 and value.removeprefix("-").isdecimal() else value
