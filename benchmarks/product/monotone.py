"""Does every budget hold, and does a larger one cost no more? Twenty budgets from the plain peak to the least.

For each network the plain model's peak in `fit` is measured. Then a budget that is far too small is asked for, and what
the error names is asked for next, until a budget is accepted. Twenty budgets lie between these two, evenly.

For each budget a child process compiles the model, and trains it for three batches of `fit`. The allocator's peak of
that `fit` is measured, then the time of steps in turn with the plain model's (A B A B). Two things are checked:

- each measured peak is within its budget, in `compile` and in `fit`;
- a plan costs no more than the plan of a smaller budget, but for the gap that solving left.

Costs are profiled by the first child that needs them, and are in the cache for the others, as with `compile`.

    python benchmarks/product/monotone.py                      # MobileNet, four budgets: a smoke run, some minutes
    python benchmarks/product/monotone.py --full               # ResNet50 and U-Net, twenty budgets each; resumes
    python benchmarks/product/monotone.py --networks unet --budgets 8 --output DIR
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.lib.cells import FAILED, read_cells, run_cells
from benchmarks.lib.options import common_options, serve_child
from benchmarks.lib.tables import markdown, new_figure, write_rows, write_table
from benchmarks.lib.training import time_steps
from checkmate_tf.check.training import device_data, every_variable, peaks, reset, unwatch

NETWORKS = ("resnet50", "unet", "mobilenet", "vgg16", "transformer", "lstm", "small")
FULL, QUICK = NETWORKS[:2], ("mobilenet",)
BUDGETS, QUICK_BUDGETS = 20, 4
ASKS = 6  # for the least budget
TOO_SMALL = 1000  # bytes
BFC = {"TF_CPU_ALLOCATOR_USE_BFC": "true"}
COLUMNS = (
    "network", "budget_bytes", "outcome", "reason", "least_bytes", "predicted_bytes", "placed_bytes", "compile_bytes",
    "fit_bytes", "steps_bytes", "sure_bytes", "overhead", "gap", "strict", "predicted_ratio", "step_ratio",
    "plain_step_ms", "plans", "planned_again", "compile_seconds",
)  # fmt: skip
CHECKED = {"compile_bytes": "measured in compile", "fit_bytes": "measured in fit"}
WORTH = 0.01  # of a step: what `fit` takes no other plan for


def main() -> None:
    parser = common_options(__doc__, "monotone", "MobileNet, four budgets", "ResNet50 and U-Net, twenty budgets each")
    parser.add_argument("--networks", nargs="*", choices=NETWORKS, help="only these")
    parser.add_argument("--budgets", type=int, help=f"how many (default {QUICK_BUDGETS}; with --full {BUDGETS})")
    parser.add_argument("--time-limit", type=float, default=60.0, help="seconds of solving a plan (default 60)")
    options = parser.parse_args()
    if serve_child(options, lambda request: CHILDREN[request["run"]](request)):
        return
    options.output.mkdir(parents=True, exist_ok=True)
    count = options.budgets or (BUDGETS if options.full else QUICK_BUDGETS)
    for name in () if options.draw else options.networks or (FULL if options.full else QUICK):
        ends = [
            {"cell": f"{run}-{name}", "run": run, "network": name, "time_limit": options.time_limit}
            for run in ("plain", "least")
        ]
        plain, least = run_cells(__file__, options.output, ends, lambda _: 1800.0, options.again, BFC)
        if FAILED in (plain["outcome"], least["outcome"]):
            continue
        requests = [
            {
                "cell": f"cell-{name}-{budget}", "run": "cell", "network": name, "budget_bytes": budget,
                "time_limit": options.time_limit, "plain_bytes": plain["fit_bytes"],
            }
            for budget in between(plain["fit_bytes"], least["budget_bytes"], count)
        ]  # fmt: skip
        run_cells(__file__, options.output, requests, lambda _: 1800.0, options.again, BFC)
    write(options.output)


def between(most: int, least: int, count: int) -> list[int]:
    """Budgets from the largest to the least, evenly; both are among them."""
    import numpy as np

    return [int(b) for b in np.linspace(most, least, count).round()]


# In the children ------------------------------------------------------------------------------------------------------


def child_plain(request: dict) -> dict:
    """Peaks of the plain model."""
    from checkmate_tf.check.networks import NETWORKS as known

    network = known[request["network"]]
    steps, fit = peaks(network.model(), network, device_data(network))
    return {"outcome": "measured", "steps_bytes": steps, "fit_bytes": fit}


def child_least(request: dict) -> dict:
    """The least budget that is accepted: what errors name, one after the other."""
    import checkmate_tf
    from checkmate_tf.check.networks import NETWORKS as known

    network = known[request["network"]]
    model, budget, named = network.model(), TOO_SMALL, []
    data = device_data(network)  # is part of all budgets
    for _ in range(ASKS):
        try:
            compiled(model, network, budget, request["time_limit"])
        except checkmate_tf.InfeasibleBudgetError as error:
            budget = error.minimum_bytes
            named.append(budget)
        else:
            del data
            return {"outcome": "accepted", "budget_bytes": budget, "named_bytes": named}
    return {"outcome": FAILED, "reason": f"refused {ASKS} times, although errors named {named} bytes"}


def child_cell(request: dict) -> dict:
    """Compile for a budget, train, and time steps."""
    import time

    import tensorflow as tf

    import checkmate_tf
    from checkmate_tf.check.networks import NETWORKS as known

    network = known[request["network"]]
    model, data = network.model(), device_data(network)
    begun = time.perf_counter()
    try:
        compiled(model, network, request["budget_bytes"], request["time_limit"])
    except checkmate_tf.InfeasibleBudgetError as error:
        return {"outcome": "refused", "reason": str(error), "least_bytes": error.minimum_bytes}
    seconds, made = time.perf_counter() - begun, model.checkmate
    x, y = data
    tf.config.experimental.reset_memory_stats("CPU:0")
    model.fit(x, y, batch_size=network.batch_size, shuffle=False, verbose=0)
    del x, y, data
    fit = int(tf.config.experimental.get_memory_info("CPU:0")["peak"])
    report = model.checkmate  # of the plan that trains, which may be another by now
    start = [v.numpy() for v in every_variable(model)]
    unwatch(model)
    plain = network.model()
    plain.train_on_batch(*network.data(1))  # creates the metrics' variables
    reset(plain, start)
    ratio, plain_ms = time_steps(plain, model, network)
    return {
        "outcome": "trained",
        "predicted_bytes": made.predicted_peak_bytes,
        "placed_bytes": made.to_dict().get("placed_peak_bytes"),
        "compile_bytes": made.measured_peak_bytes,
        "sure_bytes": made.sure_bytes,
        "fit_bytes": fit,
        "overhead": report.overhead,
        "gap": report.schedule.gap,
        "strict": report.strict,
        "predicted_ratio": report.step_ratio,
        "step_ratio": ratio,
        "plain_step_ms": plain_ms,
        "plans": len(made.attempts),
        "planned_again": report.replanned,
        "compile_seconds": seconds,
    }


CHILDREN = {"plain": child_plain, "least": child_least, "cell": child_cell}


def compiled(model: Any, network: Any, budget: int, time_limit: float) -> None:
    import checkmate_tf

    checkmate_tf.compile(
        model, budget=budget, data=network.data(1), time_limit=time_limit, progress=False, cache=False
    )  # fmt: skip


# Results --------------------------------------------------------------------------------------------------------------


def write(output: Path) -> None:
    """CSV, table, checks and picture of what is in the folder."""
    from checkmate_tf.check.networks import NETWORKS as known

    plain = {c["network"]: c.get("fit_bytes") for c in read_cells(output, "plain-")}
    cells = [c for c in read_cells(output) if c.get("plain_bytes") in (None, plain.get(c["network"]))]
    cells.sort(key=lambda c: (NETWORKS.index(c["network"]), -c["budget_bytes"]))  # not those of an earlier plain peak
    write_rows(output, COLUMNS, cells)
    head = (
        "network", "budget, MB", "bytes", "placed", "measured in compile", "in fit", "overhead (gap)",
        "step time predicted", "measured, over plain", "plans", "compile, s",
    )  # fmt: skip
    lines = []
    for c in cells:
        name = known[c["network"]].title, f"{c['budget_bytes'] / 1e6:.1f}"
        if c["outcome"] != "trained":
            why = f"refused: at least {c['least_bytes'] / 1e6:.1f} MB" if c["outcome"] == "refused" else c["reason"]
            lines.append((*name, why, *[""] * (len(head) - 3)))
            continue
        sizes = (
            f"{c[key] / 1e6:.1f}" if c[key] is not None else ""
            for key in ("predicted_bytes", "placed_bytes", "compile_bytes", "fit_bytes")
        )
        order = ", strict" if c["strict"] else ""
        cost = f"{c['overhead']:.2%} ({c['gap']:.2%}){order}"
        times = (f"{c[key]:.2f}x" for key in ("predicted_ratio", "step_ratio"))
        plans = f"{c['plans']}" + (f", {c['planned_again']} while training" if c["planned_again"] else "")
        lines.append((*name, *sizes, cost, *times, plans, f"{c['compile_seconds']:.0f}"))
    names = [n for n in NETWORKS if any(c["network"] == n and c["outcome"] == "trained" for c in cells)]
    says = [line for n in names for line in checks(known[n].title, [c for c in cells if c["network"] == n])]
    text = markdown(head, lines) + "\n" + "\n".join(says) + "\n"
    write_table(output, text)
    print(text)
    if names:
        draw(output / "monotone.png", cells, names)


def checks(title: str, cells: list[dict]) -> list[str]:
    """What the cells of a network say, largest budget first."""
    trained = [c for c in cells if c["outcome"] == "trained"]
    lines = [f"- {title}: {len(trained)} of {len(cells)} budgets have a plan."]
    for key, words in CHECKED.items():
        over = [c for c in trained if (c[key] or 0) > c["budget_bytes"]]
        which = ", ".join(f"{c[key] / 1e6:.1f} MB in {c['budget_bytes'] / 1e6:.1f} MB" for c in over)
        says = f"OVER the budget: {which}" if over else "every peak is within its budget"
        lines.append(f"- {title}, {words}: {says}.")
    rises = [
        f"{big['overhead']:.2%} in {big['budget_bytes'] / 1e6:.1f} MB, but {small['overhead']:.2%} in "
        f"{small['budget_bytes'] / 1e6:.1f} MB"
        for k, big in enumerate(trained)
        for small in trained[k + 1 :]
        if (1 - big["gap"]) * (1 + big["overhead"]) > (1 + small["overhead"]) + WORTH
    ]
    more = f" (and {len(rises) - 3} more)" if len(rises) > 3 else ""
    what = f"RISES with the budget: {'; '.join(rises[:3])}{more}" if rises else "never rises with the budget"
    lines.append(f"- {title}, overhead: {what}, beyond gaps and {WORTH:.0%} of a step.")
    return lines


def style(color: str, marker: str) -> dict[str, Any]:
    return {"color": color, "marker": marker, "markersize": 5, "linewidth": 1.2}


def draw(path: Path, cells: list[dict], names: list[str]) -> None:
    """Bytes against the budget, above; what steps cost, below. A column of panels a network."""
    from checkmate_tf.check.networks import NETWORKS as known

    figure = new_figure(5.6 * len(names) + 0.6, 7.2)
    panels = figure.subplots(2, len(names), squeeze=False, sharex="col", height_ratios=(3, 2))
    for (above, below), name in zip(panels.T, names, strict=True):
        mine = [c for c in cells if c["network"] == name]
        trained = [c for c in mine if c["outcome"] == "trained"]
        budgets = [c["budget_bytes"] / 1e6 for c in trained]
        above.plot(budgets, budgets, color="#999999", linewidth=1.0, linestyle="--", label="the budget")
        for key, label, color, marker in (
            ("predicted_bytes", "bytes of the plan", "#56b4e9", "o"),
            ("placed_bytes", "placed", "#009e73", "^"),
            ("compile_bytes", "measured in compile", "#e69f00", "s"),
            ("fit_bytes", "measured in fit", "#d55e00", "x"),
        ):
            points = [(c["budget_bytes"] / 1e6, c[key] / 1e6) for c in trained if c[key] is not None]
            if points:
                above.plot(
                    *zip(*points, strict=True), color=color, marker=marker, markersize=5, linewidth=1.2, label=label
                )
        ratios = [("1 + overhead, predicted", "#0072b2", "o", [1 + c["overhead"] for c in trained])]
        ratios.append(("step time, expected", "#cc79a7", "v", [c["predicted_ratio"] for c in trained]))
        ratios.append(("step time, measured", "#000000", "*", [c["step_ratio"] for c in trained]))
        for label, color, marker, values in ratios:
            below.plot(budgets, values, label=label, **style(color, marker))
        for c in mine:
            if c["outcome"] == "refused":
                below.axvline(c["budget_bytes"] / 1e6, color="#d55e00", linewidth=0.8, linestyle=":")
        above.set_title(known[name].title, loc="left", fontsize=11)
        below.set_xlabel("budget, MB (dotted: refused)" if len(trained) < len(mine) else "budget, MB")
        for axes in (above, below):
            axes.grid(alpha=0.25)
            axes.set_axisbelow(True)
            axes.spines[["top", "right"]].set_visible(False)
    panels[0, 0].set_ylabel("peak, MB")
    panels[1, 0].set_ylabel("over the plain step")
    panels[0, -1].legend(frameon=False, fontsize=9)
    panels[1, -1].legend(frameon=False, fontsize=9)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
