"""Gradients that read codes: what `operators="choose"` saves on this machine, measured.

For each network the plain step's peak is measured once (the median of seven steps); budgets are shares of it. At each,
the model is compiled with operators as TensorFlow has them and with the choice, and trains two batches; both must equal
the plain model bit by bit (Grappler off). A cell is a child process. Costs are profiled. Step times are medians of
three turns (plain, ours, ...).

With `--predicted` nothing is trained: at shares of the predicted plain peak, how much more computation (FLOPs) the best
schedule found needs with operators as they are and with the choice, and the least budget that either can do with.

The classifying networks end in global pooling and one dense layer, and train by SGD, so that activations are what
memory is for: VGG's dense layers would hide them.

    python benchmarks/product/operators.py                          # VGG16 at two budgets
    python benchmarks/product/operators.py --full                   # five networks, four budgets; resumes
    python benchmarks/product/operators.py --networks U-Net --shares 0.5 --output DIR
    python benchmarks/product/operators.py --predicted --full       # ten minutes
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.lib.cells import FAILED, read_cells, run_cells
from benchmarks.lib.options import common_options, serve_child
from benchmarks.lib.tables import markdown, write_rows, write_table

NETWORKS = ("VGG16", "U-Net", "transformer", "MobileNetV2", "ResNet50")
SHARES, QUICK_SHARES = (0.8, 0.7, 0.6, 0.5), (0.7, 0.6)
PREDICTED_SHARES = (0.8, 0.7, 0.6, 0.5, 0.4, 0.3)
PIXELS, BATCH = 128, 16  # of the classifying networks
WAYS = ("default", "choose")
STEPS, TURNS, PLAIN_STEPS = 2, 3, 7
COLUMNS = (
    "network", "way", "share", "outcome", "reason", "budget_bytes", "plain_peak_bytes", "peak_bytes", "predicted_bytes",
    "equal", "overhead", "gap", "step_ratio", "encodings", "compile_seconds",
)  # fmt: skip
BFC = {"TF_CPU_ALLOCATOR_USE_BFC": "true"}


def main() -> None:
    parser = common_options(__doc__, "operators", "VGG16 at two budgets", "five networks at four budgets")
    parser.add_argument("--networks", nargs="*", choices=NETWORKS, help="only these")
    parser.add_argument("--shares", nargs="*", type=float, help="budgets, of the plain step's measured peak")
    parser.add_argument("--time-limit", type=float, default=20.0, help="seconds of solving (default 20)")
    parser.add_argument("--predicted", action="store_true", help="train nothing")
    options = parser.parse_args()
    if serve_child(options, lambda request: CHILDREN[request["run"]](request)):
        return
    options.output.mkdir(parents=True, exist_ok=True)
    networks = options.networks or (NETWORKS if options.full else NETWORKS[:1])
    shares = options.shares or (SHARES if options.full else QUICK_SHARES)
    if options.predicted:
        shares = options.shares or PREDICTED_SHARES
    failed = []
    for name in () if options.draw else networks:
        run = partial(
            run_cells, __file__, options.output, seconds=lambda _: 1800.0, again=options.again, environment=BFC
        )
        shared = {"network": name, "time_limit": options.time_limit, "predicted": options.predicted}
        if options.predicted:
            cells = [{**shared, "run": "predict", "share": s, "way": w} for s in shares for w in WAYS]
        else:
            (plain,) = run([{"cell": f"plain-{name}", "run": "plain", "network": name}])
            if plain["outcome"] == FAILED:
                failed.append(f"{name}'s plain step: {plain['reason']}")
                continue
            peak = plain["plain_peak_bytes"]
            budgets = {s: {"plain_peak_bytes": peak, "budget_bytes": int(s * peak)} for s in shares}
            cells = [{**shared, "run": "train", "share": s, **budgets[s], "way": w} for s in shares for w in WAYS]
        kind = "cell-predicted" if options.predicted else "cell"
        run([{"cell": f"{kind}-{name}-{c['way']}-{c['share']:g}", **c} for c in cells])
    write(options)
    if failed:
        raise SystemExit("\n".join(failed))


def network(name: str) -> tuple[Callable[[], Any], list[tuple[Any, Any]]]:
    """How to build the model, and its batches."""
    import keras
    import numpy as np

    from checkmate_tf.check import networks

    rng = np.random.default_rng(0)

    def classifier() -> Any:
        base = getattr(keras.applications, name)(
            weights=None, include_top=False, pooling="avg", input_shape=(PIXELS, PIXELS, 3)
        )
        return keras.Sequential([base, keras.layers.Dense(10, activation="softmax")], name=name.lower())

    if name in ("U-Net", "transformer"):
        known = networks.NETWORKS["unet" if name == "U-Net" else name]
        build, (x, y) = known.build, known.data(STEPS)
        size = known.batch_size
    else:
        build, size = classifier, BATCH
        x = rng.random((STEPS * BATCH, PIXELS, PIXELS, 3), "float32")
        y = rng.integers(0, 10, STEPS * BATCH)

    def make() -> Any:
        keras.utils.set_random_seed(0)
        model = build()
        model.compile("sgd", "sparse_categorical_crossentropy")
        return model

    return make, [(x[k : k + size], y[k : k + size]) for k in range(0, STEPS * size, size)]


def train(model: Any, batches: Sequence[tuple[Any, Any]]) -> tuple[list[float], list[int]]:
    """The loss of each step, and the peak of each after the first, which traces."""
    import tensorflow as tf

    losses, peaks = [], list[int]()
    for pair in batches:
        tf.config.experimental.reset_memory_stats("CPU:0")
        losses.append(float(model.train_on_batch(*pair)))
        peaks.append(int(tf.config.experimental.get_memory_info("CPU:0")["peak"]))
    return losses, peaks[1:]


def measure_plain(request: dict) -> dict:
    """The plain step's peak: steps differ, and the median counts."""
    import tensorflow as tf

    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    make, data = network(request["network"])
    _, peaks = train(make(), data[:1] * (PLAIN_STEPS + 1))
    return {"outcome": "measured", "plain_peak_bytes": int(statistics.median(peaks)), "peaks_bytes": peaks}


def answer(request: dict) -> dict:
    """Train both from the same weights, and time them in turn."""
    import numpy as np
    import tensorflow as tf

    import checkmate_tf

    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    make, data = network(request["network"])

    def seconds(model: Any) -> float:
        begun = time.perf_counter()
        model.train_on_batch(*data[0])
        return time.perf_counter() - begun

    plain = make()
    wanted, _ = train(plain, data)
    expected = [v.numpy() for v in plain.variables]
    ours = make()
    resident = sum(v.numpy().nbytes for v in plain.variables)
    budget = request["budget_bytes"] + resident  # the plain model lives beside ours
    try:
        checkmate_tf.compile(
            ours, budget, data=data[0], time_limit=request["time_limit"], operators=request["way"], progress=False,
            cache=False,
        )  # fmt: skip
    except checkmate_tf.InfeasibleBudgetError as error:
        least = (error.minimum_bytes - resident) / 1e6
        return {"outcome": "refused", "reason": f"refused: at least {least:.0f} MB"}
    found, peaks = train(ours, data)
    report = ours.checkmate
    same = all(np.array_equal(a, b.numpy()) for a, b in zip(expected, ours.variables, strict=True))
    turns = [(seconds(plain), seconds(ours)) for _ in range(TURNS)]
    return {
        "outcome": "trained",
        "peak_bytes": max(peaks) - resident,
        "predicted_bytes": report.predicted_peak_bytes,
        "equal": bool(same and found == wanted),
        "overhead": report.overhead,
        "gap": report.schedule.gap,
        "step_ratio": statistics.median(b / a for a, b in turns),
        "encodings": " ".join(f"{count} {kind}" for kind, count in report.encodings.items()),
        "compile_seconds": sum(report.seconds.values()),
    }


def predict(request: dict) -> dict:
    """The best schedule found, and what it is predicted to cost."""
    import checkmate_tf

    make, data = network(request["network"])
    model = make()
    settings = {"costs": "flops", "verify": False, "progress": False, "cache": False, "gap": 0.003}
    try:
        checkmate_tf.compile(
            model, float(request["share"]), data=data[0], time_limit=request["time_limit"], operators=request["way"],
            **settings,
        )  # fmt: skip
    except checkmate_tf.InfeasibleBudgetError as error:
        return {"outcome": "refused", "least_bytes": error.minimum_bytes}
    report = model.checkmate
    return {
        "outcome": "solved",
        "budget_bytes": report.budget_bytes,
        "plain_peak_bytes": report.plain_peak_bytes,
        "predicted_bytes": report.predicted_peak_bytes,
        "overhead": report.overhead,
        "gap": report.schedule.gap,
        "encodings": " ".join(f"{count} {kind}" for kind, count in report.encodings.items()),
    }


CHILDREN = {"plain": measure_plain, "train": answer, "predict": predict}


def write_predicted(output: Path, cells: Sequence[dict]) -> None:
    """A row a network, both ways in each budget."""
    shares = sorted({c["share"] for c in cells}, reverse=True)
    lines = []
    for name in dict.fromkeys(c["network"] for c in cells):
        mine = {(c["share"], c["way"]): c for c in cells if c["network"] == name}
        plain = next((c["plain_peak_bytes"] for c in mine.values() if "plain_peak_bytes" in c), None)
        texts = (" / ".join(_predicted(mine.get((share, way))) for way in WAYS) for share in shares)
        lines.append((name, "" if plain is None else f"{plain / 1e6:.0f} MB", *texts))
    text = markdown(("network", "plain peak", *(f"{share:.0%}" for share in shares)), lines)
    write_table(output, text, "predicted.md")
    print(text)


def _predicted(cell: dict | None) -> str:
    if cell is None:
        return "not run"
    return f"{cell['overhead']:.2%}" if cell["outcome"] == "solved" else f"at least {cell['least_bytes'] / 1e6:.0f} MB"


def write(options: Any) -> None:
    """CSV and tables of what is in the folder."""
    found = [c for c in read_cells(options.output) if c.get("outcome") != FAILED or not c.get("predicted")]
    found.sort(key=lambda c: (NETWORKS.index(c["network"]), -c["share"], c["way"]))
    if any(c.get("predicted") for c in found):
        write_predicted(options.output, [c for c in found if c.get("predicted")])
    cells = [c for c in found if not c.get("predicted")]
    if not cells:
        return
    write_rows(options.output, COLUMNS, cells)
    lines = []
    for name in NETWORKS:
        for share in sorted({c["share"] for c in cells if c["network"] == name}, reverse=True):
            by_way = {c["way"]: c for c in cells if (c["network"], c["share"]) == (name, share)}
            some = next(iter(by_way.values()))
            plain, budget = (some[k] / 1e6 for k in ("plain_peak_bytes", "budget_bytes"))
            texts = [_text(by_way[way]) if way in by_way else "not run" for way in WAYS]
            lines.append((name, f"{plain:.0f} MB", f"{share:.0%}: {budget:.0f} MB", *texts))
    text = markdown(("network", "plain peak", "budget", "operators as they are", "chosen"), lines)
    write_table(options.output, text)
    print(text)


def _text(cell: dict) -> str:
    if cell["outcome"] != "trained":
        return str(cell["reason"])
    codes = f"; {cell['encodings']}" if cell["encodings"] else ""
    equal = "" if cell["equal"] else ", **not equal**"
    return f"{cell['peak_bytes'] / 1e6:.0f} MB, {cell['overhead']:.1%} more, {cell['step_ratio']:.2f}x{codes}{equal}"


if __name__ == "__main__":
    main()
