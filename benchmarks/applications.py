"""Networks of keras.applications, trained plainly and within 60% of the plain step's measured peak: equal bit by bit?

A cell is a child process: random weights, images small enough for a small machine, SGD, Grappler off. The plain
model's peak is measured, the other one is compiled for 60% of all of it (parameters and gradients included), or, where
that is below the least that is possible, for the least that works; both train the same two batches from the same
state. Compared are losses, metrics and every variable: weights, BatchNormalization statistics, seeds, slots.

    python benchmarks/applications.py                          # two networks
    python benchmarks/applications.py --full                   # ten; resumes
    python benchmarks/applications.py --networks Xception --optimizer adam --output DIR
"""

from __future__ import annotations

from typing import Any

from cells import FAILED, common_options, markdown, read_cells, run_cells, serve_child, write_rows

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
    """Train both, from the same weights."""
    import keras
    import numpy as np
    import tensorflow as tf

    import checkmate_tf

    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    rng = np.random.default_rng(0)
    shape, batch = (request["pixels"], request["pixels"], 3), request["batch"]
    data = [(rng.random((batch, *shape), "float32"), rng.integers(0, 10, batch)) for _ in range(STEPS)]

    def build() -> Any:
        keras.utils.set_random_seed(0)
        network = getattr(keras.applications, request["network"])
        model = network(weights=None, input_shape=shape, classes=10)
        model.compile(request["optimizer"], "sparse_categorical_crossentropy", metrics=["accuracy"])
        return model

    def train(model: Any) -> tuple[list[float], int]:
        """What each step returns, and the peak of those after the first, which traces."""
        logs = model.train_on_batch(*data[0])
        tf.config.experimental.reset_memory_stats("CPU:0")
        for pair in data[1:]:
            logs = [*logs, *model.train_on_batch(*pair)]
        return [float(v) for v in logs], int(tf.config.experimental.get_memory_info("CPU:0")["peak"])

    def state(model: Any) -> list[Any]:
        return [v.numpy() for v in (*model.variables, *model.optimizer.variables)]

    plain = build()
    wanted, plain_peak = train(plain)
    expected = state(plain)
    del plain
    keras.backend.clear_session(free_memory=True)  # collects, too
    ours = build()
    budget, least = int(SHARE * plain_peak), 0
    for _ in range(RAISES + 1):
        try:
            settings = {"time_limit": request["time_limit"], "costs": "flops", "progress": False, "cache": False}
            checkmate_tf.compile(ours, budget, data=data[0], **settings)
            break
        except checkmate_tf.InfeasibleBudgetError as error:
            least = error.minimum_bytes
            budget = int(1.01 * least)
    else:
        return {"outcome": FAILED, "reason": f"still refused: at least {least / 1e6:.0f} MB"}
    found, peak = train(ours)
    report = ours.checkmate
    same = all(np.array_equal(a, b) for a, b in zip(expected, state(ours), strict=True))
    return {
        "outcome": "trained",
        "share": budget / plain_peak,
        "budget_bytes": budget,
        "plain_peak_bytes": plain_peak,
        "peak_bytes": peak,
        "predicted_bytes": report.predicted_peak_bytes,
        "equal": bool(same and found == wanted),
        "recomputations": report.recomputations,
        "overhead": report.overhead,
        "gap": report.schedule.gap,
        "compile_seconds": sum(report.seconds.values()),
    }


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
    (options.output / "table.md").write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
