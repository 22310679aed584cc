"""The interchange formats in one place: graphs from elsewhere, and answers that others can check.

Both are versioned JSON. `files/graphs.py` describes "checkmate-graph/1", `files/results.py` "checkmate-result/1".
"""

from .files.dtr_logs import read_dtr_log
from .files.graphs import GRAPH_FORMAT, graph_from_dict, graph_to_dict, read_graph, write_graph
from .files.results import RESULT_FORMAT, infeasible_result, result_to_dict

__all__ = [
    "GRAPH_FORMAT",
    "RESULT_FORMAT",
    "graph_from_dict",
    "graph_to_dict",
    "infeasible_result",
    "read_dtr_log",
    "read_graph",
    "result_to_dict",
    "write_graph",
]
