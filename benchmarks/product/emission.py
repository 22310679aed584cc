"""What the emitted graph costs beyond recomputation: a plan that recomputes nothing, against the plain step.

Every operation runs once, so whatever the emitted step takes more is the price of its order: edges, gates and lost
parallelism. Each network's step is emitted in three ways: in no order; with the waits that `compile` puts in where it
measures a plan (computations may run ahead by 15% of the predicted peak); and in one strict order, as near a budget.
A cell is a child process; steps are timed in turn with the plain one (plain, emitted, plain, ...), and the median of
the ratios counts. Beside them: the allocator's peak over those steps, less what was there before.

    python benchmarks/product/emission.py                          # a CNN and a transformer, a few minutes on two cores
    python benchmarks/product/emission.py --full                   # six networks
    python benchmarks/product/emission.py --networks unet --ways strict --output DIR
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.lib.cells import FAILED, read_cells, run_cells
from benchmarks.lib.options import common_options, serve_child
from benchmarks.lib.tables import markdown, write_rows, write_table

WAYS = {"free": "no order", "waits": "waits for memory", "strict": "strict order"}
FULL = ("mobilenet", "resnet50", "vgg16", "unet", "transformer", "lstm")
QUICK = ("mobilenet", "transformer")
LOOSE = 1.15  # of the predicted peak, as in `compile` where the budget leaves so much
COLUMNS = (
    "network", "way", "outcome", "reason", "nodes", "operations", "awaited", "step_ratio", "plain_ms", "peak_bytes",
    "plain_peak_bytes", "predicted_bytes",
)  # fmt: skip


def main() -> None:
    parser = common_options(__doc__, "emission", "two networks", "six networks")
    parser.add_argument("--networks", nargs="*", choices=FULL, help="only these")
    parser.add_argument("--ways", nargs="*", choices=list(WAYS), default=list(WAYS), help="only these")
    parser.add_argument("--rounds", type=int, default=9, help="turns that are timed")
    options = parser.parse_args()
    if serve_child(options, answer):
        return
    options.output.mkdir(parents=True, exist_ok=True)
    names = () if options.draw else options.networks or (FULL if options.full else QUICK)
    requests = [
        {"cell": f"cell-{name}-{way}", "network": name, "way": way, "rounds": options.rounds}
        for name in names
        for way in options.ways
    ]
    run_cells(__file__, options.output, requests, lambda _: 1800.0, options.again)
    write(options)


def answer(request: dict) -> dict:
    """Times and peaks of the plain step and of the emitted one."""
    os.environ["TF_CPU_ALLOCATOR_USE_BFC"] = "true"
    import numpy as np
    import tensorflow as tf

    import checkmate_tf
    from checkmate_tf.check.networks import NETWORKS
    from checkmate_tf.emit.emit import emit
    from checkmate_tf.emit.ordering import Strict, Within, needed_waits
    from checkmate_tf.fit.options import PlanOptions
    from checkmate_tf.keras.batches.spec import data_spec
    from checkmate_tf.keras.training.controller import Controller
    from checkmate_tf.units import parse_budget

    network = NETWORKS[request["network"]]
    model = network.model()
    spec, batch = data_spec(model, None, None, network.data(1))
    options = PlanOptions(budget=parse_budget(1.0), strategy="checkpoint-all", costs="flops", verify=False, cache=False)
    planned = Controller(model, options, batch, model.train_step).plan(spec)
    program, schedule = planned.program, planned.schedule
    if schedule.overhead or len(schedule.sequence) != len(program.graph):
        raise checkmate_tf.CheckmateError("the plan recomputes something")
    loose = int(LOOSE * schedule.peak_bytes)
    order = {"free": Within(1 << 62), "waits": Within(loose), "strict": Strict()}[request["way"]]
    data = [tf.constant(a) for a in network.data(1)]
    steps: list[Callable[..., Any]] = [
        tf.function(lambda *given: model.train_step(given), autograph=False),
        tf.function(lambda *given: emit(program, schedule.plan, order, given), autograph=False),
    ]
    resident = tf.config.experimental.get_memory_info("CPU:0")["current"]
    times: list[list[float]] = [[], []]
    peaks = [0, 0]
    for turn in range(request["rounds"] + 1):
        for k, step in enumerate(steps):
            tf.config.experimental.reset_memory_stats("CPU:0")
            begun = time.perf_counter()
            float(step(*data)["loss"])
            seconds = time.perf_counter() - begun
            if turn:  # the first one traces
                times[k].append(seconds)
                peaks[k] = max(peaks[k], tf.config.experimental.get_memory_info("CPU:0")["peak"] - resident)
    return {
        "outcome": "measured",
        "nodes": len(program.graph),
        "operations": len(program.step.operations),
        "awaited": len(set(needed_waits(program.graph, schedule.plan, order)) - {0}),
        "step_ratio": float(np.median(np.array(times[1]) / np.array(times[0]))),
        "plain_ms": float(np.median(times[0]) * 1e3),
        "peak_bytes": peaks[1],
        "plain_peak_bytes": peaks[0],
        "predicted_bytes": schedule.peak_bytes - program.graph.constant_bytes,
    }


def write(options: Any) -> None:
    """CSV and table of what is in the folder."""
    from checkmate_tf.check.networks import NETWORKS

    ways = list(WAYS)
    cells = sorted(read_cells(options.output), key=lambda c: (FULL.index(c["network"]), ways.index(c["way"])))
    write_rows(options.output, COLUMNS, cells)
    lines = []
    for c in cells:
        name = NETWORKS[c["network"]].title, WAYS[c["way"]]
        if c["outcome"] == FAILED:
            lines.append((*name, f"failed: {c['reason']}", "", "", ""))
            continue
        peaks = (f"{c[k] / 1e6:.0f} MB" for k in ("plain_peak_bytes", "predicted_bytes", "peak_bytes"))
        lines.append((*name, f"**{c['step_ratio']:.2f}x**", *peaks))
    head = ("network", "emitted", "step time, of plain", "plain peak", "predicted", "emitted peak")
    text = markdown(head, lines)
    write_table(options.output, text)
    print(text)


if __name__ == "__main__":
    main()
