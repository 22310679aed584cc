"""What a plan predicts, what the model of TensorFlow's allocator says before anything runs, and what is measured.

For each network and budget a plan is made without measurement, with profiled costs, so that workspaces count. Then the
allocator's map is taken, and the plan is placed in it, with as many batches as fitting a plan to a device counts on.
That is the prediction: nothing of the plan has run. Then the plan is emitted, fed as `fit` feeds it, and the most of 16
steps is measured: first in strict order, and then out of order, within 1.15 times the plan's peak.

Six networks have four budgets each. Ten more, which the model was not built on, have one. A budget leaves so much of
the plain step's predicted activations, beside what is constant.

The table has, for each cell:

- bytes: the peak of the plan, in bytes of values and workspaces.
- asked: the most bytes that operations ask for at a time, by the prediction. What a plan leaves out shows here.
- placed: the most bytes of chunks in use, by the prediction. What it has beyond what is asked, the allocator loses.
- measured: the allocator's own peak, the most of 16 steps in strict order; and the error of placed.
- batches known: placed once more, in the map right before the measured steps. The prediction cannot know how many
  batches are ready; this column does.
- replay: the error of the peak of a recorded step that is replayed from the map before it. This checks the allocator's
  model, apart from what is known of operations. The pipeline may come between the map and the record.
- out of order: placed and measured, if the package places such steps.

A cell is a child process.

    python benchmarks/product/placement.py                          # MobileNet at four budgets, some minutes
    python benchmarks/product/placement.py --full                   # six networks at four budgets, ten at one; resumes
    python benchmarks/product/placement.py --networks unet --shares 0.6 --output DIR
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.lib.cells import FAILED, read_cells, run_cells
from benchmarks.lib.options import common_options, serve_child
from benchmarks.lib.tables import markdown, write_rows, write_table

if TYPE_CHECKING:
    from collections.abc import Callable

    from checkmate_tf.allocator.memory import Memory, Placed
    from checkmate_tf.device.measure import Device
    from checkmate_tf.emit.ordering import Order
    from checkmate_tf.fit.planned import PlannedStep
    from checkmate_tf.trace.sizes.folded import Folded

NETWORKS = ("mobilenet", "transformer", "lstm", "unet", "vgg16", "resnet50")  # the quick ones first
UNSEEN = (
    "recurrent", "fourier", "vae", "experts", "efficientnet", "densenet121", "xception", "nasnet", "inception",
    "convnext",
)  # fmt: skip
SHARES = (0.8, 0.6, 0.4, 0.3)
UNSEEN_SHARES = (0.6,)
STEPS = 16
WARMING = 3  # the first one traces, and the pipeline gets ready
LOOSE = 1.15  # times the predicted peak
COLUMNS = (
    "network", "share", "outcome", "reason", "budget_bytes", "predicted_bytes", "asked_bytes", "placed_bytes",
    "least_budget_bytes", "least_bytes", "median_bytes", "most_bytes", "batches", "ready_batches", "ready_bytes",
    "replayed_bytes", "recorded_bytes", "addresses_equal", "complete", "allocations", "loose_placed_bytes",
    "loose_least_bytes", "loose_median_bytes", "loose_most_bytes", "overhead", "nodes", "place_ms", "loose_place_ms",
    "step_ms", "seconds",
)  # fmt: skip


def main() -> None:
    parser = common_options(__doc__, "placement", "MobileNet at four budgets", "six networks at four, ten at one")
    parser.add_argument("--networks", nargs="*", choices=(*NETWORKS, *UNSEEN), help="only these")
    parser.add_argument("--shares", nargs="*", type=float, help="budgets, of activations")
    parser.add_argument("--time-limit", type=float, default=20.0, help="seconds of solving (default 20)")
    options = parser.parse_args()
    if serve_child(options, answer):
        return
    options.output.mkdir(parents=True, exist_ok=True)
    every = (*NETWORKS, *UNSEEN) if options.full else NETWORKS[:1]
    names = () if options.draw else options.networks or every
    requests = [
        {"cell": f"cell-{name}-{share:g}", "network": name, "share": share, "time_limit": options.time_limit}
        for name in names
        for share in options.shares or (UNSEEN_SHARES if name in UNSEEN else SHARES)
    ]
    environment = {"TF_CPU_ALLOCATOR_USE_BFC": "true"}
    run_cells(__file__, options.output, requests, lambda _: 1800.0, options.again, environment)
    write(options)


# In the child ---------------------------------------------------------------------------------------------------------


def answer(request: dict) -> dict:
    """Plan, place, and only then run."""
    import time

    import checkmate_tf
    from benchmarks.lib.unseen_networks import UNSEEN as unseen
    from checkmate_tf.allocator.kernel import GRAIN
    from checkmate_tf.allocator.sequence import small_bytes
    from checkmate_tf.check.networks import NETWORKS as known
    from checkmate_tf.device.layout.region import reserve
    from checkmate_tf.device.layout.reserves import SMALL_BYTES, keep_batch_reserves
    from checkmate_tf.device.measure import find_device
    from checkmate_tf.emit.ordering import Strict, Within
    from checkmate_tf.fit.options import PlanOptions
    from checkmate_tf.fit.policy import POLICY
    from checkmate_tf.keras.batches.spec import data_spec
    from checkmate_tf.keras.training.controller import Controller
    from checkmate_tf.schedule import keep_all
    from checkmate_tf.trace.kernels import kernels_of
    from checkmate_tf.units import parse_budget

    begun = time.perf_counter()
    network = (known | unseen)[request["network"]]
    model, device = network.model(), find_device()
    spec, batch = data_spec(model, None, None, network.data(1))
    shared = {"costs": "profile", "verify": False, "cache": False, "time_limit": request["time_limit"]}
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
            "least_budget_bytes": error.minimum_bytes,
            "reason": "no schedule has so little",
        }
    del plain
    batches, peak = POLICY.held_batches(POLICY.ahead), planned.schedule.peak_bytes
    reserve(device, budget)
    small = small_bytes(kernels_of(planned.program), keep_all(planned.program.graph).sequence, SMALL_BYTES, GRAIN)
    reserved = POLICY.reserved_batches(POLICY.ahead)
    keep_batch_reserves(device, planned.program.batch_bytes, reserved, int(POLICY.reserves * budget), small)
    strict = predicted_and_measured(planned, network, device, Strict(), batches)
    loose = predicted_and_measured(planned, network, device, Within(int(LOOSE * peak)), batches)
    return {
        "outcome": "measured",
        "budget_bytes": budget,
        "predicted_bytes": peak,
        "batches": batches,
        "overhead": planned.schedule.overhead,
        "nodes": len(planned.program.graph),
        **strict,
        **{
            f"loose_{key}": loose[key]
            for key in ("placed_bytes", "place_ms", "least_bytes", "median_bytes", "most_bytes")
        },
        "seconds": time.perf_counter() - begun,
    }


def predicted_and_measured(planned: PlannedStep, network: Any, device: Device, order: Order, batches: int) -> dict:
    """Place a plan before anything of it runs, and then measure 16 steps of it."""
    import gc
    import statistics
    import time

    import tensorflow as tf

    from checkmate_tf.device.feeding import fed_as_by_fit
    from checkmate_tf.emit.emit import emit
    from checkmate_tf.emit.ordering import Strict
    from checkmate_tf.fit.policy import POLICY
    from checkmate_tf.fit.run import folded_constants
    from checkmate_tf.trace.sizes.folded import constants_of

    program, plan = planned.program, planned.schedule.plan
    strict = isinstance(order, Strict)
    data = network.data(1)
    folded = folded_constants(program, planned.schedule.budget_bytes or 0)
    kept = [*constants_of(program), *folded.sizes]
    coming = [*kept, *(batches - 1) * program.batch_bytes]  # one is made in the step
    memory = memory_of(planned, device, coming, folded)
    placed, place_ms = placed_in(memory, planned, order)
    found = {
        "asked_bytes": placed.asked_bytes if placed else None,
        "placed_bytes": placed.peak_bytes if placed else None,
        "place_ms": place_ms,
    }
    resident = device.current_bytes()
    ready = POLICY.ready_batches(POLICY.ahead)
    shapes = [] if folded.sizes else [t.shape for t in program.step.inputs]
    step = fed_as_by_fit(lambda *given: emit(program, plan, order, given), data, device, ready, shapes=shapes)
    del data
    for _ in range(WARMING):
        step()
    time.sleep(0.5)  # until the pipeline is ready
    if strict:
        whole = sum(program.batch_bytes)
        found["ready_batches"] = (device.current_bytes() - resident - sum(kept)) / whole
        ready, _ = placed_in(memory_of(planned, device, [], folded), planned, order)
        found["ready_bytes"] = ready.peak_bytes if ready else None
    peaks, seconds = [], []
    for _ in range(STEPS):
        tf.config.experimental.reset_memory_stats(device.name)
        begun = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - begun)
        peaks.append(device.peak_bytes())
    found |= {"least_bytes": min(peaks), "median_bytes": int(statistics.median(peaks)), "most_bytes": max(peaks)}
    found["step_ms"] = 1e3 * statistics.median(seconds)
    if strict:
        found |= replay(device, step)
    del step
    gc.collect()  # functions lie in cycles, and hold batches
    return found


def memory_of(planned: PlannedStep, device: Device, coming: list[int], folded: Folded) -> Memory | None:
    """What lies where now, with what is to come; None if that cannot be known."""
    from checkmate_tf.device.before import memory_before
    from checkmate_tf.trace.kernels import kernels_of

    program = planned.program
    return memory_before(device, kernels_of(program, True, folded.operations), coming, len(program.nodes))


def placed_in(memory: Memory | None, planned: PlannedStep, order: Order) -> tuple[Placed | None, float | None]:
    """What a plan takes in an order, and the milliseconds to know it; None if the allocator has no model."""
    import time

    import numpy as np

    from checkmate_tf.emit.ordering import Strict, needed_waits
    from checkmate_tf.trace.ungated import ungated

    if memory is None:
        return None, None
    graph, plan = planned.program.graph, planned.schedule.plan
    place: Callable[[], Placed]
    if isinstance(order, Strict):
        place = lambda: memory.placed(plan.sequence)  # noqa: E731 - a short callback
    else:
        waits = np.where(ungated(planned.program)[np.array(plan.sequence)], 0, needed_waits(graph, plan, order))
        seconds = (1e-6 if graph.cost_unit == "us" else 1.0) * graph.costs
        place = lambda: memory.placed_loose(plan.sequence, waits, seconds)  # noqa: E731 - a short callback
    place()  # compiles
    begun = time.perf_counter()
    placed = place()
    return placed, 1e3 * (time.perf_counter() - begun)


def replay(device: Device, step: Callable[[], Any]) -> dict:
    """Record a step and replay it from the map before: the check of the allocator's model."""
    import time

    import numpy as np

    from checkmate_tf.device.memory_map import memory_map
    from checkmate_tf.device.record import record
    from checkmate_tf.device.replay import allocator_of, replayed
    from checkmate_tf.errors import PlanError

    time.sleep(0.5)  # until the pipeline is ready
    lies = memory_map(device)
    recorded = record(device, step)
    found = {"complete": recorded.complete, "allocations": int(recorded.allocates.sum())}
    try:
        placed = replayed(recorded, allocator_of(device), lies)
    except PlanError as error:  # something came between the map and the record
        return {**found, "reason": str(error)}
    return {
        **found,
        "recorded_bytes": recorded.peak_bytes,
        "replayed_bytes": placed.peak_bytes,
        "addresses_equal": float(np.mean(placed.address == recorded.address)),
    }


# Results --------------------------------------------------------------------------------------------------------------


def write(options: Any) -> None:
    """CSV and table of what is in the folder."""
    from benchmarks.lib.unseen_networks import UNSEEN as unseen
    from checkmate_tf.check.networks import NETWORKS as known

    order = (*NETWORKS, *UNSEEN)
    cells = sorted(read_cells(options.output), key=lambda c: (order.index(c["network"]), -c["share"]))
    write_rows(options.output, COLUMNS, cells)
    head = (
        "network", "budget", "bytes, MB", "asked", "placed", "measured, most of 16", "error of placed",
        "error, batches known", "steps differ by", "error of a replayed step", "out of order: placed", "measured",
        "error",
    )  # fmt: skip
    lines = []
    for c in cells:
        title = (known | unseen)[c["network"]].title + (" *" if c["network"] in unseen else "")
        name = title, f"{c['share']:.0%}"
        if c["outcome"] == FAILED:
            lines.append((*name, f"failed: {c['reason']}"))
        elif c["outcome"] == "refused":
            lines.append((*name, f"refused: at least {c['least_budget_bytes'] / 1e6:.1f} MB"))
        else:
            sizes = (megabytes(c[f"{key}_bytes"]) for key in ("predicted", "asked", "placed", "most"))
            errors = (over(c[f"{key}_bytes"], c["most_bytes"]) for key in ("placed", "ready"))
            differ = over(c["most_bytes"], c["least_bytes"]).lstrip("+")
            again = over(c.get("replayed_bytes"), c.get("recorded_bytes")) or "none"
            placed, most = c["loose_placed_bytes"], c["loose_most_bytes"]
            loose = megabytes(placed), megabytes(most), over(placed, most)
            lines.append((*name, *sizes, *errors, differ, again, *loose))
    text = markdown(head, [(*line, *[""] * (len(head) - len(line))) for line in lines])
    if any(c["network"] in unseen for c in cells):
        text += "\n\\* The model was not built on these.\n"
    text += "\n" + "\n".join(errors_of(cells, unseen)) + "\n"
    write_table(options.output, text)
    print(text)


def errors_of(cells: list[dict], unseen: dict) -> list[str]:
    """How far placed is from measured, for the networks of the model, the others, and out of order."""
    import statistics

    lines = []
    for title, new, kind in (
        ("the six networks, strict order", False, ""),
        ("the ten others, strict order", True, ""),
        ("the six networks, out of order", False, "loose_"),
        ("the ten others, out of order", True, "loose_"),
    ):
        errors = [
            c[f"{kind}placed_bytes"] / c[f"{kind}most_bytes"] - 1
            for c in cells
            if c["outcome"] == "measured" and (c["network"] in unseen) == new and c[f"{kind}placed_bytes"]
        ]
        if errors:
            size = sorted(map(abs, errors))
            within = sum(e <= 0.02 for e in size)
            text = f"{title}: {len(size)} cells, median error {statistics.median(size):.2%}, worst {size[-1]:.2%}"
            lines.append(f"- {text}; within 2% in {within}; too little by {-min(*errors, 0.0):.2%} at most.")
    return lines


def megabytes(size: int | None) -> str:
    return "" if size is None else f"{size / 1e6:.2f}"


def over(size: int | None, other: int | None) -> str:
    return f"{size / other - 1:+.2%}" if size and other else ""


if __name__ == "__main__":
    main()
