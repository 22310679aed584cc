"""The picture of the package, made from its imports: `python docs/architecture.py` writes it and the page's table.

A room is a folder of the package, or a module at its top. An arrow says that a room imports from another, wherever in
a file the import stands: late imports and those for types count too.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import networkx

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "checkmate_tf"
PAGE, PICTURE = ROOT / "docs" / "architecture.md", ROOT / "docs" / "architecture.svg"
BEGIN, END = "<!-- rooms: made by docs/architecture.py -->\n", "<!-- end of the rooms -->\n"

#: Each room, from what knows nothing of the others to what knows all, and what it is for.
ROOMS = {
    "errors": "Typed errors. Each says what was given, what was wrong and what to do.",
    "version": "The version. Schedules in the cache are kept for it.",
    "numba_jit": "Numba's compiler, with its cache on disk.",
    "units": "Budgets and sizes as people write them. A budget is bytes, a size, a share or `auto`.",
    "graph": "A step as nodes with costs, bytes and inputs. It knows nothing of TensorFlow.",
    "statements": "Allocate, compute, deallocate. A plan is made of them.",
    "allocator": "Where TensorFlow's allocator puts values, as a model. It is exact for a given sequence.",
    "evaluator": "Replays a plan and checks it. Cost and peak of a schedule are computed here and nowhere else.",
    "files": "Graphs, answers and schedules as JSON, read strictly. The values that are written lie above.",
    "draw": "Pictures of memory, of R and S, of costs and of graphs. They are drawn with matplotlib when asked for.",
    "plan": "Plans with virtual registers. `plan_from_sequence` is Algorithm 1 of the paper.",
    "schedule": "An order of computation with its matrices R and S. It carries what was proved about it.",
    "operators": "Several ways to compute one node, and a choice among them. MONeT and Gist choose here.",
    "interchange": "The two public file formats in one place. Programs read and write graphs and answers with it.",
    "report": "What `compile` says: asked, predicted, proven, measured. The HTML page is made here, too.",
    "solvers": "Gurobi, HiGHS, SCIP, CP-SAT and PDLP behind one interface. Each runs in a process of its own.",
    "strategies": "Systems that make schedules: (graph, budget, options) to a schedule. The registry lists them.",
    "trace": "From a Keras training step to a program. Operations get true sizes and are merged into nodes.",
    "costs": "What an operation takes: measured, by roofline, or in FLOPs. Kernels' workspaces are measured, too.",
    "layers": "The graphs that the papers draw, a node for each layer. Their costs are counted or modelled (V100).",
    "emit": "A traced step emitted again in the order of a plan. It has one way for TensorFlow and one for XLA.",
    "device": "The device that trains: its allocator is measured. Children try what fits under hard limits.",
    "fit": "Fits a plan to a device: solve, run, correct. A pure core decides, the rest carries it out.",
    "keras": "What Keras users call. It stands in for their training step and plans when data arrives.",
    "profiles": "Measured times of a model over batch sizes. They are kept in files to share.",
    "largest_batch": "The largest batch that trains in a memory. It is found by proof, and verified by trial.",
    "checkmate_tf": "The public names. They load on first use.",
    "cli": "The command line. A file for each command.",
}


def modules() -> dict[str, Path]:
    """Every module of the package by its name below it ("" is the package itself)."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports() -> Iterator[tuple[str, str]]:
    """(importer, imported) for every import of one module by another, by their names below the package."""
    known = modules()
    for name, path in known.items():
        home = name if path.name == "__init__.py" else name.rpartition(".")[0]
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                whole = [alias.name for alias in node.names if alias.name.split(".")[0] == "checkmate_tf"]
                yield from ((name, other.partition(".")[2]) for other in whole)
            elif isinstance(node, ast.ImportFrom):
                base = _base(node, home)
                if base is None:
                    continue
                for alias in node.names:
                    inner = f"{base}.{alias.name}".lstrip(".")
                    yield name, inner if inner in known else base


def _base(node: ast.ImportFrom, home: str) -> str | None:
    """The module that names are taken from; None if it is not of the package."""
    if not node.level:
        top, _, rest = (node.module or "").partition(".")
        return rest if top == "checkmate_tf" else None
    parts = home.split(".") if home else []
    parts = parts[: len(parts) - node.level + 1]
    return ".".join([*parts, *filter(None, [node.module])])


def room(module: str) -> str:
    """The room that a module lies in."""
    return module.partition(".")[0] or "checkmate_tf"


def rooms() -> networkx.DiGraph:
    """Which room imports which. `__main__` is the command line's."""
    graph = networkx.DiGraph()
    graph.add_nodes_from(ROOMS)
    for importer, imported in imports():
        a, b = ("cli" if name == "__main__" else room(name) for name in (importer, imported))
        if a != b:
            graph.add_edge(a, b)
    return graph


def table() -> list[str]:
    """The page's table, in Markdown."""
    graph = rooms()
    lines = ["| room | what it is for | imports |", "| --- | --- | --- |"]
    for name, purpose in reversed(ROOMS.items()):
        below = [other for other in ROOMS if graph.has_edge(name, other)]
        lines.append(f"| `{name}` | {purpose} | {', '.join(below) or 'nothing'} |")
    return lines


def write_page() -> None:
    """Put the table into the page."""
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(before + BEGIN + "\n" + "\n".join(table()) + "\n\n" + END + after, encoding="utf-8")


def draw() -> None:
    """Draw the rooms on floors: each above all that it imports. Arrows that follow from others are left out."""
    import matplotlib
    from matplotlib import pyplot
    from matplotlib.patches import FancyBboxPatch

    matplotlib.rcParams["svg.hashsalt"] = "rooms"  # the same file from the same imports
    graph = rooms()
    floors = dict.fromkeys(ROOMS, 0)
    for name in reversed(list(networkx.topological_sort(graph))):
        floors[name] = max([floors[other] + 1 for other in graph.successors(name)], default=0)
    on_floor: dict[int, list[str]] = {}
    for name, floor in floors.items():
        on_floor.setdefault(floor, []).append(name)
    place: dict[str, tuple[float, float]] = {}
    for floor in sorted(on_floor):
        names = on_floor[floor]
        below = lambda name: [place[o][0] for o in graph.successors(name) if o in place] or [0.0]  # noqa: E731
        names = sorted(names, key=lambda name: sum(below(name)) / len(below(name)))
        for k, name in enumerate(names):
            place[name] = (2.4 * (k - (len(names) - 1) / 2), 1.25 * floor)
    figure, axes = pyplot.subplots(figsize=(11, 12))
    for a, b in networkx.transitive_reduction(graph).edges:
        (x0, y0), (x1, y1) = place[a], place[b]
        arrow = {"arrowstyle": "-|>", "color": "#8a94a6", "lw": 1.0, "shrinkA": 0, "shrinkB": 2}
        axes.annotate("", (x1, y1 + 0.25), (x0, y0 - 0.25), arrowprops=arrow, zorder=1)
    for name, (x, y) in place.items():
        box = FancyBboxPatch(
            (x - 0.95, y - 0.25), 1.9, 0.5, boxstyle="round,pad=0.02", fc="#eef3fb", ec="#3465a4", zorder=2
        )
        axes.add_patch(box)
        axes.text(x, y, name, ha="center", va="center", fontsize=11, zorder=3)
    axes.set_axis_off()
    axes.set_aspect("equal")
    axes.autoscale_view()
    figure.savefig(PICTURE, bbox_inches="tight", metadata={"Date": None})
    pyplot.close(figure)


if __name__ == "__main__":
    write_page()
    draw()
