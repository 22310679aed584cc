"""What a plan predicts, what the model of TensorFlow's allocator says, and what the allocator measures.

For each network and budget a plan is made from predictions alone (costs are FLOPs), and emitted in strict order. The
allocator has one large region, as `compile` gives it. Eight steps are measured. Then the allocator's own map says what
lies where, and a ninth step is recorded: all that it allocates and frees. The record goes through the model.

The table has, for each cell:

- predicted: the peak of the plan, in bytes of values.
- asked: the most bytes that were asked for at a time in the recorded step. What predictions leave out shows here.
- placed: the most bytes in use by the model, from the record. What it has beyond what is asked, the allocator loses.
- compact: the same, if what was there before the step lay side by side at the beginning of one region.
- statements: by the model, if each node of the plan were one chunk of its bytes, from the allocator's map. No record.
- measured: the allocator's own peak, of the recorded step, and the most of the other eight.

A cell is a child process. A budget leaves so much of the plain step's predicted activations, beside what is constant.

    python benchmarks/product/placement.py                          # MobileNet at four budgets, some minutes
    python benchmarks/product/placement.py --full                   # six networks; resumes
    python benchmarks/product/placement.py --networks unet --shares 0.6 --output DIR
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.lib.cells import FAILED, read_cells, run_cells
from benchmarks.lib.options import common_options, serve_child
from benchmarks.lib.tables import markdown, write_rows

if TYPE_CHECKING:
    from checkmate_tf.allocator.bfc import Bfc
    from checkmate_tf.device.memory_map import MemoryMap
    from checkmate_tf.device.record import Recorded
    from checkmate_tf.graph import Graph
    from checkmate_tf.plan import Plan

NETWORKS = ("mobilenet", "transformer", "lstm", "unet", "vgg16", "resnet50")  # the quick ones first
SHARES = (0.8, 0.6, 0.4, 0.3)
STEPS = 8
COLUMNS = (
    "network", "share", "outcome", "reason", "budget_bytes", "predicted_bytes", "asked_bytes", "placed_bytes",
    "compact_bytes", "statements_bytes", "recorded_bytes", "least_bytes", "most_bytes", "addresses_equal", "complete",
    "threads", "allocations", "same_order", "overhead", "model_ms", "record_seconds",
)  # fmt: skip


def main() -> None:
    parser = common_options(__doc__, "placement", "MobileNet at four budgets", "six networks at four budgets")
    parser.add_argument("--networks", nargs="*", choices=NETWORKS, help="only these")
    parser.add_argument("--shares", nargs="*", type=float, default=list(SHARES), help="budgets, of activations")
    parser.add_argument("--time-limit", type=float, default=20.0, help="seconds of solving (default 20)")
    options = parser.parse_args()
    if serve_child(options, answer):
        return
    options.output.mkdir(parents=True, exist_ok=True)
    names = () if options.draw else options.networks or (NETWORKS if options.full else NETWORKS[:1])
    requests = [
        {"cell": f"cell-{name}-{share:g}", "network": name, "share": share, "time_limit": options.time_limit}
        for name in names
        for share in options.shares
    ]
    environment = {"TF_CPU_ALLOCATOR_USE_BFC": "true"}
    run_cells(__file__, options.output, requests, lambda _: 1800.0, options.again, environment)
    write(options)


def answer(request: dict) -> dict:
    """Plan, run, record and replay."""
    import time

    import numpy as np
    import tensorflow as tf

    import checkmate_tf
    from benchmarks.lib.networks import NETWORKS
    from checkmate_tf.device.measure import find_device
    from checkmate_tf.device.memory_map import memory_map
    from checkmate_tf.device.record import record
    from checkmate_tf.device.region import reserve
    from checkmate_tf.device.replay import allocator_of, replayed
    from checkmate_tf.emit.emit import emit
    from checkmate_tf.emit.ordering import Strict
    from checkmate_tf.fit.options import PlanOptions
    from checkmate_tf.keras.controller import Controller
    from checkmate_tf.keras.spec import data_spec
    from checkmate_tf.units import parse_budget

    network = NETWORKS[request["network"]]
    model, device = network.model(), find_device()
    spec, batch = data_spec(model, None, None, network.data(1))
    shared = {"costs": "flops", "verify": False, "cache": False, "time_limit": request["time_limit"]}
    options = PlanOptions(budget=parse_budget(1.0), strategy="checkpoint-all", **shared)
    plain = Controller(model, options, batch, model.train_step).plan(spec)
    constant = plain.program.graph.constant_bytes
    budget = constant + int(request["share"] * (plain.schedule.peak_bytes - constant))
    try:
        options = PlanOptions(budget=parse_budget(budget), **shared)
        planned = Controller(model, options, batch, model.train_step).plan(spec)
    except checkmate_tf.InfeasibleBudgetError as error:
        return {
            "outcome": "refused",
            "budget_bytes": budget,
            "least_bytes": error.minimum_bytes,
            "reason": "no schedule has so little",
        }
    program, schedule = planned.program, planned.schedule
    data = [tf.constant(a) for a in network.data(1)]
    step = tf.function(lambda *given: emit(program, schedule.plan, Strict(), given), autograph=False)
    reserve(device, 2 * schedule.peak_bytes)
    for _ in range(2):  # the first one traces
        step(*data)
    peaks = []
    for _ in range(STEPS):
        tf.config.experimental.reset_memory_stats(device.name)
        step(*data)
        peaks.append(device.peak_bytes())
    lies = memory_map(device)
    tf.config.experimental.reset_memory_stats(device.name)
    begun = time.perf_counter()
    recorded = record(device, lambda: step(*data))
    record_seconds = time.perf_counter() - begun
    measured = device.peak_bytes()
    again = record(device, lambda: step(*data))
    allocator = allocator_of(device)
    replayed(recorded, allocator, lies)  # compiles
    begun = time.perf_counter()
    placed = replayed(recorded, allocator, lies)
    model_ms = (time.perf_counter() - begun) * 1e3
    return {
        "outcome": "measured",
        "budget_bytes": budget,
        "predicted_bytes": schedule.peak_bytes,
        "asked_bytes": asked(recorded, lies),
        "placed_bytes": placed.peak_bytes,
        "compact_bytes": replayed(recorded, allocator, lies, compact=True).peak_bytes,
        "statements_bytes": placed_statements(program.graph, schedule.plan, lies, allocator),
        "recorded_bytes": measured,
        "least_bytes": min(peaks),
        "most_bytes": max(peaks),
        "addresses_equal": bool(np.array_equal(placed.address, recorded.address)),
        "complete": recorded.complete,
        "threads": len(set(recorded.thread.tolist())),
        "allocations": int(recorded.allocates.sum()),
        "same_order": bool(np.array_equal(recorded.requested_bytes, again.requested_bytes)),
        "overhead": schedule.overhead,
        "model_ms": model_ms,
        "record_seconds": record_seconds,
    }


def asked(recorded: Recorded, lies: MemoryMap) -> int:
    """The most bytes that were asked for and not given back, at a time: what nothing is lost of."""
    import numpy as np

    changes = np.where(recorded.allocates, recorded.requested_bytes, -recorded.requested_bytes)
    return int(lies.requested_bytes[lies.in_use].sum() + np.cumsum(changes).max(initial=0))


def placed_statements(graph: Graph, plan: Plan, lies: MemoryMap, allocator: Bfc) -> int:
    """The peak by the model if values and workspaces of the plan's nodes were chunks."""
    import numpy as np

    from checkmate_tf.allocator.bfc import FREE, Events, place, state_of_chunks
    from checkmate_tf.plan import ALLOCATE, COMPUTE, DEALLOCATE, workspaces

    state = state_of_chunks(allocator, lies.address, lies.size, lies.in_use)
    upcoming = int(state.owner.max(initial=0)) + 1
    workspace = iter(workspaces(graph, plan))
    values: dict[int, int] = {}  # register -> id
    pairs: list[tuple[int, int]] = []
    for statement in plan:
        if statement.op == ALLOCATE:
            values[statement.register] = upcoming
            pairs.append((upcoming, int(graph.sizes[statement.node])))
            upcoming += 1
        elif statement.op == COMPUTE:
            pairs += [(upcoming, max(0, int(next(workspace)))), (upcoming, FREE)]
            upcoming += 1
        elif statement.op == DEALLOCATE:
            pairs.append((values.pop(statement.register), FREE))
    ids, sizes = np.array(pairs).T
    return place(allocator, Events(ids, sizes), state).peak_bytes


def write(options: Any) -> None:
    """CSV and table of what is in the folder."""
    from benchmarks.lib.networks import NETWORKS as KNOWN

    cells = sorted(read_cells(options.output), key=lambda c: (NETWORKS.index(c["network"]), -c["share"]))
    write_rows(options.output, COLUMNS, cells)
    lines = []
    for c in cells:
        name = KNOWN[c["network"]].title, f"{c['share']:.0%}"
        if c["outcome"] == FAILED:
            lines.append((*name, f"failed: {c['reason']}", *[""] * 6))
            continue
        if c["outcome"] == "refused":
            lines.append((*name, f"refused: at least {c['least_bytes'] / 1e6:.1f} MB", *[""] * 6))
            continue
        sizes = (
            f"{c[f'{k}_bytes'] / 1e6:.2f}"
            for k in ("predicted", "asked", "placed", "compact", "statements", "recorded", "most")
        )
        errors = (f"{c['placed_bytes'] / c[f'{k}_bytes'] - 1:+.2%}" for k in ("recorded", "most"))
        lines.append((*name, *sizes, " / ".join(errors), "yes" if c["addresses_equal"] else "NO"))
    head = (
        "network", "budget", "predicted, MB", "asked", "placed", "compact", "statements", "measured",
        "measured, most of eight",
        "error of placed: this step / of eight", "each address equal",
    )  # fmt: skip
    text = markdown(head, [(*line, *[""] * (len(head) - len(line))) for line in lines])
    (options.output / "table.md").write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
