"""Whole networks on a V100: the sum of the modelled kernel costs against published step times.

`costs="v100"` (`checkmate_tf/layers/v100.py`) is fitted to single kernels. Here the costs of all layers of a network,
its loss and its gradients are added up, and compared with what others measured (`data/v100_published.csv`, with
sources). Nothing is run on a GPU. Less than a minute.

    python benchmarks/figures/v100_end_to_end.py
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.lib.options import options_for
from benchmarks.lib.published import published_times
from benchmarks.lib.tables import write_csv, write_table

if TYPE_CHECKING:
    import keras

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

#: Figure 4 of Checkmate, and U-Net at the batch of section 6.2.
PAPERS = (("VGG16", 256), ("MobileNet", 512), ("U-Net", 32))


NOTE = """\
Modelled V100 kernel costs, fitted to published measurements, and added up; nothing was run. A step is forward, loss and
backward: no optimizer, no input pipeline, no gaps between kernels. The networks are those of Keras (its ResNets have
biases and padding layers; batch normalisation is that of training in the forward pass, too), the published ones those
of their authors. What is published for one network and batch differs by up to {spread:.1f}x between software.

{count} published figures: median error {median:.0%}, worst {worst:.0%} ({which}).
"""


def main() -> None:
    options = options_for(__doc__, "v100_end_to_end").parse_args()

    from benchmarks.lib.v100_networks import NETWORKS
    from checkmate_tf.graph import FORWARD
    from checkmate_tf.layers.graph import layer_graph

    rows = published_times()
    models: dict[str, keras.Model] = {}

    def times(network: str, batch: int) -> tuple[float, float]:
        """Milliseconds of the forward pass and of the step."""
        if network not in models:
            models[network] = NETWORKS[network]()
        graph = layer_graph(models[network], batch, "v100")
        return float(graph.costs[graph.kinds == FORWARD].sum()) / 1e3, graph.base_cost / 1e3

    for row in rows:
        forward, step = times(row["network"], int(row["batch"]))
        modelled = step if row["pass"] == "step" else forward
        row["modelled"] = f"{modelled:.1f}"
        row["error"] = f"{modelled / float(row['milliseconds']) - 1:+.3f}"
        print(*(row[key] for key in ("network", "batch", "pass", "milliseconds", "modelled", "error")), flush=True)
    papers = [(network, batch, *times(network, batch)) for network, batch in PAPERS]
    options.output.mkdir(parents=True, exist_ok=True)
    write_csv(options.output / "v100_end_to_end.csv", [*rows[0]], rows)
    table = markdown(rows, papers)
    write_table(options.output, table)
    print("\n" + table)


def markdown(rows: list[dict[str, str]], papers: list[tuple[str, int, float, float]]) -> str:
    """Both tables and what to know of them."""
    import numpy as np

    errors = np.abs([float(row["error"]) for row in rows])
    worst = rows[int(errors.argmax())]
    alike: dict[tuple[str, ...], list[float]] = {}
    for row in rows:
        alike.setdefault((row["network"], row["batch"], row["pass"]), []).append(float(row["milliseconds"]))
    text = NOTE.format(
        spread=max(max(times) / min(times) for times in alike.values()),
        count=len(rows),
        median=np.median(errors),
        worst=errors.max(),
        which=f"{worst['network']}, {worst['software']}, {worst['source']}",
    )
    lines = ["| network | batch | pass | published ms | modelled ms | error | measured with | source |"]
    lines += ["| --- | --- | --- | --- | --- | --- | --- | --- |"]
    for row in rows:
        with_note = row["software"] + (f" ({row['note']})" if row["note"] else "")
        cells = [row["network"], row["batch"], row["pass"], row["milliseconds"], row["modelled"]]
        lines.append("| " + " | ".join([*cells, f"{float(row['error']):+.0%}", with_note, row["source"]]) + " |")
    lines += ["", "The networks and batches of Checkmate, of which no V100 time is published:", ""]
    lines += ["| network | batch | forward ms | step ms | backward / forward |", "| --- | --- | --- | --- | --- |"]
    for network, batch, forward, step in papers:
        lines.append(f"| {network} | {batch} | {forward:.1f} | {step:.1f} | {step / forward - 1:.2f} |")
    return text + "\n" + "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
