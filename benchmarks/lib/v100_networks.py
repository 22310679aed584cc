"""The networks whose published V100 times `v100_end_to_end.py` compares with: those of `models.py`, and three more."""

from __future__ import annotations

from collections.abc import Callable

import keras

from benchmarks.lib.models import MODELS, application

__all__ = ["NETWORKS", "unet_572"]

L = keras.layers


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
