"""Peak, step time and numerical error of four ways to train in less memory, side by side in one run.

Plain Keras, `keras.RematScope`, `tf.recompute_grad` by blocks, and ours (see `rivals.py`), for MobileNet, U-Net,
ResNet50 and a transformer with dropout: the same model, weights, data and optimizer, one training step at a time.

1. Every variant of a rival is measured in a child process of its own; each rival enters with the one of least peak.
2. Ours enters twice: with the least peak of any rival as its budget (equal memory, so times compare), and with 60% of
   the plain step's activation peak on top of variables and inputs.
3. Each way has a child process to itself, and all of them live at the same time and take turns (A B C D A B C D ...).
   A child measures its peak before the turns, and takes one step with Grappler off from the common start after them.

Peak: the most that TensorFlow's BFC allocator held over eight training steps, variables and inputs included. Step time:
the median over rounds of a way's step over the plain step of the same round. Errors, against the plain step: of the
loss and of all gradients together (Euclidean norm, from Adam's first moments), relative; of the BatchNormalization
statistics, relative to the change that the plain step makes; and how many of the seeds ended elsewhere.

    python benchmarks/product/peers.py                       # two networks
    python benchmarks/product/peers.py --full                # four, with more variants and rounds; resumes
    python benchmarks/product/peers.py --networks small --batch-size 8 --rounds 2 --time-limit 3 --output DIR
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.lib.cells import FAILED, read_cells, run_cells
from benchmarks.lib.options import common_options, serve_child
from benchmarks.lib.rivals import COLORS, MEASURED, NETWORKS, RIVALS, TITLES, answer_peak, chosen, describe, slug
from benchmarks.lib.tables import markdown, new_figure, write_rows, write_table
from benchmarks.lib.turns import answer_race

QUICK = ("mobilenet", "transformer")
FRACTION = 0.6
COLUMNS = (
    "network", "batch", "way", "variant", "budget_bytes", "outcome", "reason", "peak_bytes", "fit_peak_bytes",
    "plain_peak_bytes", "predicted_bytes", "step_ratio", "least_ratio", "most_ratio", "step_ms", "loss_error",
    "gradient_error", "statistics_error", "seeds", "seeds_off", "recomputations", "overhead",
)  # fmt: skip


def main() -> None:
    parser = common_options(__doc__, "peers", "MobileNet and the transformer", "all four networks, all variants")
    parser.add_argument("--networks", nargs="*", help="only these, of networks.py")
    parser.add_argument("--batch-size", type=int, help="instead of the network's own")
    parser.add_argument("--rounds", type=int, help="turns that are timed (5; full: 11)")
    parser.add_argument("--time-limit", type=float, default=20.0, help="seconds of solving (default 20)")
    options = parser.parse_args()
    if serve_child(options, answer):
        return
    options.output.mkdir(parents=True, exist_ok=True)
    rounds = options.rounds or (11 if options.full else 5)
    names = options.networks or (NETWORKS if options.full else QUICK)
    for name in () if options.draw else names:
        from checkmate_tf.check.networks import NETWORKS as known

        batch = options.batch_size or known[name].batch_size
        compared(options.output, name, batch, options.full, rounds, options.time_limit, options.again)
    write(options.output)


def compared(
    output: Path, name: str, batch: int, full: bool, rounds: int, time_limit: float, again: bool
) -> dict | None:
    """Measure the variants, choose, and let the ways take turns; None if the plain step could not be measured."""
    shared = {"network": name, "batch": batch}
    variants = [v for way in RIVALS.values() for v in way if full or v.get("of_sqrt", 1.0) == 1.0]
    requests = [{"cell": f"peak-{name}-{batch}-{slug(v)}", "run": "peak", **shared, "variant": v} for v in variants]
    measured = run_cells(__file__, output, requests, lambda _: 900.0, again, MEASURED)
    best = chosen(measured)
    if "plain" not in best:
        return None
    plain = best["plain"]
    least = min(cell["peak_bytes"] for cell in best.values())
    share = int(plain["constant_bytes"] + FRACTION * (plain["peak_bytes"] - plain["constant_bytes"]))
    ways = [cell["variant"] for cell in best.values()]
    ways += [
        {"way": "ours", "why": "the best rival's peak", "budget_bytes": least},
        {"way": "ours", "why": f"{FRACTION:.0%} of activations", "budget_bytes": share},
    ]
    request = {"cell": f"cell-{name}-{batch}", "run": "race", **shared, "ways": ways, "rounds": rounds}
    request["time_limit"] = time_limit
    stale = changed(output, request, "ways")
    return run_cells(__file__, output, [request], lambda _: 3600.0, again or stale, MEASURED)[0]


def changed(output: Path, request: dict, key: str) -> bool:
    """Whether a cell is there whose request had another value of `key`."""
    path = output / f"{request['cell']}.json"
    return path.exists() and json.loads(path.read_text()).get(key) != request[key]


# What the children do -------------------------------------------------------------------------------------------------


def answer(request: dict) -> dict:
    """One variant's peak, or all ways in turn."""
    return {"peak": answer_peak, "race": answer_race}[request["run"]](request)


# Results --------------------------------------------------------------------------------------------------------------


def rows_of(output: Path) -> list[dict]:
    """A row for each way of each network: those that took turns, and rivals of which no variant runs."""
    order = [*NETWORKS, "small"]
    rows = []
    for cell in read_cells(output):
        if cell.get("outcome") == FAILED:
            continue
        shared = {"network": cell["network"], "batch": cell["batch"]}
        peaks = read_cells(output, f"peak-{cell['network']}-{cell['batch']}-")
        entered = {way["way"] for way in cell["answers"]}
        for name in TITLES:
            rows += [
                {**shared, **found, "variant": title_of(found)} for found in cell["answers"] if found["way"] == name
            ]
            if name not in entered:
                raised = [c for c in peaks if c["variant"]["way"] == name and "reason" in c]
                reason = "; ".join(f"{describe(c['variant'])}: {c['reason']}" for c in raised)
                rows.append({**shared, "way": name, "variant": TITLES[name], "outcome": "raised", "reason": reason})
        for row in rows:
            if (row["network"], row["batch"]) == (cell["network"], cell["batch"]):
                row["plain_peak_bytes"] = cell["answers"][0]["peak_bytes"]
    return sorted(rows, key=lambda r: (order.index(r["network"]) if r["network"] in order else 99, r["batch"]))


def title_of(way: dict) -> str:
    """A way for a table, ours with its budget."""
    if way["way"] == "ours":
        return f"{TITLES['ours']}, {way['budget_bytes'] / 1e6:.0f} MB ({way['why']})"
    return describe(way)


def write(output: Path) -> None:
    """CSV, table and picture of what is in the folder."""
    from checkmate_tf.check.networks import NETWORKS as known

    rows = rows_of(output)
    write_rows(output, COLUMNS, rows)
    lines = []
    for r in rows:
        network = f"{known[r['network']].title}, batch {r['batch']}"
        if r["outcome"] != "measured":
            why = f"refused: at least {r['least_bytes'] / 1e6:.0f} MB" if "least_bytes" in r else r["reason"][:120]
            lines.append((network, r["variant"], why, *[""] * 6))
            continue
        seeds = f"{r['seeds_off']} of {r['seeds']}" if r["seeds"] else "none there"
        statistics = "none there" if r["statistics_error"] is None else f"{r['statistics_error']:.2g}"
        lines.append((
            network, r["variant"], f"{r['peak_bytes'] / 1e6:.0f}", f"{r['peak_bytes'] / r['plain_peak_bytes']:.0%}",
            f"{r['step_ratio']:.2f}x", f"{r['loss_error']:.2g}", f"{r['gradient_error']:.2g}", statistics, seeds,
        ))  # fmt: skip
    head = ("network", "way", "peak, MB", "of plain", "step time over plain", "error of loss", "of gradients",
            "of BN statistics (of their change)", "seeds wrong")  # fmt: skip
    text = markdown(head, lines) + "\n" + NOTE + "\n" + variants_table(output)
    write_table(output, text)
    draw(output / "peers.png", rows)
    print(text)


def variants_table(output: Path) -> str:
    """What each variant of the rivals needs."""
    rows = [
        (
            c["network"], c["batch"], describe(c["variant"]),
            f"{c['peak_bytes'] / 1e6:.0f}" if c["outcome"] == "measured" else c["reason"][:160],
        )
        for c in read_cells(output, "peak-")
    ]  # fmt: skip
    return markdown(("network", "batch", "variant", "peak, MB"), rows)


NOTE = """\
MB are 1e6 bytes, of the allocator's peak over eight training steps, variables and inputs included. Step times: median
over rounds of the ratio to the plain step of the same round, all ways taking turns. Errors: one step from the same
start, Grappler off, against the plain step. Each rival is there with the variant of least peak; all that were measured:
"""


def draw(path: Path, rows: list[dict]) -> None:
    """Peaks and step times over plain, a group of bars a network."""
    from matplotlib.patches import Patch

    from checkmate_tf.check.networks import NETWORKS as known

    groups = list(dict.fromkeys((r["network"], r["batch"]) for r in rows))
    bars = [("plain", 0), ("remat-scope", 0), ("recompute-grad", 0), ("ours", 0), ("ours", 1)]
    shades = {("ours", 1): "#7fd0b5"}
    figure = new_figure(max(6.4, 2.6 + 2.4 * len(groups)), 7.0)
    upper, lower = figure.subplots(2, 1, sharex=True)
    for g, group in enumerate(groups):
        for b, (way, which) in enumerate(bars):
            found = [r for r in rows if (r["network"], r["batch"]) == group and r["way"] == way]
            row = found[which] if which < len(found) else None
            x = g + (b - 2) * 0.17
            if row is None or row["outcome"] != "measured":
                for axes in (upper, lower):
                    why = row["outcome"] if row else "not run"
                    axes.annotate(why, (x, 0), (0, 3), textcoords="offset points", rotation=90, ha="center", fontsize=8)
                continue
            color = shades.get((way, which), COLORS[way])
            for axes, height, text in (
                (upper, row["peak_bytes"] / row["plain_peak_bytes"] * 100, f"{row['peak_bytes'] / 1e6:.0f}"),
                (lower, row["step_ratio"], f"{row['step_ratio']:.2f}"),
            ):
                axes.bar(x, height, 0.155, color=color)
                axes.annotate(text, (x, height), (0, 2), textcoords="offset points", ha="center", fontsize=8)
    upper.set_ylabel("measured peak, % of plain\n(labels: MB)")
    lower.set_ylabel("step time over plain")
    for axes in (upper, lower):
        axes.grid(axis="y", alpha=0.25)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        axes.margins(y=0.12)
    names = [f"{known[name].title.split(',')[0]}\nbatch {batch}" for name, batch in groups]
    lower.set_xticks(range(len(groups)), names)
    labels = [TITLES[w] for w, _ in bars[:3]]
    labels += [f"{TITLES['ours']}, best rival's peak as budget", f"{TITLES['ours']}, {FRACTION:.0%} of activations"]
    colors = [shades.get(bar, COLORS[bar[0]]) for bar in bars]
    handles = [Patch(color=c, label=label) for c, label in zip(colors, labels, strict=True)]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    upper.set_title("One training step, in memory and time", loc="left", fontsize=11)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
