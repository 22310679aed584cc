"""What the order of computation is worth: late updates of large layers, and a search for orders.

A layer's gradient can be larger than all that it is made of. The order traced updates each weight right after its
gradient ("traced"). `checkmate_tf` moves updates to where activations are gone, if the plain step needs less memory
then ("late"). From there the search may change the order of first computations, too ("free"). All are solved for the
same budgets: shares of the activations of the plain step in the order traced, on top of what is constant. The bound
holds for any order. Costs are modelled ("roofline"), so nothing is run. A cell is a child process.

    python benchmarks/product/orders.py                            # VGG16, about a minute
    python benchmarks/product/orders.py --full                     # sixteen networks
    python benchmarks/product/orders.py --networks xception --shares 0.5 --output DIR
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.lib.cells import FAILED, read_cells, run_cells
from benchmarks.lib.options import common_options, serve_child
from benchmarks.lib.tables import markdown, write_rows

NETWORKS = (
    "vgg16", "mobilenet", "transformer", "lstm", "unet", "resnet50", "xception", "inception", "efficientnet",
    "densenet121", "vae", "experts", "recurrent", "fourier", "nasnet", "convnext",
)  # fmt: skip
SHARES = (0.8, 0.6, 0.5, 0.4, 0.3)
ORDERS = ("traced", "late", "free")
COLUMNS = (
    "network",
    "share",
    "outcome",
    "reason",
    "moved",
    *(f"{o}_{k}" for o in ORDERS[:2] for k in ("peak", "overhead")),
    "free_overhead",
    "bound",
)


def main() -> None:
    parser = common_options(__doc__, "orders", "VGG16", "sixteen networks")
    parser.add_argument("--networks", nargs="*", choices=NETWORKS, help="only these")
    parser.add_argument("--shares", nargs="*", type=float, default=SHARES, help="budgets, of activations")
    parser.add_argument("--time-limit", type=float, default=10.0, help="seconds of solving, each (default 10)")
    options = parser.parse_args()
    if serve_child(options, answer):
        return
    options.output.mkdir(parents=True, exist_ok=True)
    names = () if options.draw else options.networks or (NETWORKS if options.full else NETWORKS[:1])
    requests = [
        {"cell": f"cell-{name}", "network": name, "shares": list(options.shares), "time_limit": options.time_limit}
        for name in names
    ]
    run_cells(__file__, options.output, requests, lambda _: 1800.0, options.again)
    write(options.output)


def answer(request: dict) -> dict:
    """Of each order: the plain step's peak, and what is recomputed within each budget; and the bound for any order."""
    from benchmarks.lib.networks import NETWORKS as known
    from benchmarks.lib.unseen_networks import UNSEEN as unseen
    from checkmate_tf.device.measure import find_device
    from checkmate_tf.errors import InfeasibleBudgetError
    from checkmate_tf.fit.job import Ledger
    from checkmate_tf.fit.options import PlanOptions
    from checkmate_tf.fit.subjects.tracing import Tracing
    from checkmate_tf.keras.controller import build_training
    from checkmate_tf.keras.spec import data_spec
    from checkmate_tf.schedule import keep_all
    from checkmate_tf.strategies import SolveOptions, solve
    from checkmate_tf.strategies.programs.any_order import any_order_bound

    network = (known | unseen)[request["network"]]
    model = network.model()
    spec, batch = data_spec(model, None, None, network.data(1))
    build_training(model, spec, model.train_step)
    tracing = Tracing(batch, PlanOptions(costs="roofline", verify=False), model.name, find_device(), Ledger())
    *late, traced = (graph for _, graph in tracing.orders(*tracing.trace(model.train_step, spec, None)))
    constant, activations = traced.constant_bytes, keep_all(traced).peak_bytes - traced.constant_bytes
    found: dict[str, Any] = {"outcome": "solved", "moved": bool(late)}
    budgets = [int(constant + share * activations) for share in request["shares"]]
    best = (*late, traced)[0]
    for order, graph in {"traced": traced, **({"late": best} if late else {}), "free": best}.items():
        found[f"{order}_peak"] = keep_all(graph).peak_bytes
        found[f"{order}_overhead"] = []
        for budget in budgets:
            try:
                limits = SolveOptions(time_limit=request["time_limit"], order="free" if order == "free" else "fixed")
                found[f"{order}_overhead"].append(solve(graph, budget, options=limits).overhead)
            except InfeasibleBudgetError:
                found[f"{order}_overhead"].append(None)
    bounds = [any_order_bound(best, budget) / best.base_cost - 1 for budget in budgets]
    found["bound"] = [bound if math.isfinite(bound) else None for bound in bounds]
    return found


def write(output: Path) -> None:
    """CSV and table of what is in the folder."""
    from benchmarks.lib.networks import NETWORKS as known
    from benchmarks.lib.unseen_networks import UNSEEN as unseen

    cells = sorted(read_cells(output), key=lambda c: NETWORKS.index(c["network"]))
    rows, lines = [], []
    shares = sorted({share for c in cells for share in c["shares"]}, reverse=True)
    for c in cells:
        title = (known | unseen)[c["network"]].title
        if c["outcome"] == FAILED:
            lines.append((title, f"failed: {c['reason']}", *[""] * len(shares)))
            rows.append({key: c.get(key) for key in COLUMNS})
            continue
        texts = dict.fromkeys(shares, "")
        for k, share in enumerate(c["shares"]):
            row = {key: c.get(key) for key in COLUMNS} | {"share": share}
            row |= {f"{o}_overhead": c[f"{o}_overhead"][k] for o in ORDERS if f"{o}_overhead" in c}
            row["bound"] = c["bound"][k]
            rows.append(row)
            texts[share] = " → ".join(percent(row[f"{o}_overhead"]) for o in ORDERS if f"{o}_overhead" in c)
            texts[share] += f" (≥ {row['bound']:.1%})" if row["bound"] is not None else " (proven)"
        peak = f"{c['traced_peak'] / 1e6:.0f}"
        peak += (
            f" → {c['late_peak'] / 1e6:.0f} ({c['late_peak'] / c['traced_peak'] - 1:+.1%})" if c["moved"] else ", stays"
        )
        lines.append((title, peak, *(texts[share] for share in shares)))
    write_rows(output, COLUMNS, rows)
    text = markdown(("network", "peak of the plain step, MB", *(f"{share:.0%}" for share in shares)), lines)
    (output / "table.md").write_text(text)
    print(text)


def percent(overhead: float | None) -> str:
    return "none" if overhead is None else f"{overhead:.1%}"


if __name__ == "__main__":
    main()
