"""The largest batch that really trains under a hard limit of the allocator, for four ways to train in less memory.

Plain Keras, `keras.RematScope`, `tf.recompute_grad` by blocks, and ours (see `rivals.py`), for MobileNet, U-Net,
ResNet50 and a transformer. For each network:

1. The plain model's peak in `fit` is measured at a stated batch, and the limit is a tenth more, so that plain's answer
   is about that batch (`--limit` sets another, the same for all). Each rival enters with its two variants of least
   peak, and the better one counts.
2. A batch trains if a child process, whose CPU allocator may take no more than the limit
   (`TF_CPU_BFC_MEM_LIMIT_IN_MB`) and takes it in one piece, as a GPU's does, ends two steps of `fit`. Batches come
   from a generator, one at a time: the arrays of a whole epoch, and batches that a pipeline keeps ready, would
   share the allocator with the model. Ours is compiled for each batch, within 90% of the limit; what is refused so
   is tried again within 97, then 94%, and what runs out of memory within 80, then 85%. A child that crashes has run
   out of memory; a budget that is refused does not train.
3. The batch is doubled from the stated one (or halved, if that does not train) and then bisected to within 5%.

    python benchmarks/product/batch_size_real.py                    # two networks at small batches
    python benchmarks/product/batch_size_real.py --full             # four; hours; resumes
    python benchmarks/product/batch_size_real.py --full --limit 2GB --networks mobilenet unet
    python benchmarks/product/batch_size_real.py --ways plain ours ours-fixed --output DIR     # what free orders add
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.lib.cells import FAILED, ChildError, read_cells, run_cells
from benchmarks.lib.options import common_options, serve_child
from benchmarks.lib.provenance import MADE, made_here
from benchmarks.lib.rivals import (
    COLORS,
    MEASURED,
    NETWORKS,
    RIVALS,
    TITLES,
    answer_peak,
    build,
    compile_ours,
    describe,
    networks_of,
    ranked,
    slug,
)
from benchmarks.lib.tables import markdown, new_figure, write_rows, write_table

if TYPE_CHECKING:
    import tensorflow as tf

    from checkmate_tf.check.networks import Network

STATED = {"mobilenet": 32, "unet": 32, "resnet50": 16, "transformer": 32}
QUICK = {"unet": 16, "transformer": 16}
FIXED = "ours-fixed"  # ours in the order traced, if that is asked for
OURS = {"ours": {"way": "ours"}, FIXED: {"way": "ours", "order": "fixed"}}
WAYS = {**TITLES, FIXED: describe(OURS[FIXED])}
WAY_COLORS = {**COLORS, FIXED: "#88ccaa"}
LIMIT_OVER_PEAK = 1.10
OUT_OF_MEMORY = "out of memory"
REFUSED = "refused"
BUDGET_OF_LIMIT = 0.9  # what ours is asked for first, and next if that does not train: more, or less
NEXT = {(0.9, REFUSED): 0.97, (0.97, REFUSED): 0.94, (0.9, OUT_OF_MEMORY): 0.8, (0.8, REFUSED): 0.85}
CONTENDERS = 2  # variants of a rival that are searched: the peak of one differs by a tenth from run to run
STEPS = 2
MOST = 4096
COLUMNS = (
    "network", "stated_batch", "limit_mb", "way", "variant", "batch", "does_not_train", "why", "over_plain", "trials",
)  # fmt: skip


def main() -> None:
    parser = common_options(__doc__, "batch_size_real", "U-Net and the transformer at batch 16", "all four networks")
    parser.add_argument("--networks", nargs="*", help="only these, of networks.py")
    parser.add_argument("--batch-size", type=int, help="the stated batch")
    parser.add_argument("--limit", help="of the allocator, e.g. 2GB, instead of what plain needs")
    parser.add_argument("--ways", nargs="*", choices=list(WAYS), default=list(TITLES), help="only these")
    parser.add_argument("--time-limit", type=float, default=20.0, help="seconds of solving a batch (default 20)")
    options = parser.parse_args()
    if serve_child(options, answer):
        return
    options.output.mkdir(parents=True, exist_ok=True)
    stated = STATED if options.full else QUICK
    for name in () if options.draw else options.networks or stated:
        batch = options.batch_size or {**STATED, **stated}.get(name) or networks_of(name, 1).batch_size
        searched(options.output, name, batch, options)
    write(options.output)


def searched(output: Path, name: str, batch: int, options: argparse.Namespace) -> None:
    """Find the largest batch of each way."""
    shared = {"network": name, "stated_batch": batch}
    variants = [v for way in options.ways if way not in OURS for v in RIVALS[way]]
    variants = [v for v in variants if options.full or v.get("of_sqrt", 1.0) == 1.0]
    plain = RIVALS["plain"][0]
    requests = [
        {"cell": f"peak-{name}-{batch}-{slug(v)}", "run": "peak", **shared, "batch": batch, "variant": v}
        for v in [plain, *(v for v in variants if v != plain)]
    ]
    measured = run_cells(__file__, output, requests, lambda _: 900.0, options.again, MEASURED)
    best = ranked(measured)
    if "plain" not in best:
        return
    limit_mb = math.ceil(LIMIT_OVER_PEAK * best["plain"][0]["fit_peak_bytes"] / 2**20)
    if options.limit:
        from checkmate_tf.units import parse_budget

        limit_mb = (parse_budget(options.limit).size_bytes or 0) // 2**20
        if not limit_mb:
            raise SystemExit(f"--limit {options.limit}: give a size, such as 2GB")
    for way in options.ways:
        limits = {"limit_mb": limit_mb, "time_limit": options.time_limit}
        theirs = [cell["variant"] for cell in best.get(way, [])[:CONTENDERS]]  # none, if no variant of it runs
        for variant in [OURS[way]] if way in OURS else theirs:
            search(output, {**shared, **limits, "variant": variant}, options.again)


def search(output: Path, request: dict, again: bool) -> None:
    """Bisect one way's batch; every trial is a cell, and so is what was found."""
    name = f"{request['network']}-{request['stated_batch']}-{request['limit_mb']}MB-{slug(request['variant'])}"
    environment = {**MEASURED, "TF_CPU_BFC_MEM_LIMIT_IN_MB": str(request["limit_mb"])}
    ours = request["variant"]["way"] == "ours"
    trials: dict[int, dict] = {}

    def trains(batch: int) -> bool:
        share: float | None = BUDGET_OF_LIMIT if ours else 1.0
        while share is not None:
            outcome = tried(batch, share)
            share = NEXT.get((share, outcome))
        return outcome == "trains"

    def tried(batch: int, share: float) -> str:
        cell = f"trial-{name}-{batch}" + (f"-{share:g}" if ours else "")
        trial = {**request, "cell": cell, "run": "trial", "batch": batch, "share": share}
        trials[batch] = run_cells(__file__, output, [trial], lambda _: 1800.0, again, environment, ended)[0]
        print(f"{cell}: {trials[batch]['outcome']}", flush=True)
        if trials[batch]["outcome"] == FAILED:
            raise RuntimeError(trials[batch]["reason"])
        return str(trials[batch]["outcome"])

    found = {**request, "cell": f"cell-{name}"}
    try:
        low, high = largest(trains, request["stated_batch"], MOST)
    except RuntimeError as error:
        found |= {"outcome": FAILED, "reason": str(error)}
    else:
        why = trials[high]["outcome"] if high is not None else ""
        found |= {"outcome": "found", "batch": low, "does_not_train": high, "why": why, "trials": len(trials)}
    decided = trials.get(found.get("batch") or found.get("does_not_train"))
    found[MADE] = decided[MADE] if decided else made_here()  # it may have been tried by an earlier run
    (output / f"{found['cell']}.json").write_text(json.dumps(found, indent=1) + "\n")


def ended(error: ChildError) -> dict | None:
    """What the end of a child without an answer means: memory, if it crashed or said so; else a failure.

    Others end children, too: a person, or the system where it has no memory left itself.
    """
    said = ("OOM", "RESOURCE_EXHAUSTED", "ResourceExhausted", "out of memory", "MemoryError", "bad_alloc")
    if error.crashed or any(word in error.stderr for word in said):
        return {"outcome": OUT_OF_MEMORY, "reason": str(error)}
    return None


def largest(holds: Callable[[int], bool], first: int, most: int, share: float = 0.05) -> tuple[int, int | None]:
    """The largest number for which something holds: doubled (or halved) from `first`, then bisected.

    Parameters
    ----------
    holds : callable (int) -> bool
        Asked at most once for a number. If it holds for some and not for larger ones, any change may be found.
    first : int
        Where to begin, 1 or more.
    most : int
        No more than this is tried.
    share : float
        Stop when the two numbers are so near, relative to the lower one, or neighbours.

    Returns
    -------
    (int, int or None)
        The largest for which it was seen to hold, or 0; and the next for which it was seen not to hold, or None if it
        held for `most`.
    """
    low, high, trial = 0, None, min(first, most)
    while high is None:
        if holds(trial):
            if trial == most:
                return most, None
            low, trial = trial, min(2 * trial, most)
        else:
            high = trial
    while low == 0 and high > 1:
        trial = high // 2
        low, high = (trial, high) if holds(trial) else (0, trial)
    while high - low > max(1, share * low):
        trial = (low + high) // 2
        low, high = (trial, high) if holds(trial) else (low, trial)
    return low, high


# What the children do -------------------------------------------------------------------------------------------------


def answer(request: dict) -> dict:
    """A variant's peak, or whether a batch trains."""
    return {"peak": answer_peak, "trial": answer_trial}[request["run"]](request)


def answer_trial(request: dict) -> dict:
    """Train two steps of `fit` under the limit of this process's allocator."""
    import tensorflow as tf

    import checkmate_tf
    from checkmate_tf.device.in_child import take_memory_in_one_piece

    take_memory_in_one_piece()
    network = networks_of(request["network"], request["batch"])
    try:
        model = build(network, request["variant"])
        if request["variant"]["way"] == "ours":
            budget = int(request["share"] * request["limit_mb"] * 2**20)
            order = request["variant"].get("order", "free")
            compile_ours(model, network, budget, request["time_limit"], prefetch=0, order=order)
        history = model.fit(one_by_one(network), steps_per_epoch=STEPS, verbose=0)
    except checkmate_tf.InfeasibleBudgetError as error:
        return {"outcome": REFUSED, "reason": str(error)}
    except (tf.errors.ResourceExhaustedError, MemoryError) as error:
        return {"outcome": OUT_OF_MEMORY, "reason": str(error).splitlines()[0][:240]}
    return {"outcome": "trains", "loss": history.history["loss"][0]}


def one_by_one(network: Network) -> tf.data.Dataset:
    """Batches of a network, each made when it is asked for. By itself tf.data would make one more ahead."""
    import tensorflow as tf

    signature = tuple(tf.TensorSpec(a.shape, a.dtype) for a in network.data(1))
    batches = lambda: (network.data(1, seed) for seed in range(STEPS))  # noqa: E731 - a short callback
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    return tf.data.Dataset.from_generator(batches, output_signature=signature).with_options(options)


# Results --------------------------------------------------------------------------------------------------------------


def rows_of(output: Path) -> list[dict]:
    """A row for each way of each network and limit; rivals of which no variant runs included."""
    order = [*NETWORKS, "small"]
    rows: list[dict] = []
    groups: dict[tuple, dict[str, dict]] = {}
    for cell in read_cells(output):
        key = (cell["network"], cell["stated_batch"], cell["limit_mb"])
        way = next((way for way, variant in OURS.items() if variant == cell["variant"]), cell["variant"]["way"])
        ways = groups.setdefault(key, {})
        if way not in ways or cell.get("batch", 0) > ways[way].get("batch", 0):
            ways[way] = cell
    for (name, stated, limit_mb), ways in groups.items():
        peaks = read_cells(output, f"peak-{name}-{stated}-")
        for way in WAYS:
            row = {"network": name, "stated_batch": stated, "limit_mb": limit_mb, "way": way}
            if way in ways:
                row |= ways[way] | {"variant": describe(ways[way]["variant"])}
                plain = ways.get("plain", {}).get("batch")
                if plain and row["outcome"] == "found":
                    row["over_plain"] = row["batch"] / plain
                rows.append(row)
            elif any(c["variant"]["way"] == way for c in peaks):
                reasons = [c["reason"] for c in peaks if c["variant"]["way"] == way and "reason" in c]
                rows.append({**row, "variant": TITLES[way], "outcome": "raised", "why": "; ".join(reasons)})
    return sorted(rows, key=lambda r: (order.index(r["network"]) if r["network"] in order else 99, r["limit_mb"]))


def write(output: Path) -> None:
    """CSV, table and picture of what is in the folder."""
    from checkmate_tf.check.networks import NETWORKS as known

    rows = rows_of(output)
    write_rows(output, COLUMNS, rows)
    lines = []
    for r in rows:
        shared = (known[r["network"]].title, f"{r['limit_mb']} MiB", r["stated_batch"], r["variant"])
        if r["outcome"] != "found":
            lines.append((*shared, r.get("why", r.get("reason", ""))[:120], "", ""))
            continue
        above = f"{r['does_not_train']}: {r['why']}" if r["does_not_train"] else f"not tried above {MOST}"
        over = f"{r['over_plain']:.2f}x" if "over_plain" in r else ""
        lines.append((*shared, f"**{r['batch']}**", over, above))
    head = ("network", "hard limit", "stated batch", "way", "largest batch that trains", "over plain", "does not train")
    text = markdown(head, lines) + "\n" + NOTE
    write_table(output, text)
    draw(output / "batch_size_real.png", rows)
    print(text)


NOTE = f"""\
A batch trains if {STEPS} steps of `fit`, fed one batch at a time, end in a child process whose allocator may take no
more than the limit, and takes that in one piece:
{LIMIT_OVER_PEAK:g} times the plain model's peak in `fit` at the stated batch, unless another was asked for. Found by
bisection to within 5%, or to the next whole batch. Ours is compiled for each batch within {BUDGET_OF_LIMIT:.0%} of
the limit, in the process that trains; then 97 and 94% if it refuses that before training, or 80 and 85% if it runs
out of memory.
"""


def draw(path: Path, rows: list[dict]) -> None:
    """Largest batch over plain's, a group of bars a network and limit."""
    from matplotlib.patches import Patch

    from checkmate_tf.check.networks import NETWORKS as known

    groups = list(dict.fromkeys((r["network"], r["stated_batch"], r["limit_mb"]) for r in rows))
    figure = new_figure(max(6.0, 2.4 + 2.0 * len(groups)), 4.6)
    axes = figure.add_subplot()
    drawn = [way for way in WAYS if way in TITLES or any(r["way"] == way for r in rows)]
    width = 0.8 / len(drawn)
    for g, group in enumerate(groups):
        for b, way in enumerate(drawn):
            mine = [r for r in rows if (r["network"], r["stated_batch"], r["limit_mb"]) == group and r["way"] == way]
            x = g + (b - (len(drawn) - 1) / 2) * width
            if not mine or "over_plain" not in mine[0]:
                why = mine[0]["outcome"] if mine else "not run"
                axes.annotate(why, (x, 0), (0, 3), textcoords="offset points", rotation=90, ha="center", fontsize=8)
                continue
            axes.bar(x, mine[0]["over_plain"], 0.9 * width, color=WAY_COLORS[way])
            label = f"{mine[0]['batch']}"
            axes.annotate(
                label, (x, mine[0]["over_plain"]), (0, 2), textcoords="offset points", ha="center", fontsize=9
            )
    names = [f"{known[name].title.split(',')[0]}\n{limit_mb} MiB" for name, _, limit_mb in groups]
    axes.set_xticks(range(len(groups)), names)
    axes.set_ylabel("largest batch that trains, over plain\n(labels: samples)")
    axes.set_title("Batch under a hard limit of the allocator", loc="left", fontsize=11)
    axes.grid(axis="y", alpha=0.25)
    axes.set_axisbelow(True)
    axes.margins(y=0.12)
    axes.spines[["top", "right"]].set_visible(False)
    handles = [Patch(color=WAY_COLORS[way], label=WAYS[way]) for way in drawn]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(drawn), frameon=False, fontsize=9)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
