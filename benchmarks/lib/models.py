"""The networks of the papers' figures, as Keras models with random weights, and their layer-level graphs.

Classification at 224 x 224 with 1,000 classes (keras.applications), segmentation at 416 x 608 with 19 classes (those of
Cityscapes), and a transformer of 245 nodes. The segmentation networks have the layout of the public collection that
Checkmate used (image-segmentation-keras, 2019): an encoder of five levels, each halving the image (VGG16, ResNet50,
MobileNet, or one convolution a level: "plain"); a decoder; a row of class scores for each pixel. The decoders of U-Net
and SegNet start from level 4 and end at half the resolution; their convolutions have a padding layer before and a batch
normalisation after, and no ReLU. PSPNet takes 384 x 576, since its grids of 1, 2, 3 and 6 cells must divide level 5.

Run it to print, for each network, the graph, and the largest batch on a V100 without recomputation.

**Costs** are those of the artifact. Where normalisation and additions are free ("multiply-adds"), so is recomputing
them: half the peak of ResNet50 then costs nothing, against 0.28% (proved: at least 0.27%) with the artifact's.

**Three ways to count memory.** Our evaluator frees a value after its last reader. Checkmate's checkpoint-all holds
every forward value up to the last stage, and its artifact leaves twice the room for parameters and their gradients
(they are part of the peak, and taken off the memory again). Counted so (`retained_peak_bytes`), these graphs give the
published figures: VGG19 167 samples (artifact's README), U-Net at batch 32 23 GB (section 6.2), MobileNet 217 samples
(figure 6: 1,105 is 5.1 times that). U-Net's 16 samples are those of 12e9 bytes, the artifact's default; 16e9 bytes
hold 22. What a heuristic keeps is counted in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from itertools import accumulate

import keras

from checkmate_tf.graph import FORWARD, Graph
from checkmate_tf.layers.graph import layer_graph
from checkmate_tf.schedule import keep_all
from checkmate_tf.strategies.baselines.keepset import keepset_sequence

__all__ = ["MODELS", "V100_BYTES", "graph_of", "max_batch", "retained_peak_bytes"]

L = keras.layers
Levels = list[keras.KerasTensor]

V100_BYTES = 16_000_000_000
CLASSES = 19
IMAGE = (416, 608, 3)
PYRAMID_IMAGE = (384, 576, 3)


def application(name: str) -> Callable[[], keras.Model]:
    """A classification network of keras.applications, with random weights."""
    return lambda: getattr(keras.applications, name)(weights=None, input_shape=(224, 224, 3), classes=1000)


# Segmentation -----------------------------------------------------------------------------------------------------


def vgg_encoder(image: keras.KerasTensor) -> Levels:
    """VGG16 up to its last pooling: the value of each of the five levels."""
    x = image
    levels: Levels = []
    for filters, depth in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        level = len(levels) + 1
        for k in range(depth):
            x = L.Conv2D(filters, 3, padding="same", activation="relu", name=f"block{level}_conv{k + 1}")(x)
        x = L.MaxPooling2D(name=f"block{level}_pool")(x)
        levels.append(x)
    return levels


def plain_encoder(image: keras.KerasTensor) -> Levels:
    """One normalised convolution a level."""
    x = image
    levels: Levels = []
    for filters in (64, 128, 256, 256, 256):
        x = L.Activation("relu")(decoder_conv(x, filters))
        x = L.MaxPooling2D()(x)
        levels.append(x)
    return levels


def resnet_encoder(image: keras.KerasTensor) -> Levels:
    """ResNet50 without its head: the first activation, then the end of each stage."""
    ends = ("conv1_relu", "conv2_block3_out", "conv3_block4_out", "conv4_block6_out", "conv5_block3_out")
    network = keras.applications.ResNet50(include_top=False, weights=None, input_tensor=image)
    return [network.get_layer(name).output for name in ends]


def mobilenet_encoder(image: keras.KerasTensor) -> Levels:
    """MobileNet without its head: the last activation at each resolution."""
    network = keras.applications.MobileNet(include_top=False, weights=None, input_tensor=image)
    return [network.get_layer(f"conv_pw_{k}_relu").output for k in (1, 3, 5, 11, 13)]


ENCODERS: dict[str, Callable[[keras.KerasTensor], Levels]] = {
    "VGG16": vgg_encoder,
    "ResNet50": resnet_encoder,
    "MobileNet": mobilenet_encoder,
    "plain": plain_encoder,
}


def decoder_conv(x: keras.KerasTensor, filters: int) -> keras.KerasTensor:
    """Padding, 3 x 3 convolution, batch normalisation."""
    return L.BatchNormalization()(L.Conv2D(filters, 3)(L.ZeroPadding2D()(x)))


def pixel_scores(image: keras.KerasTensor, x: keras.KerasTensor, name: str) -> keras.Model:
    """One row a pixel, and softmax."""
    rows = L.Reshape((x.shape[1] * x.shape[2], x.shape[3]))(x)
    return keras.Model(image, L.Activation("softmax")(rows), name=name)


def unet(encoder: str = "VGG16") -> keras.Model:
    """U-Net: three skips, from levels 3, 2 and 1."""
    image = keras.Input(IMAGE)
    *skips, x, _ = ENCODERS[encoder](image)
    x = decoder_conv(x, 512)
    for filters, skip in zip((256, 128, 64), reversed(skips), strict=True):
        x = decoder_conv(L.Concatenate()([L.UpSampling2D()(x), skip]), filters)
    return pixel_scores(image, L.Conv2D(CLASSES, 3, padding="same")(x), "unet")


def segnet(encoder: str = "plain") -> keras.Model:
    """SegNet: the decoder upsamples, without skips."""
    image = keras.Input(IMAGE)
    x = decoder_conv(ENCODERS[encoder](image)[3], 512)
    for filters in (256, 128, 64):
        x = decoder_conv(L.UpSampling2D()(x), filters)
    return pixel_scores(image, L.Conv2D(CLASSES, 3, padding="same")(x), "segnet")


def fcn_scores(x: keras.KerasTensor) -> keras.KerasTensor:
    """VGG's dense layers as convolutions, and class scores at 1/32 of the resolution."""
    x = L.Dropout(0.5)(L.Conv2D(4096, 7, padding="same", activation="relu")(x))
    x = L.Dropout(0.5)(L.Conv2D(4096, 1, activation="relu")(x))
    return L.Conv2D(CLASSES, 1)(x)


def fcn8(encoder: str = "VGG16") -> keras.Model:
    """FCN-8s: scores of levels 5, 4 and 3, enlarged by transposed convolutions and added."""
    image = keras.Input(IMAGE)
    _, _, level3, level4, level5 = ENCODERS[encoder](image)
    x = fcn_scores(level5)
    for level in (level4, level3):
        enlarged = L.Conv2DTranspose(CLASSES, 4, strides=2, use_bias=False)(x)
        scores = L.Conv2D(CLASSES, 1)(level)
        width, height = enlarged.shape[2] - scores.shape[2], enlarged.shape[1] - scores.shape[1]
        cropped = L.Cropping2D(((0, height), (0, 0)))(L.Cropping2D(((0, 0), (0, width)))(enlarged))
        x = L.Add()([cropped, scores])
    return pixel_scores(image, L.Conv2DTranspose(CLASSES, 16, strides=8, use_bias=False)(x), "fcn8")


def fcn32(encoder: str = "VGG16") -> keras.Model:
    """FCN-32s: scores of level 5, enlarged in one go."""
    image = keras.Input(IMAGE)
    x = fcn_scores(ENCODERS[encoder](image)[4])
    return pixel_scores(image, L.Conv2DTranspose(CLASSES, 64, strides=32, use_bias=False)(x), "fcn32")


def pspnet(encoder: str = "VGG16") -> keras.Model:
    """PSPNet: level 5 beside its means over grids of 1, 2, 3 and 6 cells a side."""
    image = keras.Input(PYRAMID_IMAGE)
    x = ENCODERS[encoder](image)[4]
    _, height, width, _ = x.shape
    means = [x]
    for cells in (1, 2, 3, 6):
        cell = height // cells, width // cells
        mean = L.Conv2D(512, 1, use_bias=False)(L.AveragePooling2D(cell, strides=cell)(x))
        mean = L.Activation("relu")(L.BatchNormalization()(mean))
        means.append(L.UpSampling2D(cell, interpolation="bilinear")(mean))
    x = L.Conv2D(512, 1, use_bias=False)(L.Concatenate()(means))
    x = L.Activation("relu")(L.BatchNormalization()(x))
    x = L.UpSampling2D(8, interpolation="bilinear")(L.Conv2D(CLASSES, 3, padding="same")(x))
    return pixel_scores(image, x, "pspnet")


SEGMENTATION: dict[str, Callable[..., keras.Model]] = {
    "U-Net": unet, "SegNet": segnet, "FCN8": fcn8, "FCN32": fcn32, "PSPNet": pspnet,
}  # fmt: skip
"""Each with the encoder that it is published with, VGG16, or with another of `ENCODERS`."""


def segmentation() -> dict[str, Callable[[], keras.Model]]:
    """All segmentation networks: under their own names, and as "U-Net, ResNet50 encoder"."""
    found: dict[str, Callable[[], keras.Model]] = dict(SEGMENTATION)
    for name, build in SEGMENTATION.items():
        found |= {f"{name}, {encoder} encoder": partial(build, encoder) for encoder in ENCODERS}
    return found


# The networks of MONeT ----------------------------------------------------------------------------------------------


def normalised(x: keras.KerasTensor, filters: int, window: int, strides: int = 1) -> keras.KerasTensor:
    """Convolution, batch normalisation, ReLU, each a layer."""
    x = L.Conv2D(filters, window, strides, padding="same", use_bias=False)(x)
    return L.ReLU()(L.BatchNormalization()(x))


def inception(x: keras.KerasTensor, widths: tuple[int, ...]) -> keras.KerasTensor:
    """Four branches side by side; widths as the columns of the GoogLeNet paper's table 1 (Szegedy et al., 2015)."""
    plain, before3, after3, before5, after5, pooled = widths
    branches = [
        normalised(x, plain, 1),
        normalised(normalised(x, before3, 1), after3, 3),
        normalised(normalised(x, before5, 1), after5, 5),
        normalised(L.MaxPooling2D(3, 1, padding="same")(x), pooled, 1),
    ]
    return L.Concatenate()(branches)


def googlenet_head(x: keras.KerasTensor) -> keras.KerasTensor:
    """An auxiliary classifier."""
    x = normalised(L.AveragePooling2D(5, 3)(x), 128, 1)
    x = L.Dropout(0.7)(L.ReLU()(L.Dense(1024)(L.Flatten()(x))))
    return L.Dense(1000)(x)


def googlenet() -> keras.Model:
    """GoogLeNet with batch normalisation and both auxiliary classifiers: 215 layers, as MONeT's table 7 counts."""
    inputs = keras.Input((224, 224, 3))
    x = L.MaxPooling2D(3, 2, padding="same")(normalised(inputs, 64, 7, 2))
    x = L.MaxPooling2D(3, 2, padding="same")(normalised(normalised(x, 64, 1), 192, 3))
    outputs = []
    x = inception(x, (64, 96, 128, 16, 32, 32))
    x = inception(x, (128, 128, 192, 32, 96, 64))
    x = L.MaxPooling2D(3, 2, padding="same")(x)
    x = inception(x, (192, 96, 208, 16, 48, 64))
    outputs.append(googlenet_head(x))
    x = inception(x, (160, 112, 224, 24, 64, 64))
    x = inception(x, (128, 128, 256, 24, 64, 64))
    x = inception(x, (112, 144, 288, 32, 64, 64))
    outputs.append(googlenet_head(x))
    x = inception(x, (256, 160, 320, 32, 128, 128))
    x = L.MaxPooling2D(2, 2, padding="same")(x)
    x = inception(x, (256, 160, 320, 32, 128, 128))
    x = inception(x, (384, 192, 384, 48, 128, 128))
    x = L.Dense(1000)(L.Dropout(0.2)(L.Flatten()(L.GlobalAveragePooling2D()(x))))
    return keras.Model(inputs, [x, *outputs], name="googlenet")


def unet_normalised() -> keras.Model:
    """U-Net with four levels and two normalised convolutions a level: 67 layers, as MONeT's table 7 counts."""
    x = inputs = keras.Input(IMAGE)
    skips = []
    for filters in (64, 128, 256, 512):
        x = normalised(normalised(x, filters, 3), filters, 3)
        skips.append(x)
        x = L.MaxPooling2D()(x)
    x = normalised(normalised(x, 1024, 3), 1024, 3)
    for filters, skip in zip((512, 256, 128, 64), reversed(skips), strict=True):
        x = L.Concatenate()([skip, L.Conv2DTranspose(filters, 2, strides=2)(x)])
        x = normalised(normalised(x, filters, 3), filters, 3)
    return keras.Model(inputs, L.Conv2D(CLASSES, 1)(x), name="unet")


# Language ---------------------------------------------------------------------------------------------------------


def transformer(layers: int = 12, length: int = 512, width: int = 768, heads: int = 12) -> keras.Model:
    """A BERT-like encoder that labels tokens: 10 layers a block, an embedding and a classifier."""
    tokens = keras.Input((length,), dtype="int32")
    x = L.Embedding(30_522, width)(tokens)
    for _ in range(layers):
        attended = L.Dropout(0.1)(L.MultiHeadAttention(heads, width // heads)(x, x))
        x = L.LayerNormalization()(L.Add()([x, attended]))
        hidden = L.Dense(width)(L.Activation("gelu")(L.Dense(4 * width)(x)))
        x = L.LayerNormalization()(L.Add()([x, L.Dropout(0.1)(hidden)]))
    return keras.Model(tokens, L.Dense(2, activation="softmax")(x), name="transformer")


MODELS: dict[str, Callable[[], keras.Model]] = {
    "VGG16": application("VGG16"),
    "VGG19": application("VGG19"),
    "MobileNet": application("MobileNet"),
    "ResNet50": application("ResNet50"),
    "MobileNetV2": application("MobileNetV2"),
    "GoogleNet": googlenet,
    "U-Net, normalised": unet_normalised,
    "DenseNet121": application("DenseNet121"),
    "DenseNet201": application("DenseNet201"),
    **segmentation(),
    "transformer": transformer,
    "transformer-500": lambda: transformer(500, width=64, heads=4),
    "transformer-2500": lambda: transformer(2500, width=64, heads=4),
}


def graph_of(name: str, batch_size: int = 1, costs: str = "artifact") -> Graph:
    """Layer-level graph of a network in `MODELS`.

    Raises
    ------
    KeyError
        If there is no such network.
    """
    return layer_graph(MODELS[name](), batch_size, costs)


def retained_peak_bytes(graph: Graph, kept: Collection[int] | None = None, again: bool = False) -> int:
    """Peak of a heuristic's schedule as the papers count it, constants left out: it holds what it keeps to the end.

    That is up to the last node but one.

    Parameters
    ----------
    graph : Graph
        Layer level.
    kept : collection of int, optional
        The forward nodes that the heuristic keeps. Default: all of them, which is checkpoint-all.
    again : bool
        Whether values that are computed again are held to the last stage, too.
    """
    sequence = list(range(len(graph))) if kept is None else keepset_sequence(graph, kept)
    newest: dict[int, int] = {}  # node -> position of its last computation so far
    last = list(range(len(sequence)))  # position at which each computation's value is read last
    held = []
    for k, node in enumerate(sequence):
        for i in graph.inputs[node]:
            last[newest[i]] = k
        if graph.kinds[node] == FORWARD and (kept is None or node in kept or (again and node in newest)):
            held.append(k)
        newest[node] = k
    for k in held:
        last[k] = max(last[k], newest[max(len(graph) - 2, 0)])
    change = [0] * (len(sequence) + 1)
    for k, node in enumerate(sequence):
        change[k] += int(graph.sizes[node])
        change[last[k] + 1] -= int(graph.sizes[node])
    return max(accumulate(change))


def max_batch(peak_bytes: int, constant_bytes: int, memory_bytes: int = V100_BYTES) -> int:
    """Largest batch that fits: (memory - constants) / (peak of one sample)."""
    return (memory_bytes - constant_bytes) // peak_bytes


def main() -> None:
    heads = f"{'nodes':>5} {'edges':>5} {'Gmacs':>7} {'2P MB':>6}"
    print(f"{'':20} {heads}  max batch: {'ours':>5} {'paper':>5} {'artifact':>8}")
    for name, build in MODELS.items():
        model = build()
        graph = layer_graph(model, 1)
        macs = sum(graph.costs[graph.kinds == FORWARD]) / 1e9
        parameters = 2 * sum(w.numpy().nbytes for w in model.weights)
        inputs = graph.constant_bytes - parameters
        ours = max_batch(keep_all(graph).peak_bytes - parameters, parameters)  # the inputs grow with the batch
        peak = retained_peak_bytes(graph)
        paper, artifact = max_batch(peak, parameters), max_batch(peak, 2 * parameters)
        print(
            f"{name:20} {len(graph):5} {len(graph.edges):5} {macs:7.2f} {parameters / 1e6:6.0f}  {ours:16} {paper:5} "
            f"{artifact:8}   (inputs {inputs / 1e6:.2f} MB a sample)"
        )
        keras.backend.clear_session()


if __name__ == "__main__":
    main()
