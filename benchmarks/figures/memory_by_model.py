"""The figure of Checkmate's introduction: what training takes on each GPU, and how much memory that GPU has.

For each network, at the batch a GPU that its authors trained it with: parameters, their gradients, activations (every
forward value, once) and the batch of inputs, from the layer graph in fp32, beside the memory of the GPU that they
used; and the three networks of figure 4 on a V100. The figure's own numbers are not published as text, so batches and
GPUs are those of the networks' papers (`source`; a `?` where a paper does not say and a likely one is taken).

A layer is one value here. Attention is not, as its scores are what is large: for each call of it the projections, and
the scores before and after the softmax (and dropout), are counted as well. Workspace, optimizer slots and fragments
are not counted, nor is what the gradients of activations need at the peak.

    python benchmarks/figures/memory_by_model.py              # nothing is run: a minute or two
    python benchmarks/figures/memory_by_model.py --full       # the same
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.lib.cells import FAILED, at_once, read_cells, run_cells
from benchmarks.lib.options import common_options, serve_child
from benchmarks.lib.tables import markdown, new_figure, write_csv, write_table

if TYPE_CHECKING:
    import keras

    from checkmate_tf.layers.calls import LayerCall

COLUMNS = (
    "network", "year", "batch", "gpu", "gpu_bytes", "parameters", "parameter_bytes", "gradient_bytes",
    "activation_bytes", "input_bytes", "total_bytes", "of_gpu", "source",
)  # fmt: skip
PARTS = (
    ("input_bytes", "inputs", "#e69f00"),
    ("parameter_bytes", "parameters", "#555555"),
    ("gradient_bytes", "gradients of parameters", "#aaaaaa"),
    ("activation_bytes", "activations", "#0072b2"),
)


@dataclass(frozen=True)
class Training:
    """A network as it was trained: batch a GPU (or a group of GPUs that hold one copy), and the memory of that."""

    build: Callable[[], keras.Model]
    year: int
    batch: int
    gpu: str
    gpu_bytes: int
    source: str


def application(name: str, size: int = 224) -> Callable[[], keras.Model]:
    """A network of keras.applications with random weights."""

    def build() -> keras.Model:
        import keras

        return getattr(keras.applications, name)(weights=None, input_shape=(size, size, 3), classes=1000)

    return build


def own(name: str) -> Callable[[], keras.Model]:
    """A network of `models.py`."""

    def build() -> keras.Model:
        from benchmarks.lib.models import MODELS

        return MODELS[name]()

    return build


def alexnet() -> keras.Model:
    """AlexNet (Krizhevsky et al., 2012, section 3), both halves, without their local response normalisation."""
    import keras

    L = keras.layers
    image = keras.Input((227, 227, 3))
    x = L.Conv2D(96, 11, strides=4, activation="relu")(image)
    x = L.Conv2D(256, 5, padding="same", groups=2, activation="relu")(L.MaxPooling2D(3, 2)(x))
    x = L.Conv2D(384, 3, padding="same", activation="relu")(L.MaxPooling2D(3, 2)(x))
    x = L.Conv2D(384, 3, padding="same", groups=2, activation="relu")(x)
    x = L.Conv2D(256, 3, padding="same", groups=2, activation="relu")(x)
    x = L.Flatten()(L.MaxPooling2D(3, 2)(x))
    for _ in range(2):
        x = L.Dropout(0.5)(L.Dense(4096, activation="relu")(x))
    return keras.Model(image, L.Dense(1000, activation="softmax")(x), name="alexnet")


def encoder(layers: int, length: int, width: int, heads: int, words: int) -> Callable[[], keras.Model]:
    """A BERT-like encoder that predicts words."""

    def build() -> keras.Model:
        import keras

        L = keras.layers
        tokens = keras.Input((length,), dtype="int32")
        x = L.Embedding(words, width)(tokens)
        for _ in range(layers):
            attended = L.Dropout(0.1)(L.MultiHeadAttention(heads, width // heads, dropout=0.1)(x, x))
            x = L.LayerNormalization()(L.Add()([x, attended]))
            hidden = L.Dense(width)(L.Activation("gelu")(L.Dense(4 * width)(x)))
            x = L.LayerNormalization()(L.Add()([x, L.Dropout(0.1)(hidden)]))
        return keras.Model(tokens, L.Dense(words)(x), name="encoder")

    return build


def translator() -> keras.Model:
    """The base transformer of Vaswani et al. (2017), sentences of 50 tokens, one vocabulary."""
    import keras

    L = keras.layers
    width, heads, hidden, words = 512, 8, 2048, 37_000

    def added(x: keras.KerasTensor, y: keras.KerasTensor) -> keras.KerasTensor:
        return L.LayerNormalization()(L.Add()([x, L.Dropout(0.1)(y)]))

    def attended(x: keras.KerasTensor, to: keras.KerasTensor) -> keras.KerasTensor:
        return added(x, L.MultiHeadAttention(heads, width // heads, dropout=0.1)(x, to))

    def mapped(x: keras.KerasTensor) -> keras.KerasTensor:
        return added(x, L.Dense(width)(L.Dense(hidden, activation="relu")(x)))

    embed = L.Embedding(words, width)
    source, target = keras.Input((50,), dtype="int32"), keras.Input((50,), dtype="int32")
    x, y = L.Dropout(0.1)(embed(source)), L.Dropout(0.1)(embed(target))
    for _ in range(6):
        x = mapped(attended(x, x))
    for _ in range(6):
        y = mapped(attended(attended(y, y), x))
    return keras.Model([source, target], L.Dense(words)(y), name="translator")


GB = 10**9
TRAININGS: dict[str, Training] = {
    "AlexNet": Training(
        alexnet, 2012, 128, "2 x GTX 580", 6 * GB, "Krizhevsky et al.: batch 128, one copy over two GPUs of 3 GB"
    ),
    "VGG19": Training(
        application("VGG19"), 2014, 64, "Titan Black", 6 * GB, "Simonyan and Zisserman: batch 256, four GPUs"
    ),
    "Inception v3": Training(
        application("InceptionV3", 299), 2015, 32, "K40?", 12 * GB, "Szegedy et al.: batch 32 on each Kepler GPU"
    ),
    "ResNet152": Training(
        application("ResNet152"), 2015, 32, "M40?", 12 * GB, "He et al.: batch 256; eight GPUs are likely"
    ),
    "DenseNet201": Training(
        application("DenseNet201"), 2016, 64, "Titan X?", 12 * GB, "Huang et al.: batch 256; four GPUs are likely"
    ),
    "FCN8": Training(own("FCN8"), 2015, 20, "K40c", 12 * GB, "Long et al.: 20 images, here of 416 x 608"),
    "Transformer base": Training(
        translator,
        2017,
        62,
        "P100",
        16 * GB,
        "Vaswani et al.: 25,000 tokens of each language, eight GPUs; here 62 pairs of 50",
    ),
    "RoBERTa large": Training(
        encoder(24, 512, 1024, 16, 50_265),
        2019,
        8,
        "V100 32 GB",
        32 * GB,
        "Liu et al.: 8,192 sequences of 512, 1,024 GPUs; mixed precision there, fp32 here",
    ),
    "VGG16, figure 4": Training(application("VGG16"), 2020, 256, "V100", 16 * GB, "Checkmate, figure 4"),
    "MobileNet, figure 4": Training(application("MobileNet"), 2020, 512, "V100", 16 * GB, "Checkmate, figure 4"),
    "U-Net, figure 4": Training(own("U-Net"), 2020, 32, "V100", 16 * GB, "Checkmate, figure 4"),
}


def main() -> None:
    parser = common_options(__doc__, "memory_by_model", "all networks", "the same")
    parser.add_argument("--networks", nargs="*", choices=list(TRAININGS), default=list(TRAININGS), help="only these")
    options = parser.parse_args()
    if serve_child(options, answer):
        return
    options.output.mkdir(parents=True, exist_ok=True)
    if not options.draw:
        requests = [{"cell": f"cell-{slug(name)}", "network": name} for name in options.networks]
        run_cells(__file__, options.output, requests, lambda _: 600.0, options.again, jobs=at_once(1))
    order = list(TRAININGS)
    cells = [c for c in read_cells(options.output) if c.get("outcome") != FAILED and c["network"] in order]
    if not cells:
        raise SystemExit(f"there is no result in {options.output}")
    write(options.output, sorted(cells, key=lambda c: (c["year"], order.index(c["network"]))))


def slug(name: str) -> str:
    """A name for a file."""
    return name.lower().replace(", ", "-").replace(" ", "-")


def answer(request: dict) -> dict:
    """The parts of one network's memory, in bytes."""
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    from checkmate_tf.layers.calls import layer_calls

    training = TRAININGS[request["network"]]
    model = training.build()
    known = layer_calls(model, training.batch)
    parts = {
        "parameter_bytes": sum(w.value.dtype.size * _count(w.shape) for w in model.weights),
        "gradient_bytes": sum(w.value.dtype.size * _count(w.shape) for w in model.trainable_weights),
        "activation_bytes": sum(call.output_bytes + inside_attention(call) for call in known.calls),
        "input_bytes": known.input_bytes,
    }
    total = sum(parts.values())
    return {
        "year": training.year,
        "batch": training.batch,
        "gpu": training.gpu,
        "gpu_bytes": training.gpu_bytes,
        "source": training.source,
        "parameters": model.count_params(),
        **parts,
        "total_bytes": total,
        "of_gpu": total / training.gpu_bytes,
    }


def inside_attention(call: LayerCall) -> int:
    """Bytes that an attention keeps besides its output: queries, keys, values, context, scores, softmax, dropout."""
    layer = call.operation
    if type(layer).__name__ != "MultiHeadAttention":
        return 0
    batch, queries, _ = call.argument_shapes[0]
    keys = call.argument_shapes[1][1]
    heads, size = layer.num_heads, layer.key_dim
    projected = 2 * batch * heads * size * (queries + keys)  # queries and context; keys and values
    scores = batch * heads * queries * keys * (3 if layer.dropout else 2)
    return 4 * (projected + scores)


def _count(shape: tuple[int, ...]) -> int:
    from math import prod

    return prod(shape)


# Results --------------------------------------------------------------------------------------------------------------


def write(output: Path, cells: list[dict]) -> None:
    """CSV, table and picture."""
    write_csv(output / "cells.csv", COLUMNS, cells)
    rows = [
        (
            c["network"], c["year"], c["batch"], f"{c['parameters'] / 1e6:.1f} M",
            *(f"{c[key] / 1e9:.2f}" for key, *_ in PARTS), f"**{c['total_bytes'] / 1e9:.2f}**",
            f"{c['activation_bytes'] / c['parameter_bytes']:.0f}x", f"{c['gpu']}: {c['gpu_bytes'] / 1e9:g}",
            f"{c['of_gpu']:.0%}", c["source"],
        )
        for c in cells
    ]  # fmt: skip
    head = ("network", "year", "batch a GPU", "parameters", "inputs, GB", "parameters, GB", "their gradients, GB",
            "activations, GB", "in all, GB", "activations over parameters", "GPU, GB", "of it", "source")  # fmt: skip
    text = markdown(head, rows) + "\n" + NOTE
    write_table(output, text)
    draw(output / "memory_by_model.png", cells)
    print(text)


NOTE = """\
The published figure (Checkmate, introduction) has no numbers in its text; its claim is that activations far outweigh
parameters and reach what the GPU holds. Activations are all forward values in fp32, a layer one value, attention with
its projections and scores. Not counted: workspace, optimizer slots, fragments, and gradients of activations. What a
framework saves by computing in place (ReLU, batch normalisation, dropout) is not taken off, so a network that did train
can come out above its GPU.
"""


def draw(path: Path, cells: list[dict]) -> None:
    """Stacked bars, and over each a dashed line at its GPU's memory."""
    import numpy as np

    figure = new_figure(12, 5.6)
    axes = figure.add_subplot()
    columns = np.arange(len(cells))
    below = np.zeros(len(cells))
    for key, label, color in PARTS:
        heights = np.array([c[key] for c in cells]) / 1e9
        axes.bar(columns, heights, 0.62, bottom=below, color=color, label=label)
        below += heights
    for x, cell in zip(columns, cells, strict=True):
        size = cell["gpu_bytes"] / 1e9
        label = "memory of the GPU" if x == 0 else None
        axes.plot([x - 0.44, x + 0.44], [size, size], color="#d55e00", linestyle="--", linewidth=2, label=label)
        over = below[x] > size
        axes.annotate(
            cell["gpu"], (x, max(size, below[x] if over and below[x] - size < 1.5 else size)), (0, 6),
            textcoords="offset points", ha="center", fontsize=8, color="#d55e00",
            bbox={"facecolor": "white", "alpha": 0.85, "edgecolor": "none", "pad": 0.8},
        )  # fmt: skip
    names = [f"{c['network'].replace(', figure 4', '')}\n{c['year']}, batch {c['batch']}" for c in cells]
    axes.set_xticks(columns, names, fontsize=8, rotation=30, ha="right", rotation_mode="anchor")
    axes.set_xlim(-0.7, len(cells) - 0.3)
    axes.set_ylabel("memory (GB)")
    axes.set_title("What training holds on a GPU, and the memory of that GPU", loc="left", fontsize=11)
    axes.grid(axis="y", alpha=0.25)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="upper left")
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
