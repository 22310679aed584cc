"""What rematerialization saves under XLA (`jit_compile=True`) on a CPU, by how recomputations are held back.

One training step of Keras (Adam), compiled by XLA in five ways: as it is; emitted as it is emitted for TensorFlow
(control edges); with `XlaOptimizationBarrier` over each kept value and the gradients before it, as `jax.checkpoint`
does; and tied by data to those gradients (`checkmate_tf.emit.xla`). All emitted steps follow one plan, for a share
of the plain step's predicted activation peak.

A measurement is a child process of its own, which takes from XLA's dump the bytes of temporary memory that its buffer
assignment sets aside for the step (what the step returns and takes is not in it), and how many convolutions, products
of matrices and loops are left of those in the step as it was given to XLA. It then compares one step from equal
variables with the plain XLA step: the loss and all gradients together (Euclidean norm, from Adam's momenta), relative.
In the plain row it is compared with the step that TensorFlow runs without XLA. Steps are timed in turn with the plain
XLA step; the median ratio counts.

    python benchmarks/product/xla.py                             # three small networks, a few minutes on two cores
    python benchmarks/product/xla.py --full                      # and four larger ones, two budgets
    python benchmarks/product/xla.py --networks dense --fractions 0.4 --output DIR
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.lib.cells import FAILED, read_cells, run_cells
from benchmarks.lib.options import common_options, serve_child
from benchmarks.lib.tables import markdown, write_csv, write_table

if TYPE_CHECKING:
    import tensorflow as tf

    from checkmate_tf.check.networks import Network
    from checkmate_tf.schedule import Schedule
    from checkmate_tf.trace.program import Program

WAYS = {
    "plain": "plain",
    "emitted": "emitted with control edges",
    "barrier": "optimization barriers",
    "tied": "tied by data",
}
QUICK = ("conv", "dense", "encoder")
FULL = (*QUICK, "mobilenet", "unet", "transformer", "lstm")
BIG_OPERATIONS = re.compile(r"= \S+ (?:convolution|dot|while)\(|custom_call_target=\"__onednn\$(?:conv|matmul)")
COLUMNS = (
    "network", "way", "fraction", "outcome", "reason", "budget_bytes", "predicted_peak_bytes", "predicted_plain_bytes",
    "constant_bytes", "recomputations", "temporary_bytes", "allocated_bytes", "plain_temporary_bytes", "of_plain",
    "predicted_of_plain", "given_operations", "left_operations", "loss_error", "gradient_error", "equal_bits",
    "step_ratio", "compile_seconds",
)  # fmt: skip
NOTE = """\
*Planned*: peak of the plan without variables and inputs, over that of the plain step (both predicted: every value in
memory, nothing fused). *Temporary memory*: what XLA's buffer assignment sets aside; *of plain*: over the plain XLA
step's. *Allocated*: the most that TensorFlow's BFC allocator gave out while a step ran, beyond what was there. *Large
operations*: convolutions, products of matrices and loops, as given to XLA and as left by it. *Differences* are
relative, from the plain XLA step (plain: from the step that TensorFlow runs without XLA, whose dropout may draw other
masks). *Step time* is over the plain XLA step's, in turn.
"""


def main() -> None:
    parser = common_options(__doc__, "xla", "three small networks", "seven networks, two budgets")
    parser.add_argument("--networks", nargs="*", choices=FULL, help="only these")
    parser.add_argument("--ways", nargs="*", choices=list(WAYS), default=list(WAYS), help="only these, and plain")
    parser.add_argument("--fractions", nargs="*", type=float, help="of the plain activation peak (0.5; full: and 0.35)")
    parser.add_argument("--rounds", type=int, default=5, help="turns that are timed")
    options = parser.parse_args()
    if serve_child(options, answer):
        return
    options.output.mkdir(parents=True, exist_ok=True)
    fractions = options.fractions or ((0.5, 0.35) if options.full else (0.5,))
    requests = []
    for name in () if options.draw else options.networks or (FULL if options.full else QUICK):
        shared = {"network": name, "rounds": options.rounds}
        requests.append({"cell": f"cell-{name}-plain", "way": "plain", **shared})
        for fraction in fractions:
            for way in (w for w in options.ways if w != "plain"):
                cell = f"cell-{name}-{way}-{fraction:g}"
                requests.append({"cell": cell, "way": way, "fraction": fraction, **shared})
    run_cells(__file__, options.output, requests, lambda _: 1200.0, options.again)
    write(options.output)


def networks() -> dict[str, Network]:
    """The three small ones, and those of `checkmate_tf.check.networks`."""
    import keras

    from checkmate_tf.check import networks as known

    def dense(depth: int = 12, width: int = 256) -> keras.Model:
        x = inputs = keras.Input((width,))
        for _ in range(depth):
            x = keras.layers.Dense(width, activation="tanh")(x)
        return keras.Model(inputs, keras.layers.Dense(10, activation="softmax")(x), name="dense")

    return known.NETWORKS | {
        "conv": known.Network("residual, BN, 24 px", lambda: known.small(24, 16, 4), (24, 24, 3), batch_size=32),
        "dense": known.Network("12 dense layers", dense, (256,), batch_size=1024),
        "encoder": known.Network(
            "transformer, 2 layers", lambda: known.transformer(2, 64, 64, 4), (64,), vocabulary=1000
        ),
    }


# What a child does ----------------------------------------------------------------------------------------------------


def answer(request: dict) -> dict:
    """One step, compiled one way."""
    os.environ["TF_CPU_ALLOCATOR_USE_BFC"] = "true"
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XLA_FLAGS"] = f"--xla_dump_to={folder} --xla_dump_hlo_as_text --xla_dump_hlo_module_re=.*measured.*"
        return measure(request, Path(folder))


def measure(request: dict, folder: Path) -> dict:
    """Compile and run the step of the request; XLA dumps to `folder`."""
    import tensorflow as tf

    from checkmate_tf.keras.batches.spec import data_spec
    from checkmate_tf.keras.built.building import build_training

    network = networks()[request["network"]]
    model = network.model()
    batch = tuple(tf.constant(a) for a in network.data(1))
    spec, _ = data_spec(model, None, None, network.data(1))
    build_training(model, spec, model.train_step)
    model.train_step(batch)  # makes the variables of the metrics
    variables = [*model.variables, *model.optimizer.variables, *model.metrics_variables]
    variables = list({id(v): v for v in variables}.values())
    start = [v.numpy() for v in variables]

    def plain(*data: tf.Tensor) -> Any:
        return model.train_step(data)

    found: dict[str, Any] = {"outcome": "measured"}
    emitted, other = plain, tf.function(plain, autograph=False, jit_compile=request["way"] != "plain")
    if request["way"] != "plain":
        program, schedule = planned(model, spec, network, request["fraction"])
        emitted = emission(request["way"], program, schedule)
        found |= describe(schedule)

    def measured(*data: tf.Tensor) -> Any:
        return emitted(*data)

    step = tf.function(measured, autograph=False, jit_compile=True)
    begun = time.perf_counter()
    ends = [one_step(step, batch, model, variables, start)]
    found["compile_seconds"] = time.perf_counter() - begun
    found["allocated_bytes"] = allocated(step, batch)
    ends.append(one_step(other, batch, model, variables, start))
    return found | from_dump(folder) | compare(*ends) | {"step_ratio": in_turn(step, other, batch, request["rounds"])}


def allocated(step: Callable[..., Any], batch: Sequence[Any]) -> int:
    """Most bytes that TensorFlow's allocator gives out while the step runs, beyond what is there before."""
    import tensorflow as tf

    before = tf.config.experimental.get_memory_info("CPU:0")["current"]
    tf.config.experimental.reset_memory_stats("CPU:0")
    float(step(*batch)["loss"])
    return int(tf.config.experimental.get_memory_info("CPU:0")["peak"]) - int(before)


def planned(model: Any, spec: Any, network: Network, fraction: float) -> tuple[Program, Schedule]:
    """The traced step, and its plan for a share of the activation peak; costs are FLOPs."""
    from dataclasses import replace

    import tensorflow as tf

    from checkmate_tf.costs import op_costs
    from checkmate_tf.schedule import keep_all
    from checkmate_tf.strategies import SolveOptions, solve
    from checkmate_tf.trace.program import build_program
    from checkmate_tf.trace.sizes.static import with_static_batch
    from checkmate_tf.trace.step import trace_step

    traced = trace_step(model.train_step, spec, as_written=True)
    shapes = [tf.TensorShape([network.batch_size if d is None else d for d in t.shape]) for t in traced.inputs]
    program = build_program(traced, with_static_batch(traced, shapes), model.name)
    operations = list(program.node_of)
    costs = op_costs([program.static.operations[op] for op in operations], "flops")
    graph = program.graph.with_costs(program.node_costs(operations, costs), "flop")
    budget = int(graph.constant_bytes + fraction * (keep_all(graph).peak_bytes - graph.constant_bytes))
    return replace(program, graph=graph), solve(graph, budget, options=SolveOptions(20, gap=0.01))


def describe(schedule: Schedule) -> dict:
    """What was planned."""
    from checkmate_tf.schedule import keep_all

    graph = schedule.graph
    return {
        "budget_bytes": schedule.budget_bytes,
        "predicted_peak_bytes": schedule.peak_bytes,
        "predicted_plain_bytes": keep_all(graph).peak_bytes,
        "constant_bytes": graph.constant_bytes,
        "recomputations": len(schedule.sequence) - len(graph),
    }


def emission(way: str, program: Program, schedule: Schedule) -> Callable[..., Any]:
    """A function that emits the plan where it is called."""
    import tensorflow as tf
    from tensorflow.compiler.tf2xla.ops.gen_xla_ops import xla_optimization_barrier

    from checkmate_tf.emit.emit import emit
    from checkmate_tf.emit.ordering import Within
    from checkmate_tf.emit.xla import XlaEmission, emit_for_xla, recomputed_runs

    class WithBarriers(XlaEmission):
        """Puts an optimization barrier over a kept value and what was computed last, in the place of the token."""

        def _make_token(self) -> None:
            before = [next((t for t in op.outputs if t.dtype.is_floating), None) for op in self.barriers.finished]
            self.token: Any = [t for t in before if t is not None] or self.token
            self.barriers.finished = {}

        def _tie(self, t: tf.Tensor) -> tf.Tensor:
            return xla_optimization_barrier([t, *self.token])[0]

    def with_barriers(*inputs: tf.Tensor) -> Any:
        made = WithBarriers(program, tf.compat.v1.get_default_graph(), inputs)
        made.run_tied(schedule.plan, recomputed_runs(schedule.plan))
        return made.outputs()

    return {
        "emitted": lambda *inputs: emit(program, schedule.plan, Within(schedule.peak_bytes), inputs),
        "barrier": with_barriers,
        "tied": lambda *inputs: emit_for_xla(program, schedule.plan, inputs),
    }[way]


def one_step(step: Callable[..., Any], batch: Sequence[Any], model: Any, variables: Sequence[Any], start: list) -> dict:
    """Loss, and every variable, after one step from the given values."""
    for v, value in zip(variables, start, strict=True):
        v.assign(value)
    loss = float(step(*batch)["loss"])
    momenta = {id(v) for v in model.optimizer.variables if "momentum" in v.path}
    values = [v.numpy() for v in variables]
    gradients = [a for a, v in zip(values, variables, strict=True) if id(v) in momenta]
    return {"loss": loss, "gradients": gradients, "values": values}


def compare(mine: dict, other: dict) -> dict:
    """Relative differences, and whether there are any."""
    import numpy as np

    from checkmate_tf.check.training import differences

    ends = [(end["loss"], [g.astype("float64") for g in end["gradients"]]) for end in (other, mine)]
    apart = differences(*ends)
    equal = all(np.array_equal(a, b) for a, b in zip(mine["values"], other["values"], strict=True))
    return {"loss_error": apart["loss"], "gradient_error": apart["gradients"], "equal_bits": equal}


def in_turn(step: Callable[..., Any], other: Callable[..., Any], batch: Sequence[Any], rounds: int) -> float:
    """Median ratio of the steps' times."""
    import numpy as np

    ratios = []
    for _ in range(rounds):
        seconds = []
        for function in (step, other):
            begun = time.perf_counter()
            float(function(*batch)["loss"])
            seconds.append(time.perf_counter() - begun)
        ratios.append(seconds[0] / seconds[1])
    return float(np.median(ratios))


def from_dump(folder: Path) -> dict:
    """Bytes of XLA's temporary memory, and its large operations before and after its passes."""
    assigned = next(folder.glob("*cpu_after_optimizations-buffer-assignment.txt")).read_text()
    temporary = re.findall(r"^allocation \d+: size (\d+), preallocated-temp", assigned, re.MULTILINE)
    given = next(folder.glob("*before_optimizations.txt")).read_text()
    left = next(folder.glob("*cpu_after_optimizations.txt")).read_text()
    return {
        "temporary_bytes": sum(map(int, temporary)),
        "given_operations": len(BIG_OPERATIONS.findall(given)),
        "left_operations": len(BIG_OPERATIONS.findall(left)),
    }


# Results --------------------------------------------------------------------------------------------------------------


def write(output: Path) -> None:
    """CSV and table of what is in the folder."""
    order = [*WAYS]
    cells = [c for c in read_cells(output) if c["network"] in FULL]
    cells.sort(key=lambda c: (FULL.index(c["network"]), -c.get("fraction", 1), order.index(c["way"])))
    plain = {c["network"]: c for c in cells if c["way"] == "plain" and c["outcome"] != FAILED}
    for cell in cells:
        base = plain.get(cell["network"])
        if cell["outcome"] == FAILED:
            continue
        if base is not None:
            cell["plain_temporary_bytes"] = base["temporary_bytes"]
            cell["of_plain"] = cell["temporary_bytes"] / base["temporary_bytes"]
        if "fraction" in cell:
            constant = cell["constant_bytes"]
            cell["predicted_of_plain"] = (cell["predicted_peak_bytes"] - constant) / (
                cell["predicted_plain_bytes"] - constant
            )
    write_csv(output / "cells.csv", COLUMNS, cells)
    text = as_table(cells)
    write_table(output, text)
    print(text)


def as_table(cells: Sequence[dict]) -> str:
    """A row a network and way."""
    titles = {name: network.title for name, network in networks().items()}
    rows = []
    for cell in cells:
        name = (titles[cell["network"]], WAYS[cell["way"]])
        if cell["outcome"] == FAILED:
            rows.append((*name, "", "", f"failed: {cell['reason']}", "", "", "", "", ""))
            continue
        rows.append(
            (
                *name,
                "" if cell["way"] == "plain" else f"{cell['predicted_of_plain']:.0%}",
                f"{cell['temporary_bytes'] / 1e6:.2f} MB",
                f"{cell['allocated_bytes'] / 1e6:.2f} MB" if "allocated_bytes" in cell else "",
                f"**{cell['of_plain']:.0%}**" if "of_plain" in cell else "",
                f"{cell['given_operations']} / {cell['left_operations']}",
                f"{cell['loss_error']:.0e}", f"{cell['gradient_error']:.0e}",
                "" if cell["way"] == "plain" else f"{cell['step_ratio']:.2f}x",
            )
        )  # fmt: skip
    head = (
        "network", "step", "planned", "temporary memory", "allocated", "of plain", "large operations, given / left",
        "loss differs", "gradients differ", "step time",
    )  # fmt: skip
    return markdown(head, rows) + "\n" + NOTE


if __name__ == "__main__":
    main()
