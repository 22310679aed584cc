"""Whole networks on a V100: the sum of the modelled kernel costs against published step times.

`costs="v100"` (`checkmate_tf/layers/v100.py`) is fitted to single kernels. Here the costs of all layers of a network,
its loss and its gradients are added up, and compared with what others measured (`data/v100_published.csv`, with
sources). Nothing is run on a GPU. Less than a minute.

    python benchmarks/v100_end_to_end.py
"""

from __future__ import annotations

import argparse
import csv
import os
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import keras
import numpy as np
from models import MODELS, application

from checkmate_tf.graph import FORWARD
from checkmate_tf.layers.graph import layer_graph

L = keras.layers
ROOT = Path(__file__).resolve().parents[1]
#: Figure 4 of Checkmate, and U-Net at the batch of section 6.2.
PAPERS = (("VGG16", 256), ("MobileNet", 512), ("U-Net", 32))


def unet_572() -> keras.Model:
    """The U-Net of Ronneberger et al. (2015), figure 1: unpadded convolutions, 572 x 572 grey, 388 x 388 scores."""

    def twice(x: keras.KerasTensor, filters: int) -> keras.KerasTensor:
        return L.Conv2D(filters, 3, activation="relu")(L.Conv2D(filters, 3, activation="relu")(x))

    x = image = keras.Input((572, 572, 1))
    skips = []
    for filters in (64, 128, 256, 512):
        skips.append(twice(x, filters))
        x = L.MaxPooling2D()(skips[-1])
    x = twice(x, 1024)
    for skip in reversed(skips):
        filters = skip.shape[-1]
        x = L.Conv2DTranspose(filters, 2, strides=2, activation="relu")(x)
        before, odd = divmod(skip.shape[1] - x.shape[1], 2)
        x = twice(L.Concatenate()([L.Cropping2D(((before, before + odd),) * 2)(skip), x]), filters)
    return keras.Model(image, L.Conv2D(2, 1)(x), name="unet_572")


NETWORKS: dict[str, Callable[[], keras.Model]] = {
    **MODELS,
    "ResNet152": application("ResNet152"),
    "EfficientNetB0": application("EfficientNetB0"),
    "U-Net 572": unet_572,
}

NOTE = """\
Modelled V100 kernel costs, fitted to published measurements, and added up; nothing was run. A step is forward, loss and
backward: no optimizer, no input pipeline, no gaps between kernels. The networks are those of Keras (its ResNets have
biases and padding layers; batch normalisation is that of training in the forward pass, too), the published ones those
of their authors. What is published for one network and batch differs by up to {spread:.1f}x between software.

{count} published figures: median error {median:.0%}, worst {worst:.0%} ({which}).
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks/results/v100_end_to_end")
    options = parser.parse_args()
    with (ROOT / "data/v100_published.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
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
    with (options.output / "v100_end_to_end.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [*rows[0]], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    table = markdown(rows, papers)
    (options.output / "table.md").write_text(table, encoding="utf-8")
    print("\n" + table)


def markdown(rows: list[dict[str, str]], papers: list[tuple[str, int, float, float]]) -> str:
    """Both tables and what to know of them."""
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
