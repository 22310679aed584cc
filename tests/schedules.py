"""A small schedule, ways to damage it, and a step to plan, for the tests of what is saved and kept."""

from __future__ import annotations

import copy
import json
import os

import tensorflow as tf
from graphs import chain
from hypothesis import strategies as st

from checkmate_tf.errors import CheckmateError
from checkmate_tf.files.schedules import schedule_to_dict
from checkmate_tf.fit.options import PlanOptions
from checkmate_tf.graph import Graph
from checkmate_tf.plan import evaluate
from checkmate_tf.schedule import Schedule
from checkmate_tf.strategies import SolveOptions
from checkmate_tf.units import parse_budget

OPTIONS = SolveOptions(time_limit=10.0, gap=0.01)
BUDGET = 100


def recomputing(graph: Graph | None = None, **fields) -> Schedule:
    """A chain of four layers, node 2 computed twice: a gap of 1/13, since nothing beyond the base cost is proved."""
    given = {"strategy": "by hand", "solver": "pencil", "budget_bytes": BUDGET, "seconds": 2.5}
    return Schedule(graph or chain(4), [0, 1, 2, 3, 4, 5, 2, 6, 7, 8], **given | fields)


def document(schedule: Schedule | None = None, **fields) -> dict:
    return json.loads(json.dumps(schedule_to_dict(schedule or recomputing()))) | fields


CONTENTS = [
    *(b"", b"{", b"\xff\xfe", b"null", b"[]", b"3", b'"text"', b"{}", b"[" * 100_000, b'{"a": ' * 100_000),
    *(b"NaN", b"1e999", b"9" * 5000, b'{"format": "checkmate-result/1"}', b'{"format": 1, "format": 2}', b"\x00" * 64),
    *(b'{"format": "checkmate-result/1", "graph": {"nodes": 1e999}}', b"import os", b"\x80\x04K\x01."),
]

ODD = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 12), st.integers(), st.sampled_from([10**400, -(10**30), 2**63, 1e300]),
    st.floats(allow_nan=False), st.text(max_size=5), st.sampled_from(["compute", "deallocate", "\ud800"]),
    st.lists(st.integers(-1, 10), max_size=3), st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)  # fmt: skip


@st.composite
def damaged(draw, whole):
    """The document with up to three places replaced, removed or repeated."""
    data = copy.deepcopy(whole)
    for _ in range(draw(st.integers(1, 3))):
        place = data
        while True:
            keys = sorted(place) if isinstance(place, dict) else range(len(place))
            if not keys:
                break
            key = draw(st.sampled_from(keys))
            if isinstance(place[key], (dict, list)) and place[key] and draw(st.integers(0, 3)):
                place = place[key]
                continue
            action = draw(st.sampled_from(["replace", "remove", "repeat"]))
            if action == "replace" or (action == "repeat" and isinstance(place, dict)):
                place[key] = draw(ODD)
            elif action == "remove":
                del place[key]
            else:
                place.insert(key, copy.deepcopy(place[key]))
            break
    return data


def check_loads_or_refuses(load):
    """Whatever is loaded is a schedule of the graph."""
    try:
        schedule = load()
    except CheckmateError as error:
        assert str(error)
    else:
        found = evaluate(chain(4), schedule.plan)
        assert found.peak_bytes == schedule.peak_bytes <= (schedule.budget_bytes or BUDGET)
        assert 0 <= schedule.gap <= 1 and schedule.lower_bound <= schedule.cost and schedule.seconds >= 0


def fails_with(number):
    def fail(*arguments, **options):
        raise OSError(number, os.strerror(number))

    return fail


W = tf.Variable(tf.ones((64, 64)))
SPEC = tf.TensorSpec([None, 64])
QUICK = PlanOptions(budget=parse_budget(0.7), costs="flops", gap=1.0, time_limit=5, verify=False)


def step(x):
    with tf.GradientTape() as tape:
        y = x
        for _ in range(6):
            y = tf.tanh(y @ W)
        loss = tf.reduce_sum(y)
    return loss, tape.gradient(loss, W)
