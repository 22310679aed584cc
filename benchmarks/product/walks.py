"""What several walks of the search find at once, on as many cores: by the seeds that one walk was given.

A search has a walk for each core but one, each with a seed of its own (`strategies.search.search`). Walks tell each
other nothing. So the cheapest of several seeds, after the same time, is what so many cores would have found. Each
network has eight seeds, in a free order, with the modelled costs of `orders.py`. The mean is over all choices of so
many seeds.

    python benchmarks/product/walks.py           # the U-Net, a minute or two
    python benchmarks/product/walks.py --full    # six networks, five minutes on two cores
"""

from __future__ import annotations

import itertools
import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.lib.cells import FAILED, at_once, read_cells, run_cells
from benchmarks.lib.options import common_options, serve_child
from benchmarks.lib.tables import markdown, write_rows, write_table
from benchmarks.lib.traced_graphs import networks, traced_graphs

SHARES = {"unet": 0.4, "wired1": 0.3, "experts": 0.2, "resnet50": 0.2, "transformer": 0.3, "vae": 0.4}
SEEDS = range(8)
SECONDS = (2.0, 4.0, 8.0)
WALKS = (1, 3, 7)
COLUMNS = ("network", "share", "outcome", "reason", "walks", "seconds", "overhead", "found")


def main() -> None:
    parser = common_options(__doc__, "walks", "the U-Net", "six networks")
    parser.add_argument("--networks", nargs="*", choices=SHARES, help="only these")
    options = parser.parse_args()
    if serve_child(options, answer):
        return
    options.output.mkdir(parents=True, exist_ok=True)
    names = () if options.draw else options.networks or (SHARES if options.full else list(SHARES)[:1])
    requests = [{"cell": f"cell-{name}", "network": name, "share": SHARES[name]} for name in names]
    run_cells(__file__, options.output, requests, lambda _: 600.0, options.again, jobs=at_once(1))
    write(options.output)


def answer(request: dict) -> dict:
    """Overheads of each seed after so many seconds, None where nothing was found by then."""
    from checkmate_tf.schedule import keep_all
    from checkmate_tf.strategies.compiled import compile_search
    from checkmate_tf.strategies.ordering.least_peak import least_peak

    every = traced_graphs(request["network"])
    best, traced = every[0], every[-1]
    constant, plain = traced.constant_bytes, keep_all(traced).peak_bytes
    budget = int(constant + request["share"] * (plain - constant))
    compile_search()
    order = least_peak(best, 0.0, 0, budget)
    return {"outcome": "solved", "overheads": [walked(best, budget, [order.start, order.order], k) for k in SEEDS]}


def walked(graph: Any, budget: int, orders: list[Any], seed: int) -> list[float | None]:
    """What one walk has found after each of `SECONDS`: its overhead."""
    import time

    from checkmate_tf.plan import evaluate, plan_from_sequence
    from checkmate_tf.strategies.search.search import search

    begun, best, found = time.perf_counter(), None, list[float | None]()
    for sequence in search(graph, budget, seed, free=True, orders=orders, walks=1):
        seconds = time.perf_counter() - begun
        while len(found) < len(SECONDS) and seconds >= SECONDS[len(found)]:
            found.append(best)
        if len(found) == len(SECONDS):
            break
        if sequence is not None:
            best = evaluate(graph, plan_from_sequence(graph, sequence)).cost / graph.base_cost - 1
    return found + [best] * (len(SECONDS) - len(found))  # it ended, since nothing can be recomputed


def write(output: Path) -> None:
    """CSV and table of what is in the folder."""
    titles = {name: network.title for name, network in networks().items()}
    cells = sorted(read_cells(output), key=lambda c: list(SHARES).index(c["network"]))
    rows: list[dict[str, Any]] = []
    lines = []
    for c in cells:
        same = {key: c.get(key) for key in ("network", "share", "outcome", "reason")}
        if c["outcome"] == FAILED:
            rows.append(same)
            lines.append(
                (titles[c["network"]], f"{c['share']:.0%}", f"failed: {c['reason']}", *[""] * (len(SECONDS) - 1))
            )
            continue
        texts = []
        for moment, seconds in enumerate(SECONDS):
            mine = [same | {"walks": w, "seconds": seconds} | of_so_many(c["overheads"], moment, w) for w in WALKS]
            texts.append(" / ".join(_text(row) for row in mine))
            rows += mine
        lines.append((titles[c["network"]], f"{c['share']:.0%}", *texts))
    write_rows(output, COLUMNS, rows)
    walks = " / ".join(map(str, WALKS))
    text = markdown(("network", "budget", *(f"{walks} walks, {seconds:.0f} s" for seconds in SECONDS)), lines)
    write_table(output, text)
    print(text)


def of_so_many(overheads: list[list[float | None]], moment: int, walks: int) -> dict[str, float | None]:
    """The least overhead of so many seeds, over all choices of them: the mean, and in what share there is any."""
    least = [
        min((found[moment] for found in chosen if found[moment] is not None), default=None)
        for chosen in itertools.combinations(overheads, walks)
    ]
    known = [overhead for overhead in least if overhead is not None]
    return {"overhead": statistics.mean(known) if known else None, "found": len(known) / len(least)}


def _text(row: dict[str, Any]) -> str:
    if row["overhead"] is None:
        return "-"
    return f"{row['overhead']:.1%}" + ("" if row["found"] == 1 else f" ({row['found']:.0%} found)")


if __name__ == "__main__":
    main()
