"""The TWRemat paper's figures 2, 3 and 4 and tables 1 and 2 again: peak and length of NoRemat, GreedyRemat and TWRemat.

On graphs with a node for every operation of a Keras training step (`twremat_models.py`): residual networks of 18 to 200
layers, feed-forward networks of 10 to 100, the transformer, base and big. For each network the treewidth that minimum
fill-in finds, the peak without recomputation, and the least peak of each system with the length of that schedule.
Nothing is trained. TensorFlow, which makes a graph, and the solving have a child process each.

    python benchmarks/figures/twremat.py         # three residual and four feed-forward networks, transformer base
    python benchmarks/figures/twremat.py --full  # all of them; resumes what is in the output folder

Graphs are kept in a folder for temporary files (`--cache`): they have up to some 20,000 nodes.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.lib.cells import ChildError, in_child, progress_bar
from benchmarks.lib.options import options_for, serve_child
from benchmarks.lib.published import published
from benchmarks.lib.tables import new_figure, write_csv, write_table

RESNETS, FFNS = (18, 34, 50, 101, 152, 200, 290), tuple(range(10, 101, 10))
QUICK = ("resnet-18", "resnet-34", "resnet-50", "ffn-10", "ffn-30", "ffn-60", "ffn-100", "transformer-base")
NETWORKS = (
    *(f"resnet-{d}" for d in RESNETS), *(f"ffn-{d}" for d in FFNS), "transformer-base", "transformer-big"
)  # fmt: skip
SHARES = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)  # of the peak: memory limits of the greedy
CURVE = 12  # recursion limits in the picture of memory against length
PUBLISHED_NAMES = {
    "resnet-200": "ResNet200", "ffn-100": "FFN-100", "transformer-base": "Transformer base",
    "transformer-big": "Transformer big",
}  # fmt: skip
SYSTEMS = (("plain", "NoRemat", "#777777"), ("greedy", "GreedyRemat", "#d55e00"), ("twremat", "TWRemat", "#0072b2"))

NOTE = """\
Peaks are of what the step computes: inputs, variables and constants are left out. Every operation has unit cost, so a
relative length is the number of computations over the number of operations. No operation works in place, as in the
paper. GreedyRemat is given limits of 90, 80, ... % of the peak without recomputation, down to where it misses one; the
row has its least peak. TWRemat is TWRemat(1). Seconds are those of one such schedule, the decomposition included, for
TWRemat; of all limits for GreedyRemat.

Where the graphs differ from the paper's: Keras 3 computes batch normalisation in training from single operations, which
the paper's TensorFlow 1 fused; shapes are constants here, and views are no operations; widths, batches and lengths of
sentences are ours where the paper gives none. Updates of variables keep their order and run once, which the paper does
not ask for. So sizes in GiB do not compare, reductions do.

The paper on its own figures 2 and 3 (it gives no numbers): NoRemat grows linearly; GreedyRemat saves about half in
residual networks, grows linearly, too, is hardly longer than NoRemat, and saves very little in feed-forward networks;
TWRemat saves up to ten times, its growth is distinctly sublinear, and its schedules are 3 to 4 times as long. All of
that is so here, but that TWRemat's schedules of feed-forward networks and of the transformer are shorter. GreedyRemat
saves less of the transformer here than there: nearly every value was made from one that is dead.
"""


def main() -> None:
    parser = options_for(__doc__, "twremat")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="eight networks (default)")
    size.add_argument("--full", action="store_true", help="all networks")
    parser.add_argument("--networks", nargs="*", choices=NETWORKS, help="only these")
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "checkmate_tf-twremat")
    options = parser.parse_args()
    if serve_child(options, lambda request: CHILDREN[request["run"]](request)):
        return
    names = options.networks if options.networks is not None else NETWORKS if options.full else QUICK
    for folder in (options.output, options.cache):
        folder.mkdir(parents=True, exist_ok=True)
    with progress_bar() as progress:
        task = progress.add_task("", total=len(names))
        for name in names:
            progress.update(task, description=name)
            cell = options.output / f"{name}.json"
            if not cell.exists():
                graph = options.cache / f"{name}.json"
                if not graph.exists():
                    child({"run": "make", "network": name, "graph": str(graph)})
                result = child({"run": "solve", "network": name, "graph": str(graph)})
                cell.write_text(json.dumps(result, indent=1) + "\n")
            progress.advance(task)
    cells = [json.loads(path.read_text()) for path in options.output.glob("*.json")]
    cells.sort(key=lambda c: NETWORKS.index(c["network"]))
    if cells:
        write(options.output, cells)


def child(request: dict) -> dict:
    """What a process of its own answers."""
    try:
        return in_child(__file__, request, None)
    except ChildError as error:
        raise SystemExit(f"{request['network']}: {request['run']} failed\n{error.stderr[-2000:]}") from None


# What the children do ---------------------------------------------------------------------------------------------


def make(request: dict) -> dict:
    """Trace the network's step."""
    from benchmarks.lib import twremat_models as models
    from checkmate_tf.files.graphs import write_graph

    family, size = request["network"].split("-")
    if family == "transformer":
        model, batch = models.transformer(size == "big")
    else:
        model, batch = {"resnet": models.resnet, "ffn": models.feed_forward}[family](int(size))
    graph = models.operation_graph(model, batch)
    write_graph(graph, Path(request["graph"]))
    return {"nodes": len(graph)}


def solve(request: dict) -> dict:
    """Decompose the graph, and run the systems."""
    import numpy as np

    from checkmate_tf.files.graphs import read_graph
    from checkmate_tf.schedule import Schedule, keep_all
    from checkmate_tf.strategies.greedy_walk import greedy_sequence
    from checkmate_tf.strategies.treewidth.decomposition import merge_bags, minimum_fill_in, neighbours_of
    from checkmate_tf.strategies.treewidth.twremat import divisions, limits, twremat_sequence

    graph = read_graph(request["graph"])
    n, peak = len(graph), keep_all(graph).peak_bytes
    begun = time.perf_counter()
    tree = merge_bags(minimum_fill_in(neighbours_of(graph)))
    result = {
        "network": request["network"],
        "nodes": n,
        "edges": len(graph.edges),
        "treewidth": tree.width,
        "bags": len(tree),
        "decomposition_seconds": round(time.perf_counter() - begun, 2),
        "plain": {"bytes": peak, "length": 1.0},
    }

    def point(sequence: list[int], **fields: object) -> dict:
        return {"bytes": Schedule(graph, np.array(sequence)).peak_bytes, "length": len(sequence) / n, **fields}

    begun = time.perf_counter()
    greedy = []
    for share in SHARES:
        greedy.append(point(greedy_sequence(graph, int(share * peak)), share=share))
        if greedy[-1]["bytes"] > share * peak:
            break
    result["greedy"] = {**least(greedy), "seconds": round(time.perf_counter() - begun, 2)}
    found = []
    for ordered, parts in divisions(graph):
        values = limits(parts)
        curve = []
        wanted = np.geomspace(1, values[0], CURVE)
        for k in sorted({min(values, key=lambda k, w=w: abs(np.log(k / w))) for w in wanted}):
            begun = time.perf_counter()
            sequence = twremat_sequence(graph, parts, k, ordered=ordered)
            if sequence is not None:
                seconds = round(time.perf_counter() - begun + result["decomposition_seconds"], 2)
                curve.append(point(sequence, k=k, seconds=seconds))
        found.append(curve)
    result["twremat"] = least([curve[0] for curve in found if curve and curve[0]["k"] == 1])
    return {**result, "greedy_curve": greedy, "twremat_curves": found}


def least(points: list[dict]) -> dict:
    """The point of least peak, and of those the shortest."""
    return min(points, key=lambda p: (p["bytes"], p["length"]))


CHILDREN = {"make": make, "solve": solve}


# Tables and pictures ----------------------------------------------------------------------------------------------


def figures_of_networks() -> dict[str, dict[str, str]]:
    """For each network of the paper's tables: its treewidth, nodes and edges, peaks and lengths."""
    found: dict[str, dict[str, str]] = {}
    for row in published(system="twremat"):
        figures = found.setdefault(row["network"], {})
        figures[row["metric"]] = row["value"]
        figures[f"{row['metric']}, note"] = row["note"]
    return found


def write(output: Path, cells: list[dict]) -> None:
    """The tables and the picture."""
    known = figures_of_networks()
    rows = [flat(cell) for cell in cells]
    write_csv(output / "table.csv", list(rows[0]), rows)
    lines = [
        "| network | nodes | edges | treewidth | published: treewidth, size | NoRemat, GiB | GreedyRemat | TWRemat "
        "| published: GreedyRemat, TWRemat | decomposed in | scheduled in |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for cell, row in zip(cells, rows, strict=True):
        figures = known.get(PUBLISHED_NAMES.get(cell["network"], ""), {})
        tree = figures.get("treewidth of min fill-in", "")
        size = figures.get("treewidth of min fill-in, note", "")
        lines.append(
            f"| {cell['network']} | {cell['nodes']:,} | {cell['edges']:,} | {cell['treewidth']} "
            f"| {f'{tree}, {size}' if tree else ''} | {row['plain_gib']:.2f} "
            f"| {row['greedy_reduction']:.2f}x less, length {row['greedy_length']:.2f} "
            f"| **{row['twremat_reduction']:.2f}x less**, length {row['twremat_length']:.2f} "
            f"| {published_reduction(figures)} "
            f"| {cell['decomposition_seconds']:.1f} s | {cell['twremat']['seconds']:.1f} s |"
        )
    table = "\n".join(lines)
    write_table(output, f"{table}\n\n{NOTE}")
    draw(output / "twremat.png", cells)
    print(table)


def flat(cell: dict) -> dict:
    """A row of the CSV."""
    row = {key: cell[key] for key in ("network", "nodes", "edges", "treewidth", "bags", "decomposition_seconds")}
    for key, _, _ in SYSTEMS:
        row[f"{key}_gib"] = round(cell[key]["bytes"] / 2**30, 4)
        row[f"{key}_reduction"] = round(cell["plain"]["bytes"] / cell[key]["bytes"], 3)
        row[f"{key}_length"] = round(cell[key]["length"], 3)
        row[f"{key}_seconds"] = cell[key].get("seconds", 0.0)
    return row


def published_reduction(figures: dict[str, str]) -> str:
    """The paper's table 2 as multiples, if it has the network."""
    if "peak NoRemat" not in figures:
        return ""
    plain = float(figures["peak NoRemat"])
    shown = []
    for system in ("GreedyRemat", "TWRemat"):
        length = figures[f"peak {system}, note"].removeprefix("relative length ")
        shown.append(f"{plain / float(figures[f'peak {system}']):.2f}x less, length {length}")
    return "; ".join(shown)


def draw(path: Path, cells: list[dict]) -> None:
    """Peak and length against depth (figures 2 and 3), and memory against length (figure 4) of the deepest network."""
    figure = new_figure(12, 7)
    grid = figure.subplots(2, 3)
    for column, (family, title) in enumerate((("resnet", "residual networks"), ("ffn", "feed-forward networks"))):
        mine = [cell for cell in cells if cell["network"].startswith(family)]
        depth = [int(cell["network"].split("-")[1]) for cell in mine]
        for key, label, color in SYSTEMS:
            style = {"color": color, "label": label, "linewidth": 4 if key == "plain" else 1.5}  # often under another
            grid[0, column].plot(depth, [c[key]["bytes"] / 2**30 for c in mine], "o-", **style)
            grid[1, column].plot(depth, [c[key]["length"] for c in mine], "o-", **style)
        grid[0, column].set(title=f"Peak, {title}", xlabel="layers", ylabel="GiB", ylim=(0, None))
        grid[1, column].set(title=f"Length, {title}", xlabel="layers", ylabel="relative", ylim=(0, None))
    deep = [[c for c in cells if c["network"].startswith(family)][-1:] for family in ("resnet", "transformer")]
    for axes, row in zip(grid[:, 2], deep, strict=True):
        for cell in row:
            axes.set_title(f"Peak and length, {cell['network']}")
            axes.plot(1.0, cell["plain"]["bytes"] / 2**30, "s", color=SYSTEMS[0][2], label="NoRemat")
            curves = [("greedy_curve", cell["greedy_curve"], SYSTEMS[1], "o-")]
            styles = zip(cell["twremat_curves"], ("o-", "^--"), strict=False)
            curves += [("twremat", curve, SYSTEMS[2], style) for curve, style in styles]
            for number, (_, curve, (_, label, color), style) in enumerate(curves):
                label = f"{label}(k), order of updates as edges" if number == 2 else label + "(k)" * (number == 1)
                points = [(p["length"], p["bytes"] / 2**30) for p in curve]
                axes.plot(*zip(*points, strict=True), style, color=color, label=label, markersize=4)
        axes.set(xlabel="relative length", ylabel="GiB", ylim=(0, None))
    for axes in grid.flat:
        axes.spines[["top", "right"]].set_visible(False)
        if axes.lines:
            axes.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    main()
