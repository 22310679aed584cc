"""Trains step by step with paged plans on two logical CPUs; prints what the tests look at, as JSON.

python paged_training.py NAME ...           # of `CASES`, in all ways, without Grappler and with it
python paged_training.py --few NAME ...     # in one way without Grappler, in the other with it
"""

from __future__ import annotations

import json
import os
import sys

os.environ.update(TF_CPU_ALLOCATOR_USE_BFC="true", TF_CPP_MIN_LOG_LEVEL="3")

import keras
import numpy as np
import tensorflow as tf
from cases import CASES, assert_same_state, make, program_of
from pages import PAGES, paged_graph, paged_schedule
from tensorflow.python.eager import context

from checkmate_tf.emit.paging import emit_paged
from checkmate_tf.schedule import keep_all

STEPS = 3
KINDS = ("to_host", "fetch", "from_host")
WAYS = {"all, early": (5, 1), "every second, just in time": (0, 2)}  # others are computed again


def trained(name: str, ahead: int, every: int) -> dict[str, object]:
    """Steps of the plain model and of a paged plan in turn: whether results and all variables are equal."""
    case = CASES[name]
    plain, ours = make(case), make(case)
    program_of(plain, case)  # makes slots and metrics, as for ours
    program = program_of(ours, case)
    graph = paged_graph(program)
    schedule = paged_schedule(graph, ahead, every)
    data = case.data(STEPS * case.batch)
    plain_step = tf.function(lambda *batch: plain.train_step(batch), autograph=False)
    step = tf.function(
        lambda *batch: emit_paged(program, graph, schedule.plan, PAGES, tf.nest.flatten(batch)), autograph=False
    )
    equal = True
    for k in range(STEPS):
        mine = slice(k * case.batch, (k + 1) * case.batch)
        given = [tf.cast(a[mine], t.dtype) for a, t in zip(tf.nest.flatten(data), program.step.inputs, strict=True)]
        batch = tf.nest.pack_sequence_as(data, given)
        expected = tf.nest.flatten(plain_step(*batch))
        if k == 0:  # the one in which the graph is optimized
            context.enable_run_metadata()
        results = tf.nest.flatten(step(*batch))
        if k == 0:
            graphs = context.export_run_metadata().function_graphs
            context.disable_run_metadata()
        equal &= all(np.array(a).tobytes() == np.array(b).tobytes() for a, b in zip(expected, results, strict=True))
    assert_same_state(plain, ours)
    of_plan = lambda g: sum("checkmate/" in node.name for node in g.pre_optimization_graph.node)  # noqa: E731 - a short key
    optimized = max(graphs, key=of_plan).post_optimization_graph.node
    found = {kind: [n for n in optimized if f"checkmate/{kind}" in n.name] for kind in KINDS}
    return {
        "equal": equal,
        "copied": len(set(graph.copies.values()) & set(schedule.sequence.tolist())),
        "peak": schedule.peak_bytes,
        "plain peak": keep_all(program.graph).peak_bytes,
        "places": {kind: sorted({node.device[-5:] for node in nodes}) for kind, nodes in found.items()},
        "kept": {kind: len(nodes) for kind, nodes in found.items()},
        "reads": all("checkmate/to_host" in node.input[0] for node in found["fetch"]),
        "waits": all(any(given.startswith("^") for given in node.input) for node in found["fetch"]),
    }


def main() -> None:
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    tf.config.experimental.enable_op_determinism()
    found: dict[str, object] = {}
    few = sys.argv[1] == "--few"
    for grappler in (False, True):
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": not grappler})
        for name in sys.argv[1 + few :]:
            for way, (ahead, every) in list(WAYS.items())[grappler::2] if few else WAYS.items():
                found[f"{name}, {way}, {'with' if grappler else 'without'} Grappler"] = trained(name, ahead, every)
            keras.backend.clear_session()
    sys.stdout.write("RESULT " + json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
