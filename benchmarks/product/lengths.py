"""Sequences of several lengths: one budget, a plan for each length, and the numbers of plain training.

A transformer with dropout takes sentences of 32, 64, 96 and 128 words, in batches of 64, 48, 32 and 32, for three
epochs of two batches of each length. The plain model trains as Keras does, and tells its peak at each length. The other
cells train within a share of the highest, with `checkmate_tf.compile(model, budget)`. Each is a process of its own.

Then the same with 40 batches of 32 sentences, each padded to its longest: 16 to 128 words, more lengths than plans are
kept. Plans serve several of them.

    python benchmarks/product/lengths.py --quick             # the plain models, and one budget
    python benchmarks/product/lengths.py --full              # three budgets
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.lib.cells import FAILED, read_cells, run_cells
from benchmarks.lib.options import common_options, serve_child
from benchmarks.lib.tables import markdown, write_rows, write_table

BATCHES = {32: 64, 64: 48, 96: 32, 128: 32}  # samples by length
EPOCHS, ROUNDS = 3, 2
ANY, ANY_BATCH, ANY_BATCHES = (16, 129), 32, 40
SHARES = (0.8, 0.6, 0.5)
BFC = {"TF_CPU_ALLOCATOR_USE_BFC": "true"}
COLUMNS = (
    "cell", "budget_bytes", "length", "batch", "peak_bytes", "predicted_bytes", "overhead", "recomputations", "plans",
    "planned_later", "equal", "seconds",
)  # fmt: skip


def main() -> None:
    parser = common_options(__doc__, "lengths", "one budget", "three budgets")
    options = parser.parse_args()
    if serve_child(options, trained):
        return
    options.output.mkdir(parents=True, exist_ok=True)
    for kind in () if options.draw else ("", "any-"):
        asked: list[dict] = [{"cell": f"cell-{kind}plain", "kind": kind}]
        (plain,) = run_cells(__file__, options.output, asked, lambda _: 900.0, options.again, BFC)
        if plain.get("outcome") != FAILED:
            longest = max(plain["peaks"].values())
            asked = [
                {"cell": f"cell-{kind}budget-{share:g}", "kind": kind, "budget_bytes": int(share * longest)}
                for share in (SHARES if options.full else SHARES[1:2])
            ]
            run_cells(__file__, options.output, asked, lambda _: 1800.0, options.again, BFC)
    write(options.output)


# In the children ------------------------------------------------------------------------------------------------------


def trained(request: dict) -> dict:
    """Train, and tell the peak at each length, what was planned, and a digest of losses and variables."""
    import hashlib
    import time

    import keras
    import numpy as np
    import tensorflow as tf

    import checkmate_tf
    from checkmate_tf.check.networks import transformer

    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})  # numbers in the order traced
    keras.utils.set_random_seed(1)
    model = transformer(length=None)
    model.compile("adam", "sparse_categorical_crossentropy")
    model.jit_compile = False
    if "budget_bytes" in request:
        checkmate_tf.compile(model, request["budget_bytes"], progress=False, time_limit=20)
    random = np.random.default_rng(2)
    if request["kind"]:
        sizes = [(int(length), ANY_BATCH) for length in random.integers(*ANY, ANY_BATCHES)]
    else:
        sizes = list(BATCHES.items()) * ROUNDS
    given = [
        (random.integers(0, 1000, (batch, length)).astype("int32"), random.integers(0, 10, batch))
        for length, batch in sizes
    ]
    data = tf.data.Dataset.from_generator(
        lambda: given, output_signature=(tf.TensorSpec([None, None], tf.int32), tf.TensorSpec([None], tf.int64))
    ).apply(tf.data.experimental.assert_cardinality(len(given)))
    lengths = sorted({length for length, _ in sizes})
    peaks, seconds, losses, planned = dict.fromkeys(lengths, 0), list[float](), list[float](), list[int]()

    class Watch(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            tf.config.experimental.reset_memory_stats("CPU:0")
            self.begun = time.perf_counter()

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            seconds.append(time.perf_counter() - self.begun)
            length = given[batch][0].shape[1]
            if len(seconds) > len(given):  # in the first epoch functions are traced, and plans are measured
                peaks[length] = max(peaks[length], int(tf.config.experimental.get_memory_info("CPU:0")["peak"]))
            losses.append(float(logs["loss"]))

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            controller = getattr(model, "_checkmate_controller", None)
            planned.append(len(controller.earlier) if controller else 0)

    model.fit(data, epochs=EPOCHS, shuffle=False, verbose=0, callbacks=[Watch()])
    bits = hashlib.sha256(np.array(losses).tobytes())
    for variable in [*model.variables, *model.optimizer.variables]:
        bits.update(np.array(variable).tobytes())
    controller = getattr(model, "_checkmate_controller", None)
    reports = {} if controller is None else {k[1][0].shape[1]: p.report for k, p in controller.plans.items()}
    return {
        "outcome": "trained",
        "peaks": peaks,
        "bits": bits.hexdigest(),
        "steps": len(seconds),
        "first_seconds": sum(seconds[: len(given)]),
        "later_seconds": sum(seconds[len(given) :]),
        "plans": planned[0],
        "planned_later": planned[-1] - planned[0],
        "reports": {
            length: {key: report.to_dict()[key] for key in ("predicted_peak_bytes", "overhead", "recomputations")}
            for length, report in reports.items()
        },
    }


# Results --------------------------------------------------------------------------------------------------------------


def write(output: Path) -> None:
    """CSV and table of what is in the folder."""
    cells = {cell["cell"]: cell for cell in read_cells(output)}
    plain, plain_any = cells.pop("cell-plain", None), cells.pop("cell-any-plain", None)
    of_any = [cells.pop(cell) for cell in sorted(cells, reverse=True) if cell.startswith("cell-any-")]
    if plain is None or plain.get("outcome") == FAILED:
        print("the plain model has not trained:", (plain or {}).get("reason", "not run"))
        return
    rows = rows_of(plain, list(cells.values()))
    write_rows(output, COLUMNS, rows)
    head = (
        "budget, MB",
        "length",
        "batch",
        "plain peak, MB",
        "peak, MB",
        "predicted, MB",
        "overhead",
        "equal bits",
    )
    lines = [
        (
            f"{r['budget_bytes'] / 1e6:.1f}", r["length"], r["batch"], f"{plain['peaks'][str(r['length'])] / 1e6:.1f}",
            f"{r['peak_bytes'] / 1e6:.1f}{'' if r['peak_bytes'] <= r['budget_bytes'] else ' OVER'}",
            f"{r['predicted_bytes'] / 1e6:.1f}", f"{r['overhead']:.1%}", "yes" if r["equal"] else "NO",
        )
        for r in rows
    ]  # fmt: skip
    text = markdown(head, lines) + "\n"
    for cell in cells.values():
        if cell.get("outcome") == FAILED:
            text += f"- {cell['cell']} failed: {cell['reason']}\n"
            continue
        text += (
            f"- {cell['budget_bytes'] / 1e6:.1f} MB: {cell['plans']} plans in the first epoch, {cell['planned_later']} "
            f"after it; later epochs took {cell['later_seconds'] / plain['later_seconds']:.2f} times the plain model's "
            "seconds.\n"
        )
    if plain_any is not None and plain_any.get("outcome") == FAILED:
        text += f"\n- The plain model on batches of any length failed: {plain_any['reason']}\n"
    elif plain_any is not None:
        text += "\n" + any_length(plain_any, of_any)
    write_table(output, text)
    print(text)


def any_length(plain: dict, cells: list[dict]) -> str:
    """The table of batches that are padded to their longest sentence."""
    head = (
        "budget, MB", "lengths", "highest plain peak, MB", "highest peak, MB", "plans", "after the first epoch",
        "later epochs, over plain", "equal bits",
    )  # fmt: skip
    lines = []
    for cell in cells:
        if cell.get("outcome") == FAILED:
            lines.append((f"{cell['budget_bytes'] / 1e6:.1f}", "failed: " + cell["reason"], *[""] * (len(head) - 2)))
            continue
        peak = max(cell["peaks"].values())
        lines.append(
            (
                f"{cell['budget_bytes'] / 1e6:.1f}", len(cell["peaks"]), f"{max(plain['peaks'].values()) / 1e6:.1f}",
                f"{peak / 1e6:.1f}{'' if peak <= cell['budget_bytes'] else ' OVER'}", cell["plans"],
                cell["planned_later"], f"{cell['later_seconds'] / plain['later_seconds']:.2f}x",
                "yes" if cell["bits"] == plain["bits"] else "NO",
            )
        )  # fmt: skip
    return "## Batches that are padded to their longest sentence\n\n" + markdown(head, lines) + "\n"


def rows_of(plain: dict, cells: list[dict]) -> list[dict]:
    """A row for each budget and length."""
    rows = []
    for cell in sorted((c for c in cells if c.get("outcome") != FAILED), key=lambda c: -c["budget_bytes"]):
        for length, batch in BATCHES.items():
            report = cell["reports"][str(length)]
            rows.append(
                {
                    "cell": cell["cell"],
                    "budget_bytes": cell["budget_bytes"],
                    "length": length,
                    "batch": batch,
                    "peak_bytes": cell["peaks"][str(length)],
                    "predicted_bytes": report["predicted_peak_bytes"],
                    "overhead": report["overhead"],
                    "recomputations": report["recomputations"],
                    "plans": cell["plans"],
                    "planned_later": cell["planned_later"],
                    "equal": cell["bits"] == plain["bits"],
                    "seconds": cell["later_seconds"],
                }
            )
    return rows


if __name__ == "__main__":
    main()
