"""Is it true what an error names? Thirty small models, asked for too little, and then for just what the error names.

An error about a budget names the least one that would do. For each model two children are run, each a new process:

- the first compiles it for far too little, and keeps what the error names;
- the second compiles it for exactly that, and trains it for three batches of `fit`. It has to be accepted, and the
  allocator's peak has to be within it, in `compile` and in `fit`.

If the second is refused, its error names another budget, and that is tried once more. With `--same-process` all of this
is in one process, as of a user who catches the error.

    python benchmarks/product/named_budgets.py --quick                # four models, a minute or two
    python benchmarks/product/named_budgets.py --full                 # thirty; resumes
    python benchmarks/product/named_budgets.py --models gru unet --same-process --output DIR
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.lib.cells import FAILED, read_cells, run_cells
from benchmarks.lib.options import common_options, serve_child
from benchmarks.lib.tables import markdown, write_rows, write_table
from checkmate_tf.check.training import device_data

MODELS = (
    "dense", "dropout", "shared", "conv", "batchnorm", "pooling", "separable", "depthwise", "dilated", "groupnorm",
    "residual", "densenet", "squeeze", "autoencoder", "penalized", "unet", "siamese", "adversaries", "conv1d", "conv3d",
    "lstm", "stateful", "gru", "bidirectional", "words", "attention", "mixer", "fourier", "vae", "experts",
)  # fmt: skip
QUICK = ("dense", "batchnorm", "gru", "vae")
TOO_SMALL = 1000  # bytes
ASKS = 3  # too little, what that names, and once more
BFC = {"TF_CPU_ALLOCATOR_USE_BFC": "true"}
COLUMNS = (
    "model", "outcome", "reason", "asks", "same_process", "named_bytes", "budget_bytes", "proven", "predicted_bytes",
    "placed_bytes", "compile_bytes", "sure_bytes", "fit_bytes", "overhead", "strict", "plans", "planned_again",
    "compile_seconds", "seconds",
)  # fmt: skip


def main() -> None:
    parser = common_options(__doc__, "named_budgets", "four models", "thirty models")
    parser.add_argument("--models", nargs="*", choices=MODELS, help="only these")
    parser.add_argument("--same-process", action="store_true", help="ask again in the process that was refused")
    parser.add_argument("--time-limit", type=float, default=10.0, help="seconds of solving a plan (default 10)")
    options = parser.parse_args()
    if serve_child(options, answer):
        return
    options.output.mkdir(parents=True, exist_ok=True)
    kind = "same" if options.same_process else "new"
    for name in () if options.draw else options.models or (MODELS if options.full else QUICK):
        budget = TOO_SMALL
        for ask in range(1 if options.same_process else ASKS):
            request = {
                "cell": f"cell-{name}-{kind}-{ask}", "model": name, "ask": ask, "budget_bytes": budget,
                "same_process": options.same_process, "time_limit": options.time_limit,
            }  # fmt: skip
            (cell,) = run_cells(__file__, options.output, [request], lambda _: 600.0, options.again, BFC)
            if cell["budget_bytes"] != budget:  # an earlier run had another error before it
                (cell,) = run_cells(__file__, options.output, [request], lambda _: 600.0, True, BFC)
            if cell["outcome"] != "refused":
                break
            budget = cell["named_bytes"][-1]
    write(options.output)


# In the children ------------------------------------------------------------------------------------------------------


def answer(request: dict) -> dict:
    """Compile for a budget and train; again for what errors name, if that is to be in this process."""
    import time

    import checkmate_tf
    from benchmarks.lib.small_models import MODELS as known

    begun = time.perf_counter()
    network = known[request["model"]]
    model = network.model()
    budget, named = request["budget_bytes"], []
    for _ in range(ASKS if request["same_process"] else 1):
        try:
            found = trained(model, network, budget, request["time_limit"])
        except checkmate_tf.InfeasibleBudgetError as error:
            budget, proven, reason = error.minimum_bytes, error.proven, str(error)
            named.append(budget)
        else:
            return {**found, "named_bytes": named, "seconds": time.perf_counter() - begun}
    seconds = time.perf_counter() - begun
    return {"outcome": "refused", "named_bytes": named, "proven": proven, "reason": reason, "seconds": seconds}


def trained(model: Any, network: Any, budget: int, time_limit: float) -> dict:
    """Compile for a budget, and train three batches."""
    import time

    import tensorflow as tf

    import checkmate_tf

    x, y = device_data(network)
    begun = time.perf_counter()
    checkmate_tf.compile(
        model, budget=budget, data=network.data(1), time_limit=time_limit, progress=False, cache=False
    )  # fmt: skip
    seconds, report = time.perf_counter() - begun, model.checkmate
    tf.config.experimental.reset_memory_stats("CPU:0")
    model.fit(x, y, batch_size=network.batch_size, shuffle=False, verbose=0)
    return {
        "outcome": "trained",
        "accepted_bytes": budget,
        "predicted_bytes": report.predicted_peak_bytes,
        "placed_bytes": report.to_dict().get("placed_peak_bytes"),
        "compile_bytes": report.measured_peak_bytes,
        "sure_bytes": report.sure_bytes,
        "fit_bytes": int(tf.config.experimental.get_memory_info("CPU:0")["peak"]),
        "overhead": report.overhead,
        "strict": report.strict,
        "plans": len(report.attempts),
        "planned_again": model.checkmate.replanned,
        "compile_seconds": seconds,
    }


# Results --------------------------------------------------------------------------------------------------------------


def write(output: Path) -> None:
    """CSV, table and counts of what is in the folder."""
    rows = rows_of(read_cells(output))
    write_rows(output, COLUMNS, rows)
    titles = titles_of()
    head = (
        "model", "named, MB", "it is", "bytes", "placed", "measured in compile", "in fit", "overhead", "plans",
        "compile, s",
    )  # fmt: skip
    lines = []
    for r in rows:
        name = titles[r["model"]] + (", same process" if r["same_process"] else "")
        named = " then ".join(f"{b / 1e6:.2f}" for b in r["named_bytes"])
        if r["outcome"] != "trained":
            lines.append((name, named, verdict(r), *[""] * (len(head) - 3)))
            continue
        sizes = (
            f"{r[key] / 1e6:.2f}" if r[key] is not None else ""
            for key in ("predicted_bytes", "placed_bytes", "compile_bytes", "fit_bytes")
        )
        lines.append(
            (name, named, verdict(r), *sizes, f"{r['overhead']:.1%}", r["plans"], f"{r['compile_seconds']:.0f}")
        )
    text = markdown(head, lines) + "\n"
    for same in (False, True):
        mine = [verdict(r) for r in rows if r["same_process"] == same]
        if mine:
            counts = ", ".join(f"{mine.count(v)} {v}" for v in dict.fromkeys(mine))
            text += f"- {'the same process' if same else 'a new process'}, {len(mine)} models: {counts}.\n"
    write_table(output, text)
    print(text)


def rows_of(cells: list[dict]) -> list[dict]:
    """A row for each model and kind of process: the last answer, with all that was named before it."""
    rows = []
    groups: dict[tuple[str, bool], list[dict]] = {}
    for cell in cells:
        groups.setdefault((cell["model"], cell["same_process"]), []).append(cell)
    for (name, same), mine in sorted(groups.items(), key=lambda g: (g[0][1], MODELS.index(g[0][0]))):
        mine.sort(key=lambda c: c["ask"])
        ended = next((k for k, c in enumerate(mine) if c["outcome"] != "refused"), len(mine) - 1)
        mine = mine[: ended + 1]
        named = [b for c in mine for b in c.get("named_bytes", ())]
        rows.append({**mine[-1], "model": name, "same_process": same, "named_bytes": named, "asks": len(named) + 1})
    return rows


def verdict(row: dict) -> str:
    """What came of the budget that was named."""
    if row["outcome"] == FAILED:
        return f"failed: {row['reason']}"
    if row["outcome"] == "refused":
        return "REFUSED"
    if not row["named_bytes"]:
        return "not refused at first"
    over = [words for key, words in (("compile_bytes", "compile"), ("fit_bytes", "fit")) if (row[key] or 0) > most(row)]
    if over:
        return f"EXCEEDED in {' and '.join(over)}"
    if row["planned_again"]:
        return "kept by another plan while training"
    return "kept" if len(row["named_bytes"]) == 1 else f"KEPT ONLY AT THE {len(row['named_bytes'])}. NAMED"


def most(row: dict) -> int:
    """The budget that was accepted, bytes."""
    return int(row["accepted_bytes"])


def titles_of() -> dict[str, str]:
    from benchmarks.lib.small_models import MODELS as known

    return {name: network.title for name, network in known.items()}


if __name__ == "__main__":
    main()
