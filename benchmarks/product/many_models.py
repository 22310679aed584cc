"""Forty small models of many kinds, each with `compile(model, 60% of the plain peak)` and nothing else; and its rivals.

Each model is trained for two epochs of three batches, in a process of its own for each way:

- plain: as Keras does it; its peak over that `fit` is what others are compared with;
- ours: `checkmate_tf.compile(model, budget)`, where the budget is a share of the plain peak. If that is refused, the
  least budget that the error names is asked for, in another process.
  Then a plain model is made beside it, and their steps take turns;
- `keras.RematScope`, in modes "activations" and "full", and `tf.recompute_grad` by blocks (see `rivals.py`).

Losses and all variables are compared with those of the plain model, bit by bit; Grappler is off in all of them.

    python benchmarks/product/many_models.py --quick           # four models
    python benchmarks/product/many_models.py --full            # all; resumes
    python benchmarks/product/many_models.py --models ragged vae --no-rivals --output DIR
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.lib.cells import FAILED, read_cells, run_cells
from benchmarks.lib.options import common_options, serve_child
from benchmarks.lib.tables import markdown, write_rows, write_table

KINDS = (
    "gradient penalty", "diffusion", "vae", "experts", "towers", "distilled", "ctc", "detector", "fourier",
    "py_function", "numpy_function", "mask", "unique", "tensor array", "convnext", "masked state", "ranged", "routed",
    "looped", "repeated", "shortened", "mapped", "ragged", "sparse",
)  # fmt: skip
NETWORKS = (
    "dropout", "batchnorm", "groupnorm", "separable", "residual", "densenet", "squeeze", "autoencoder", "unet",
    "conv3d", "gru", "bidirectional", "attention", "mixer",
)  # fmt: skip
LIBRARY = ("EfficientNetV2B0", "ConvNeXt small", "ViT classifier", "BERT classifier")
MODELS = (*KINDS, *NETWORKS, *LIBRARY)
QUICK = ("vae", "experts", "ragged", "residual")
SHARE, BATCHES, EPOCHS = 0.6, 3, 2
RIVALS = {
    "RematScope, activations": {"way": "remat-scope", "mode": "activations"},
    "RematScope, full": {"way": "remat-scope", "mode": "full"},
    "recompute_grad": {"way": "recompute-grad"},
}
BFC = {"TF_CPU_ALLOCATOR_USE_BFC": "true"}
ASKS = 3  # the share, what its error names, and what that one's does
ROUNDING = 1e-5  # of a loss: what other last bits make of it after six steps
ROUNDS, TURN = 9, 0.1  # turns, and seconds of each at least
LIGHT, MOST = 1.15, 1.25  # a step that is expected to take so many times the plain one's time may take so many
SOON = 15  # seconds of planning
COLUMNS = (
    "model", "way", "outcome", "reason", "equal", "loss_error", "plain_bytes", "budget_bytes", "refused", "peak_bytes",
    "variable_bytes", "predicted_bytes", "overhead", "recomputations", "plans", "expected_ratio", "step_ratio",
    "plain_step_ms", "planning_seconds", "costs_seconds", "fit_seconds", "plain_fit_seconds",
)  # fmt: skip


def main() -> None:
    parser = common_options(__doc__, "many_models", "four models", "all models")
    parser.add_argument("--models", nargs="*", choices=MODELS, metavar="MODEL", help="only these")
    parser.add_argument("--no-rivals", action="store_true", help="plain Keras and ours alone")
    parser.add_argument("--time-limit", type=float, default=20.0, help="seconds of solving (default 20)")
    options = parser.parse_args()
    if serve_child(options, answer):
        return
    options.output.mkdir(parents=True, exist_ok=True)
    names = () if options.draw else options.models or (MODELS if options.full else QUICK)

    def run(requests: list[dict], jobs: int) -> list[dict]:
        return run_cells(__file__, options.output, requests, lambda _: 600.0, options.again, BFC, jobs=jobs)

    def ask(request: dict) -> dict:
        """Timed, so one at a time."""
        (cell,) = run([request], 1)
        if cell["budget_bytes"] != request["budget_bytes"]:  # an earlier run had another peak or error before it
            (options.output / f"{request['cell']}.json").unlink()
            (cell,) = run([request], 1)
        return cell

    plain = run([{"cell": f"cell-{slug(name)}-plain", "model": name, "way": "plain"} for name in names], 2)
    if not options.no_rivals:
        run(
            [{"cell": f"cell-{slug(name)}-{slug(way)}", "model": name, "way": way} for name in names for way in RIVALS],
            2,
        )
    for cell in plain:
        if cell["outcome"] == "trained":
            last = asked(cell, options.time_limit, ask)
            for later in range(last + 1, ASKS):  # of an earlier run
                (options.output / f"cell-{slug(cell['model'])}-ours-{later}.json").unlink(missing_ok=True)
    write(options.output)


def asked(plain: dict, time_limit: float, run: Callable[[dict], dict]) -> int:
    """Ask for the share of the plain peak, and then for what errors name; each in a process of its own.

    Returns the number of the last question.
    """
    budget = int(SHARE * plain["peak_bytes"])
    for ask in range(ASKS):
        cell = run(
            {
                "cell": f"cell-{slug(plain['model'])}-ours-{ask}", "model": plain["model"], "way": "ours",
                "budget_bytes": budget, "ask": ask, "time_limit": time_limit,
            }
        )  # fmt: skip
        if cell["outcome"] != "refused":
            break
        budget = cell["named_bytes"]
    return ask


def slug(name: str) -> str:
    """A name as part of a file's name."""
    return name.lower().replace(" ", "-").replace(",", "")


# In the children ------------------------------------------------------------------------------------------------------


def subject(name: str) -> tuple[Any, Any, int]:
    """How a model is built, its data by the number of samples, and its batch size."""
    from benchmarks.lib.deeper_kinds import DEEPER as deeper
    from benchmarks.lib.kinds import KINDS as kinds

    if name in deeper or name in kinds:
        kind = deeper.get(name) or kinds[name]
        return kind.build, kind.data, kind.batch
    if name in NETWORKS:
        from benchmarks.lib.small_models import MODELS as networks

        network = networks[name]
        return network.model, lambda n: network.data(n // network.batch_size), network.batch_size
    from benchmarks.lib.library_models import LIBRARY as library

    return library[name].build, library[name].data, library[name].batch


def made(build: Any) -> Any:
    """A model with the weights and seeds that all have."""
    import keras

    keras.utils.set_random_seed(3)
    model = build()
    model.jit_compile = False
    return model


def answer(request: dict) -> dict:
    """Train in one way: outcome, bits and peak."""
    import tensorflow as tf

    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    build, data, batch = subject(request["model"])
    if request["way"] == "plain":
        model = made(build)
        return trained(model, data, batch) | {"outcome": "trained", "variable_bytes": _variable_bytes(model)}
    if request["way"] == "ours":
        return ours(request, build, data, batch)
    try:
        return trained(rival(RIVALS[request["way"]], build), data, batch) | {"outcome": "trained"}
    except Exception as error:  # noqa: BLE001 - what a rival raises is its outcome
        from benchmarks.lib.rivals import in_a_line

        return {"outcome": "raised", "reason": in_a_line(error)}


def rival(variant: dict, build: Any) -> Any:
    """The model as a rival has it."""
    import keras

    from benchmarks.lib.rivals import recompute_by_segments

    if variant["way"] == "remat-scope":
        with keras.RematScope(mode=variant["mode"]):
            return made(build)
    model = made(build)
    recompute_by_segments(model)
    return model


def trained(model: Any, data: Any, batch: int) -> dict:
    """Two epochs of `fit`: the allocator's peak, seconds, and a digest of losses and variables."""
    import hashlib
    import time

    import numpy as np
    import tensorflow as tf

    x, y = data(BATCHES * batch)
    tf.config.experimental.reset_memory_stats("CPU:0")
    controller = getattr(model, "_checkmate_controller", None)
    if controller is not None:
        controller.begin_peak()
    begun = time.perf_counter()
    history = model.fit(x, y, batch_size=batch, epochs=EPOCHS, shuffle=False, verbose=0).history
    seconds = time.perf_counter() - begun
    peak = int(tf.config.experimental.get_memory_info("CPU:0")["peak"])
    if controller is not None:  # which measures plans meanwhile
        peak = controller.peak_bytes()
    bits = hashlib.sha256(repr(history).encode())
    for v in [*model.variables, *model.optimizer.variables]:
        bits.update(np.array(v).tobytes())
    losses = [float(value) for name, values in sorted(history.items()) if "loss" in name for value in values]
    return {"peak_bytes": peak, "fit_seconds": seconds, "bits": bits.hexdigest(), "losses": losses}


def ours(request: dict, build: Any, data: Any, batch: int) -> dict:
    """Train within the budget. Then the turns."""
    import checkmate_tf

    model = made(build)
    checkmate_tf.compile(model, request["budget_bytes"], time_limit=request["time_limit"], progress=False, cache=False)
    try:
        found = trained(model, data, batch)
    except checkmate_tf.InfeasibleBudgetError as error:
        return {"outcome": "refused", "reason": str(error), "named_bytes": error.minimum_bytes}
    report = model.checkmate
    ratio, plain_ms = turns(model, build, data, batch)
    return found | {
        "outcome": "trained",
        "predicted_bytes": report.predicted_peak_bytes,
        "training_bytes": report.training_peak_bytes,
        "overhead": report.overhead,
        "recomputations": report.recomputations,
        "strict": report.strict,
        "nodes": len(report.schedule.graph),
        "plans": len(report.attempts),
        "planning_seconds": sum(report.seconds.values()),
        "stages": report.seconds,
        "expected_ratio": report.step_ratio,
        "step_ratio": ratio,
        "plain_step_ms": plain_ms,
    }


def turns(model: Any, build: Any, data: Any, batch: int) -> tuple[float, float]:
    """Step time over that of a plain model, in turn."""
    import time

    import tensorflow as tf

    from checkmate_tf.check.training import in_turn, step_of, unwatch

    unwatch(model)
    plain = made(build)
    x, y = data(batch)
    plain.fit(x, y, batch_size=batch, verbose=0)
    given = next(iter(tf.data.Dataset.from_tensor_slices((x, y)).batch(batch)))
    steps = step_of(plain), step_of(model)
    for step in steps:
        step(given)
    begun = time.perf_counter()
    steps[0](given)
    count = max(1, int(TURN / (time.perf_counter() - begun)))
    return in_turn(*steps, given, ROUNDS, count)


def _variable_bytes(model: Any) -> int:
    from checkmate_tf.check.training import variable_bytes

    return variable_bytes(model)


# Results --------------------------------------------------------------------------------------------------------------


def rows_of(output: Path) -> list[dict]:
    """A row for each model and way."""
    cells = {(cell["model"], cell["way"]): cell for cell in read_cells(output)}  # of several asks, the last
    rows = []
    for name in MODELS:
        plain = cells.get((name, "plain"), {"outcome": FAILED})
        for way in ("plain", "ours", *RIVALS):
            cell = cells.get((name, way))
            if cell is None or plain["outcome"] != "trained":
                continue
            row = {key: cell[key] for key in COLUMNS if key in cell}
            if "stages" in cell:
                row["costs_seconds"] = cell["stages"]["costs"]
            row |= {
                "equal": cell.get("bits") == plain["bits"],
                "loss_error": _error(cell.get("losses"), plain["losses"]),
                "plain_bytes": plain["peak_bytes"],
                "budget_bytes": cell.get("budget_bytes"),
                "refused": cell.get("ask"),
                "variable_bytes": plain["variable_bytes"],
                "plain_fit_seconds": plain["fit_seconds"],
            }
            rows.append(row)
    return rows


def write(output: Path) -> None:
    """CSV and tables of what is in the folder."""
    rows = rows_of(output)
    write_rows(output, COLUMNS, rows)
    text = "\n".join([ours_table(rows), times(rows), summary(rows), rivals_table(rows)])
    write_table(output, text)
    print(text)


def ours_table(rows: list[dict]) -> str:
    """Each model within its budget."""
    lines = []
    for r in rows:
        if r["way"] != "ours":
            continue
        start = (r["model"], f"{r['plain_bytes'] / 1e6:.1f}", f"{r['variable_bytes'] / 1e6:.1f}")
        if r["outcome"] != "trained":
            lines.append((*start, r["outcome"], *[""] * 7))
            continue
        expected = _expected(r)
        kept = "" if r["peak_bytes"] <= r["budget_bytes"] else " OVER"
        lines.append((
            *start, f"{r['budget_bytes'] / r['plain_bytes']:.0%}" + (" (least)" if r["refused"] else ""),
            f"{r['peak_bytes'] / 1e6:.1f}{kept}", f"{r['peak_bytes'] / r['plain_bytes']:.0%}",
            "yes" if r["equal"] else "NO", f"{r['overhead']:.1%}", f"{expected:.2f}x", f"{r['step_ratio']:.2f}x",
            f"{r['planning_seconds'] - r['costs_seconds']:.1f} ({r['costs_seconds']:.1f})",
        ))  # fmt: skip
    head = (
        "model", "plain peak, MB", "of that variables", "budget", "peak, MB", "of plain", "equal bits", "overhead",
        "step expected", "step time over plain", "planning (and timing operators), s",
    )  # fmt: skip
    return markdown(head, lines)


def times(rows: list[dict]) -> str:
    """How many steps take what was expected, and how long plans take to make."""
    ran = [r for r in rows if r["way"] == "ours" and r["outcome"] == "trained"]
    light = [r for r in ran if _expected(r) <= LIGHT]
    kept = [r for r in light if r["step_ratio"] <= MOST]
    seconds = sorted(r["planning_seconds"] - r["costs_seconds"] for r in ran)
    soon = [s for s in seconds if s <= SOON]
    if not ran:
        return ""
    return (
        f"Of {len(light)} models whose step is expected to take at most {LIGHT} times the plain one, {len(kept)} take "
        f"at most {MOST} times. Once operators are timed, planning takes at most {SOON} s for {len(soon)} of "
        f"{len(ran)}, {seconds[len(seconds) // 2]:.1f} s in the median and {seconds[-1]:.1f} s at most.\n"
    )


def _expected(row: dict) -> float:
    """Step time over plain that the report expects; results of before it was written down have the overhead."""
    return row.get("expected_ratio") or 1 + row["overhead"]


def summary(rows: list[dict]) -> str:
    """How many run, keep their numbers, and save memory, in each way."""
    lines = []
    for way in ("ours", *RIVALS):
        mine = [r for r in rows if r["way"] == way]
        if not mine:
            continue
        ran = [r for r in mine if r["outcome"] == "trained"]
        equal = [r for r in ran if r["equal"]]
        close = [r for r in ran if r["equal"] or _rounded(r)]
        less = [r for r in equal if r["peak_bytes"] < 0.95 * r["plain_bytes"]]
        shares = sorted(r["peak_bytes"] / r["plain_bytes"] for r in ran)
        median = f"{shares[len(shares) // 2]:.0%}" if shares else ""
        lines.append((TITLES.get(way, way), len(mine), len(ran), len(close), len(equal), len(less), median))
    head = (
        "way", "models", "train", "with plain losses to rounding", "with equal bits", "and at least 5% less memory",
        "median peak of plain",
    )  # fmt: skip
    return f"## In short\n\n{markdown(head, lines)}"


def rivals_table(rows: list[dict]) -> str:
    """Peak of each way, and whether its numbers are plain ones."""
    lines = []
    for name in MODELS:
        mine = {r["way"]: r for r in rows if r["model"] == name}
        if len(mine) > 2:
            lines.append((name, *(_told(mine.get(way)) for way in ("ours", *RIVALS))))
    return markdown(("model", *(TITLES.get(way, way) for way in ("ours", *RIVALS))), lines) if lines else ""


def _told(row: dict | None) -> str:
    if row is None:
        return ""
    if row["outcome"] != "trained":
        return f"{row['outcome']}: {row.get('reason', '')[:60]}"
    share = f"{row['peak_bytes'] / row['plain_bytes']:.0%}"
    if row["equal"]:
        return share
    return f"{share}, last bits differ" if _rounded(row) else f"{share}, other numbers"


def _rounded(row: dict) -> bool:
    """Whether losses differ from the plain ones by no more than rounding."""
    return row["loss_error"] is not None and row["loss_error"] < ROUNDING


def _error(losses: list[float] | None, plain: list[float]) -> float | None:
    """The largest relative difference of a loss of an epoch from the plain model's; None if there is none."""
    if not losses or len(losses) != len(plain):
        return None
    return max((abs(a - b) / max(abs(b), 1e-9) for a, b in zip(losses, plain, strict=True)), default=0.0)


TITLES = {
    "ours": "checkmate_tf",
    "RematScope, activations": 'keras.RematScope("activations")',
    "RematScope, full": 'keras.RematScope("full")',
    "recompute_grad": "tf.recompute_grad by blocks",
}


if __name__ == "__main__":
    main()
