"""Tables of the README and the guide that are put together from single results: a row a network, a column a way."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.lib.paths import RESULTS  # noqa: E402
from benchmarks.lib.provenance import UNSAID, commits_of  # noqa: E402

__all__ = ["PIVOTED", "Rows"]

Rows = list[list[str]]  # of cells; the first row has the names of columns
Cell = dict[str, str]  # a single result: a line of cells.csv

_ROUNDING = 1e-4  # relative: errors of gradients below it are of rounding
_OPTIMAL = 1e-5  # relative: a gap that counts as none
_FRACTIONS = ("0.5",)  # of activations: budgets that a table has which has one alone
_OPEN = 1.5e-3  # a gap that is shown as an open one
_MOST_NODES = 10_000  # larger graphs are told of beside the table


# -- which batches train, and with which numbers -----------------------------------------------------------------------


def batches() -> Rows:
    """The largest batch that trains under a hard limit: a row a network, a column a way."""
    ways = {
        "plain": "plain", "remat-scope": "`keras.RematScope`", "recompute-grad": "`tf.recompute_grad`",
        "ours": "`checkmate_tf`",
    }  # fmt: skip
    rows = [["hard limit", *ways.values(), "not with ours"]]
    for network, found in _by_network("batch_size_real").items():
        limit = int(found["plain"]["limit_mb"]) * 2**20
        size = f"{limit / 1e9:.0f} GB" if limit > 1e9 else f"{limit / 1e7:.0f}0 MB"
        cells = [found[way]["batch"] for way in ways]
        cells[-1] = f"**{cells[-1]}, {float(found['ours']['over_plain']):.1f}x plain**"
        rows.append(
            [f"{_title(network)}, {size}", *cells, f"{found['ours']['does_not_train']}: {found['ours']['why']}"]
        )
    return rows


def peers() -> Rows:
    """Peak, step time and errors of each way to train in less memory: a row a network."""
    head = [
        "network", "plain", "`tf.recompute_grad`", "wrong in it", "`keras.RematScope`, peak", "`checkmate_tf`",
        "within 60% of the activations", "wrong in ours",
    ]  # fmt: skip
    rows = [head]
    for network, found in _by_network("peers").items():
        plain, theirs = found["plain"], found["recompute-grad"]
        more = float(found["remat-scope"]["peak_bytes"]) / float(plain["peak_bytes"]) - 1
        scope = f"{abs(more):.0%} {'more' if more > 0 else 'less'} than plain"
        ours = [found["ours"], found["ours, 60%"]]
        wrong = sorted({_wrong(cell) for cell in ours} - {"none"}) or ["none"]
        rows.append([
            _title(network), f"{_megabytes(plain)} MB", _taken(theirs), _wrong(theirs), scope, f"**{_taken(ours[0])}**",
            _taken(ours[1]), "; ".join(wrong),
        ])  # fmt: skip
    return rows


def _by_network(name: str) -> dict[str, dict[str, Cell]]:
    """Results of a folder by network and way."""
    found: dict[str, dict[str, Cell]] = {}
    for cell in _cells(name):
        way = "ours, 60%" if "60% of activations" in cell.get("variant", "") else cell["way"]
        if cell.get("fraction", "") in ("", *_FRACTIONS):
            if way in found.setdefault(cell["network"], {}):
                raise ValueError(f"results/{name} has {way} of {cell['network']} more than once")
            found[cell["network"]][way] = cell
    return found


def _megabytes(cell: Cell) -> str:
    return f"{float(cell['peak_bytes']) / 1e6:.0f}"


def _taken(cell: Cell) -> str:
    return f"{_megabytes(cell)} MB, {float(cell['step_ratio']):.2f}x"


def _wrong(cell: Cell) -> str:
    """What differs from the plain model by more than rounding."""
    wrong = []
    if not float(cell["loss_error"] or 0) <= _ROUNDING:  # nor if it is no number
        wrong.append(f"loss ({float(cell['loss_error']):.0%})")
    if not float(cell["gradient_error"] or 0) <= _ROUNDING:
        wrong.append(f"gradients ({float(cell['gradient_error']):.0%})")
    if not float(cell["statistics_error"] or 0) <= _ROUNDING:
        wrong.append(f"BN statistics ({float(cell['statistics_error']):.2f} of their change)")
    if int(float(cell["seeds_off"] or 0)):
        wrong.append(f"{float(cell['seeds_off']):.0f} of {float(cell['seeds']):.0f} seeds")
    return ", ".join(wrong) or "none"


# -- solving -----------------------------------------------------------------------------------------------------------


def open_cells() -> Rows:
    """Of `solve_quality`, the cells whose gap stayed open."""
    rows = [["cell", "overhead", "proven bound", "gap"]]
    for cell in _cells("solve_quality"):
        if cell["gap"] and float(cell["gap"]) > _OPEN and int(cell["nodes"]) <= _MOST_NODES:
            shares = [f"{float(cell[name]):.2%}" for name in ("overhead", "bound", "gap")]
            rows.append([f"{cell['network']}, {cell['percent']}%", *shares])
    return rows


def strategies() -> Rows:
    """What each kind of strategy recomputes at one budget a network."""
    kinds = {
        "default": ("checkmate",),
        "problem (9) by a solver, from our start": ("milp",),
        "XLA's greedy": ("xla-greedy",),
        "greedy baselines, the best": ("chen-greedy", "ap-greedy", "linearized-greedy"),
        "sqrt(n) baselines, the best": ("chen-sqrt", "ap-sqrt", "linearized-sqrt"),
        "MONeT-NoOp": ("monet-noop",),
        "TWRemat": ("twremat",),
    }
    at = {"VGG16": "0", "MobileNet": "25", "U-Net": "25", "ResNet50": "25"}  # shares between the least and plain peak
    found = {(c["network"], c["strategy"]): c for c in _cells("strategies") if c["share_percent"] == at[c["network"]]}
    peaks = {name: f"{float(found[name, 'checkmate']['budget_of_peak']):.0%}" for name in at}
    rows = [["more cost a step", *(f"{name}, {peak} of the peak" for name, peak in peaks.items())]]
    for title, names in kinds.items():
        cells = []
        for network in at:
            costs = [float(cost) for name in names if (cost := found[network, name]["overhead"])]
            cells.append(f"{min(costs):.2%}" if costs else "nothing")
        rows.append([title, *cells])
    return rows


def strategies_trained() -> Rows:
    """Each strategy whose plan was trained."""
    rows = [["strategy", "overhead predicted", "step time measured", "peak in `fit`"]]
    for cell in _cells("strategies_trained"):
        if cell["step_ratio"]:
            rows.append([
                cell["strategy"] or "default", f"{float(cell['overhead']):.1%}", f"{float(cell['step_ratio']):.2f}x",
                f"{float(cell['fit_peak_bytes']) / 1e6:.0f} MB",
            ])  # fmt: skip
    return rows


def side_by_side() -> Rows:
    """Seconds to within 1% of the common bound, and what is left: a row a network, a column a system."""
    systems = {
        "problem9-highs": "problem (9), HiGHS", "problem9-scip": "problem (9), SCIP", "moccasin": "Moccasin (C = 2)",
        "checkmate": "ours",
    }  # fmt: skip
    found: dict[str, dict[str, Cell]] = {}
    for cell in _cells("side_by_side"):
        found.setdefault(f"{cell['network']}, {cell['percent']}%", {})[cell["system"]] = cell
    rows = [["network, budget", *systems.values()]]
    return rows + [[name, *(_told(cells[system]) for system in systems)] for name, cells in found.items()]


def _told(cell: Cell) -> str:
    if not cell["cost"]:
        return f"nothing in {float(cell['time_limit']):.0f} s"
    when = f"{float(cell['within_seconds']):.1f} s" if cell["within_seconds"] else "never"
    gap = float(cell["gap"])
    if gap > _OPTIMAL:
        return f"{when}, {gap:.2%} left"
    proved = float(cell["overhead"]) - float(cell["own_bound"]) <= 2 * _OPTIMAL
    return f"{when}, optimal" + (f", proved in {float(cell['seconds']):.1f} s" if proved else ", not proved")


def monet() -> Rows:
    """Overhead with default ways, and by our search with exact ways, and how many nodes take another way."""
    return _by_budget(("checkmate", "chosen"))


def monet_programs() -> Rows:
    """MONeT's programs beside our search with all ways, where they were run."""
    titles = {"monet-noop": "MONeT-NoOp", "monet": "MONeT", "chosen-inexact": "our search, all ways"}
    cells = _cells("monet")
    run = [name for name in dict.fromkeys(c["network"] for c in cells) if any(
        c["network"] == name and c["system"] == "monet" for c in cells
    )]  # fmt: skip
    at = [(c["network"], float(c["share"])) for c in cells if c["system"] == "monet" and c["network"] in run]
    rows = [["overhead", *(f"{network}, {share:.0f}%" for network, share in at)]]
    for system, title in titles.items():
        found = {(c["network"], float(c["share"])): c for c in cells if c["system"] == system}
        rows.append([title, *(_overhead(found[key]) for key in at)])
    return rows


def _by_budget(systems: Sequence[str]) -> Rows:
    """In the budgets that were asked of all networks; others are on the way to a certain overhead."""
    cells = [c for c in _cells("monet") if c["system"] in systems]
    networks = list(dict.fromkeys(c["network"] for c in cells))
    asked = {(float(c["share"]), c["network"], c["system"]) for c in cells}
    every = {(network, system) for network in networks for system in systems}
    shares = sorted({s for s, *_ in asked if every <= {(n, k) for t, n, k in asked if t == s}}, reverse=True)
    rows = [["budget over plain", *(f"{share:.0f}%" for share in shares)]]
    for network in networks:
        found = {(float(c["share"]), c["system"]): c for c in cells if c["network"] == network}
        rows.append([network, *(" / ".join(_overhead(found[share, s]) for s in systems) for share in shares)])
    return rows


def _overhead(cell: Cell) -> str:
    if not cell["overhead"]:
        return "nothing"
    return f"{float(cell['overhead']):.1%}" + (f" ({cell['ways']})" if int(cell["ways"]) else "")


def orders_real() -> Rows:
    """What was trained for real in a free order / in the order traced: a row a network."""
    found: dict[tuple[str, str], dict[str, Cell]] = {}
    for cell in _cells("orders_real"):
        key = cell["network"], f"{float(cell['fraction']):.0%}: {float(cell['budget']) / 1e6:.0f} MB"
        found.setdefault(key, {})[cell["order"] or "free"] = cell
    rows = [["network", "budget", "recomputed", "peak in steps, MB", "peak in `fit`, MB", "step time", "equal bits"]]
    for (network, budget), both in found.items():
        told = [
            " / ".join(text(both[order]) if both[order]["overhead"] else "refused" for order in ("free", "fixed"))
            for text in (
                lambda c: f"{float(c['overhead']):.1%}",
                lambda c: f"{float(c['peak_bytes']) / 1e6:.1f}",
                lambda c: f"{float(c['fit_peak_bytes']) / 1e6:.1f}",
                lambda c: f"{float(c['step_ratio']):.2f}x",
                lambda c: "yes" if c["bit_equal"] == "True" else "NO",
            )
        ]
        rows.append([_title(network), budget, *told])
    return rows


# -- emission, placement and XLA ---------------------------------------------------------------------------------------


def emission() -> Rows:
    """Step time of a plan that recomputes nothing, over the plain step's: a row a network, a column an order."""
    orders = {
        "free": "no order", "waits": "waits for memory, as `compile` emits far below the budget",
        "strict": "one strict order, as near a budget",
    }  # fmt: skip
    rows = [["step time over the plain step's", *orders.values()]]
    for network, found in _by_network("emission").items():
        rows.append([_title(network), *(f"{float(found[order]['step_ratio']):.2f}x" for order in orders)])
    return rows


def placement() -> Rows:
    """How near what is placed comes to the most that steps took: networks that the model was built on, and others."""
    from benchmarks.product.placement import NETWORKS

    rows = [["networks", "cells with a plan", "median error", "within 2%", "worst"]]
    cells = _cells("placement")
    for title, mine in (
        (f"the {len(NETWORKS)} that the model was built on", [c for c in cells if c["network"] in NETWORKS]),
        ("others", [c for c in cells if c["network"] not in NETWORKS]),
    ):
        ran = [c for c in mine if c["outcome"] == "measured"]
        errors = {float(c["placed_bytes"]) / float(c["most_bytes"]) - 1: c for c in ran}
        worst = max(errors, key=abs)
        where = f"{_title(errors[worst]['network'])}, {float(errors[worst]['share']):.0%}: {worst:+.1%}"
        near = sum(abs(error) <= 0.02 for error in errors)
        rows.append([title, f"{len(ran)} of {len(mine)}", f"{median(map(abs, errors)):.2%}", f"{near}", where])
    return rows


def xla() -> Rows:
    """XLA's temporary memory over the plain XLA step's: a row a way, a column a network."""
    ways = {
        "emitted": "control edges",
        "barrier": "optimization barriers, which XLA removes on a CPU before it merges for the last time",
        "tied": "each recomputation is tied by data to the gradients before it",
    }
    networks = {"conv": "residual network", "dense": "dense layers", "encoder": "transformer"}
    found = _by_network("xla")
    rows = [["way", *networks.values()]]
    return rows + [
        [title, *(f"{float(found[name][way]['of_plain']):.0%}" for name in networks)] for way, title in ways.items()
    ]


# -- all of them -------------------------------------------------------------------------------------------------------


def ages() -> Rows:
    """Of which commits the results of each folder are; and why, if that is not the newest version."""
    told = json.loads((RESULTS / "version.json").read_text(encoding="utf-8"))
    rows = [["results", "of commit", "why they are older"]]
    for folder in sorted(path for path in RESULTS.iterdir() if path.is_dir()):
        older = told["older"].get(folder.name, {"why": "not older"})
        commits = [f"{name} ({older['day']})" if name == UNSAID else name for name in commits_of(folder)]
        rows.append([folder.name, ", ".join(commits), older["why"]])
    return rows


def _cells(name: str) -> list[Cell]:
    """All results of a folder."""
    with (RESULTS / name / "cells.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _title(network: str) -> str:
    from checkmate_tf.check.networks import NETWORKS

    if network in NETWORKS:
        return NETWORKS[network].title
    from benchmarks.lib.unseen_networks import UNSEEN

    return UNSEEN[network].title


PIVOTED: dict[str, Callable[[], Rows]] = {
    table.__name__.replace("_", "-"): table
    for table in (
        ages, batches, emission, monet, monet_programs, open_cells, orders_real, peers, placement, side_by_side,
        strategies, strategies_trained, xla,
    )
}  # fmt: skip
