"""Networks of keras.applications, trained plainly and within 60% of the plain step's measured peak: equal bit by bit?

A cell is a child process: random weights, images small enough for a small machine, SGD, Grappler off. The plain
model's peak is measured, the other one is compiled for 60% of all of it (parameters and gradients included), or, where
that is below the least that is possible, for the least that works; both train the same two batches from the same
state. Compared are losses, metrics and every variable: weights, BatchNormalization statistics, seeds, slots.

    python benchmarks/product/applications.py                          # two networks
    python benchmarks/product/applications.py --full                   # ten; resumes
    python benchmarks/product/applications.py --networks Xception --optimizer adam --output DIR
"""

from __future__ import annotations

import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.lib.cells import FAILED, read_cells, run_cells
from benchmarks.lib.options import common_options, serve_child
from benchmarks.lib.tables import markdown, write_rows, write_table
from checkmate_tf import InfeasibleBudgetError

SIZES = {
    "MobileNetV2": (96, 32),
    "MobileNetV3Small": (128, 32),
    "MobileNetV3Large": (96, 32),
    "EfficientNetV2B0": (96, 16),
    "ResNet50V2": (96, 16),
    "DenseNet121": (64, 16),
    "InceptionV3": (96, 32),
    "Xception": (96, 16),
    "NASNetMobile": (64, 16),
    "ConvNeXtTiny": (64, 16),
}
"""Pixels a side, and images a batch."""

QUICK = ("MobileNetV2", "DenseNet121")
SHARE = 0.6  # of the plain peak
RAISES = 4  # times that an infeasible budget is raised to what the error names
STEPS = 2
COLUMNS = (
    "network", "pixels", "batch", "optimizer", "outcome", "reason", "share", "budget_bytes", "plain_peak_bytes",
    "peak_bytes", "predicted_bytes", "equal", "recomputations", "overhead", "gap", "compile_seconds",
)  # fmt: skip
BFC = {"TF_CPU_ALLOCATOR_USE_BFC": "true"}


def main() -> None:
    parser = common_options(__doc__, "applications", "two networks", "ten networks")
    parser.add_argument("--networks", nargs="*", choices=list(SIZES), help="only these")
    parser.add_argument("--optimizer", default="sgd", help="by Keras's name (default sgd)")
    parser.add_argument("--time-limit", type=float, default=10.0, help="seconds of solving (default 10)")
    options = parser.parse_args()
    if serve_child(options, answer):
        return
    options.output.mkdir(parents=True, exist_ok=True)
    requests = [
        {
            "cell": f"cell-{name}-{options.optimizer}", "network": name, "pixels": SIZES[name][0],
            "batch": SIZES[name][1], "optimizer": options.optimizer, "time_limit": options.time_limit,
        }
        for name in (() if options.draw else options.networks or (list(SIZES) if options.full else QUICK))
    ]  # fmt: skip
    run_cells(__file__, options.output, requests, lambda _: 1800.0, options.again, BFC)
    write(options)


def answer(request: dict) -> dict:
    """Train both, from the same weights: each in a process of its own, where nothing of the other is in memory."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        wanted, plain_peak = pool.submit(train, request).result()
    try:
        found, peak, report = train_within(request, int(SHARE * plain_peak))
    except InfeasibleBudgetError as error:
        return {"outcome": FAILED, "reason": f"still refused: {error}"}
    return {
        "outcome": "trained",
        "share": report.budget_bytes / plain_peak,
        "budget_bytes": report.budget_bytes,
        "plain_peak_bytes": plain_peak,
        "peak_bytes": peak,
        "predicted_bytes": report.predicted_peak_bytes,
        "equal": len(wanted) == len(found) and all(np.array_equal(a, b) for a, b in zip(wanted, found, strict=True)),
        "recomputations": report.recomputations,
        "overhead": report.overhead,
        "gap": report.schedule.gap,
        "compile_seconds": sum(report.seconds.values()),
    }


def train_within(request: dict, budget: int) -> tuple[list[Any], int, Any]:
    """As `train`, compiled for a budget, or for the least that works; and the report."""
    import checkmate_tf

    settings = {"time_limit": request["time_limit"], "costs": "flops", "progress": False, "cache": False}
    model, data = prepared(request)
    for left in reversed(range(RAISES + 1)):
        try:
            checkmate_tf.compile(model, budget, data=data[0], **settings)
            break
        except InfeasibleBudgetError as error:
            if not left:
                raise
            budget = int(1.01 * error.minimum_bytes)
    return *trained(model, data), model.checkmate


def train(request: dict) -> tuple[list[Any], int]:
    """All numbers that two steps of the plain model leave, and the peak of the second, since the first one traces."""
    return trained(*prepared(request))


def prepared(request: dict) -> tuple[Any, list[Any]]:
    """The model, with the weights of every other call, and its batches."""
    import keras
    import tensorflow as tf

    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    rng = np.random.default_rng(0)
    shape, batch = (request["pixels"], request["pixels"], 3), request["batch"]
    data = [(rng.random((batch, *shape), "float32"), rng.integers(0, 10, batch)) for _ in range(STEPS)]
    keras.utils.set_random_seed(0)
    network = getattr(keras.applications, request["network"])
    model = network(weights=None, input_shape=shape, classes=10)
    model.compile(request["optimizer"], "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model, data


def trained(model: Any, data: list[Any]) -> tuple[list[Any], int]:
    """What each step returns and every variable; and the allocator's peak after the first step."""
    import tensorflow as tf

    logs = [model.train_on_batch(*data[0])]
    tf.config.experimental.reset_memory_stats("CPU:0")
    logs += [model.train_on_batch(*pair) for pair in data[1:]]
    peak = int(tf.config.experimental.get_memory_info("CPU:0")["peak"])
    return [np.array(logs, "float64"), *(v.numpy() for v in (*model.variables, *model.optimizer.variables))], peak


def write(options: Any) -> None:
    """CSV and table of what is in the folder."""
    cells = sorted(read_cells(options.output), key=lambda c: (list(SIZES).index(c["network"]), c["optimizer"]))
    write_rows(options.output, COLUMNS, cells)
    lines = []
    for c in cells:
        name = f"{c['network']}, {c['pixels']} px, batch {c['batch']}, {c['optimizer']}"
        if c["outcome"] == FAILED:
            lines.append((name, "", f"failed: {c['reason']}", "", "", ""))
            continue
        plain, budget, peak = (f"{c[k] / 1e6:.0f} MB" for k in ("plain_peak_bytes", "budget_bytes", "peak_bytes"))
        recomputed = f"{c['overhead']:.1%} (gap {c['gap']:.1%})"
        lines.append((name, plain, f"{c['share']:.0%}: {budget}", peak, "yes" if c["equal"] else "**no**", recomputed))
    head = ("network", "plain peak", "budget", "measured peak", "equal bits", "recomputed, of FLOPs")
    text = markdown(head, lines)
    write_table(options.output, text)
    print(text)


if __name__ == "__main__":
    main()
