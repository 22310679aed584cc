"""Graphs of networks as files, made in a process of its own where they are missing.

Who asks for one loads no TensorFlow, and the memory of a process is never counted below that of its parent.
"""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # this is a child's script, too

from benchmarks.lib.cells import in_child
from benchmarks.lib.options import options_for, serve_child
from benchmarks.lib.paths import RESULTS, in_root

__all__ = ["graph_file", "network_file"]

_DEEPEST, _STACK_BYTES = 400_000, 1 << 30  # calls within calls, and memory for them: enough for 2,500 layers


def graph_file(folder: Path, name: str) -> Path:
    """A network's graph in the interchange format, made if it is not there.

    Parameters
    ----------
    folder : Path
    name : str
        In `models.py`; its layer graph with the artifact's costs, or, with "-op" behind, its graph of operations with
        FLOP costs.
    """
    path = folder / f"graph-{name}.json"
    if not path.exists():
        in_child(__file__, {"make": name, "path": str(path)}, None)
    return path


def network_file(network: str) -> str:
    """The same of the folder of `solve_quality.py`, named from the root of the checkout."""
    folder = RESULTS / "solve_quality"
    folder.mkdir(parents=True, exist_ok=True)
    return in_root(graph_file(folder, network))


def make_graph(request: dict) -> dict:
    """What the child does."""
    from benchmarks.lib.models import MODELS, graph_of
    from checkmate_tf.files.graphs import write_graph
    from checkmate_tf.graph import Graph
    from checkmate_tf.keras.api import op_graph

    name = request["make"]
    network = name.removesuffix("-op")

    def make() -> Graph:
        if name == network:
            return graph_of(name)
        model = MODELS[network]()
        model.compile(optimizer="adam", loss="sparse_categorical_crossentropy")
        return op_graph(model, 1, "flops")

    sys.setrecursionlimit(_DEEPEST)  # Keras walks a model from its outputs by recursion
    threading.stack_size(_STACK_BYTES)
    with ThreadPoolExecutor(1) as deep:
        graph = deep.submit(make).result()
    write_graph(graph, Path(request["path"]))
    return {"nodes": len(graph)}


if __name__ == "__main__":
    serve_child(options_for(__doc__, "solve_quality").parse_args(), make_graph)
