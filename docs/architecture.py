"""The picture of the package, made from its imports: `python docs/architecture.py` writes it and the page's table.

A room is a folder of the package, or a module at its top. An arrow says that a room imports from another, wherever in
a file the import stands: late imports and those for types count too.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import networkx
import numpy as np
from scipy.optimize import isotonic_regression

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "checkmate_tf"
PAGE, PICTURE = ROOT / "docs" / "architecture.md", ROOT / "docs" / "architecture.svg"
BEGIN, END = "<!-- rooms: made by docs/architecture.py -->\n", "<!-- end of the rooms -->\n"

#: Each room, from what knows nothing of the others to what knows all, and what it is for.
ROOMS = {
    "errors": "Typed errors. Each says what was given, what was wrong and what to do.",
    "version": "The version. Schedules in the cache are kept for it.",
    "numba_jit": "Numba's compiler, with its cache on disk, filled in several processes.",
    "machine": "Memory and cores that this process may use, in a container, too; how its children find the package.",
    "units": "Budgets and sizes as people write them. A budget is bytes, a size, a share or `auto`.",
    "graph": "A step as nodes with costs, bytes and inputs. It knows nothing of TensorFlow.",
    "statements": "Allocate, compute, deallocate. A plan is made of them.",
    "allocator": "Where TensorFlow's allocator puts values, as a model. It is exact for a given sequence.",
    "paging": "Values that wait in the host's memory, and when copies and computations happen.",
    "evaluator": "Replays a plan and checks it. Cost and peak of a schedule are computed here and nowhere else.",
    "files": "Graphs, answers and schedules as JSON, read strictly. Plans and schedules lie above what writes them.",
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
    "device": "The device that trains: its allocator is measured. Children train under hard limits.",
    "fit": "Fits a plan to a device: solve, run, correct. A pure core decides, the rest carries it out.",
    "keras": "What Keras users call. It stands in for their training step and plans when data arrives.",
    "callbacks": "A Keras callback: `fit` trains within a budget, and logs what it takes.",
    "profiles": "Measured times of a model over batch sizes. They are kept in files to share.",
    "check": "Does everything hold on a machine? One command looks at each device, in processes of their own.",
    "largest_batch": "What a memory allows: the largest batch, by proof and by trial, and what each budget costs.",
    "checkmate_tf": "The public names. They load on first use.",
    "cli": "The command line. Options are declared in one file; each command has one of its own.",
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


#: The layers of the page, from left to right in the legend: their rooms, and a colour.
LAYERS = {
    "TensorFlow in": ("trace costs layers", "#fde3c4"),
    "pure Python and NumPy": ("", "#dbe8f8"),  # all others
    "TensorFlow out": ("emit device fit keras callbacks", "#d5ecd0"),
    "all of it": ("profiles largest_batch checkmate_tf cli", "#eceaf4"),
}
WIDTH, HEIGHT, FLOOR, APART = 2.4, 0.5, 1.0, 2.7  # of a box; from floor to floor; from box to box
THIN = 0.7  # what an arrow takes that passes a floor


def floors(graph: networkx.DiGraph) -> dict[str, int]:
    """Each room lies above all that it imports, and right below the lowest room that imports it."""
    floor: dict[str, int] = {}
    for name in reversed(list(networkx.lexicographical_topological_sort(graph))):
        floor[name] = max((floor[other] + 1 for other in graph.successors(name)), default=0)
    for name in networkx.lexicographical_topological_sort(graph):
        floor[name] = min((floor[user] - 1 for user in graph.predecessors(name)), default=floor[name])
    return floor


def places(floor: dict[str, int], graph: networkx.DiGraph) -> tuple[dict[str, float], list[list[str]]]:
    """Where each room lies from left to right, and the ways of the arrows: rooms, and points on the floors between."""
    links, ways = networkx.Graph(), []
    rows: list[list[str]] = [[] for _ in range(1 + max(floor.values()))]
    for name in ROOMS:
        rows[floor[name]].append(name)
    for a, b in sorted(graph.edges):
        between = [f"{a} {b} {k}" for k in range(floor[a] - 1, floor[b], -1)]
        for k, point in zip(range(floor[a] - 1, floor[b], -1), between, strict=True):
            rows[k].append(point)
        ways.append([a, *between, b])
        networkx.add_path(links, ways[-1])
    level = {name: k for k, row in enumerate(rows) for name in row}
    x = {name: float(k) for row in rows for k, name in enumerate(row)}
    middle = lambda name, beside: sum(beside) / len(beside) if beside else x[name]  # noqa: E731
    for turn in range(40):  # the order on each floor: by the neighbours below, then above, and so on
        for k in range(len(rows)) if turn % 2 else reversed(range(len(rows))):
            side = {
                n: [x[o] for o in links[n] if (level[o] < k) == bool(turn % 2)] if n in links else [] for n in rows[k]
            }
            rows[k].sort(key=lambda name: (middle(name, side[name]), name))
            x.update({name: i - (len(rows[k]) - 1) / 2 for i, name in enumerate(rows[k])})
    way_of = {point: way for way in ways for point in way[1:-1]}
    for _ in range(300):  # the distances: near the neighbours, and nobody too close
        for row in rows:
            half = np.array([THIN / 2 if " " in name else APART / 2 for name in row])
            apart = np.concatenate([[0.0], np.cumsum(half[1:] + half[:-1])])
            stiff = np.array([99.0 if " " in name else 1.0 for name in row])  # arrows go straight, boxes give way
            near = {n: way_of[n] if n in way_of else [*links[n]] if n in links else [] for n in row}
            wanted = np.array([middle(n, [x[o] for o in near[n]]) for n in row])
            x.update(zip(row, (isotonic_regression(wanted - apart, weights=stiff).x + apart).tolist(), strict=True))
    return x, ways


def draw() -> None:
    """Draw the rooms on floors. Arrows that follow from others are left out."""
    import matplotlib
    from matplotlib import pyplot
    from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Patch
    from matplotlib.path import Path as Way

    matplotlib.rcParams["svg.hashsalt"] = "rooms"  # the same file from the same imports
    graph = rooms()
    floor, arrows = floors(graph), networkx.transitive_reduction(graph)
    x, ways = places(floor, arrows)
    figure, axes = pyplot.subplots(figsize=(10.5, 11))
    color = {name: color for names, color in LAYERS.values() for name in names.split()}
    for name in ROOMS:
        left, low = x[name] - WIDTH / 2, FLOOR * floor[name] - HEIGHT / 2
        fill = color.get(name, LAYERS["pure Python and NumPy"][1])
        axes.add_patch(
            FancyBboxPatch((left, low), WIDTH, HEIGHT, boxstyle="round,pad=0,rounding_size=0.1", fc=fill, ec="#5b6b84")
        )
        axes.text(x[name], FLOOR * floor[name], name, ha="center", va="center", fontsize=13, zorder=3)
    doors = {}  # several arrows share the lower, or the upper side of a box
    for end, step in ((0, 1), (-1, -2)):
        for name in ROOMS:
            here = sorted((way for way in ways if way[end] == name), key=lambda way: x[way[step]])
            for k, way in enumerate(here):
                doors[tuple(way), end] = x[name] + WIDTH * 0.8 * ((k + 0.5) / len(here) - 0.5)
    for way in ways:
        top = FLOOR * floor[way[0]]
        at = [doors[tuple(way), 0], *(x[point] for point in way[1:-1]), doors[tuple(way), -1]]
        points, codes = [(at[0], top - HEIGHT / 2)], [Way.MOVETO]
        for k, (here, there) in enumerate(zip(at, at[1:], strict=False)):  # from floor to floor, then straight through
            begin, end = top - FLOOR * k - HEIGHT / 2, top - FLOOR * (k + 1) + HEIGHT / 2
            points += [(here, (begin + end) / 2), (there, (begin + end) / 2), (there, end)]
            codes += [Way.CURVE4] * 3
            if k < len(at) - 2:
                points.append((there, end - HEIGHT))
                codes.append(Way.LINETO)
        arrow = FancyArrowPatch(path=Way(points, codes), arrowstyle="-|>", mutation_scale=11, color="#77839a", lw=1.1)
        axes.add_patch(arrow)
    legend = [Patch(fc=color, ec="#5b6b84", label=name) for name, (_, color) in LAYERS.items()]
    axes.legend(handles=legend, loc="lower left", fontsize=12, frameon=False)
    axes.set_axis_off()
    axes.autoscale_view()
    figure.savefig(PICTURE, bbox_inches="tight", metadata={"Date": None})
    pyplot.close(figure)


if __name__ == "__main__":
    write_page()
    draw()
