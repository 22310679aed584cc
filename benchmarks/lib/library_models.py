"""Four models of Keras's libraries, small, with random weights: of keras.applications, and tasks of keras-hub.

The tasks come with a `compile` of their own, which chooses optimizer and loss.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from benchmarks.lib.kinds import Kind, random_arrays

__all__ = ["LIBRARY"]

L = keras.layers
PICTURE, WORDS = (64, 64, 3), 64


def efficientnet() -> keras.Model:
    model = keras.applications.EfficientNetV2B0(weights=None, input_shape=PICTURE, classes=10)
    model.compile("adam", "sparse_categorical_crossentropy")
    return model


def convnext() -> keras.Model:
    """ConvNeXt as keras.applications has it, with fewer and narrower blocks."""
    from keras.src.applications import convnext as blocks

    model = blocks.ConvNeXt(
        depths=[2, 2, 4, 2], projection_dims=[24, 48, 96, 192], drop_path_rate=0.2, weights=None, classes=10,
        input_shape=PICTURE, name="convnext", weights_name="convnext_tiny",
    )  # fmt: skip
    model.compile("adam", "sparse_categorical_crossentropy")
    return model


def vit() -> keras.Model:
    import keras_hub

    backbone = keras_hub.models.ViTBackbone(
        image_shape=PICTURE, patch_size=8, num_layers=4, num_heads=4, hidden_dim=96, mlp_dim=192
    )
    return keras_hub.models.ViTImageClassifier(backbone=backbone, num_classes=4)


def bert() -> keras.Model:
    import keras_hub

    backbone = keras_hub.models.BertBackbone(
        vocabulary_size=1000, num_layers=3, num_heads=4, hidden_dim=96, intermediate_dim=192, max_sequence_length=WORDS
    )
    return keras_hub.models.BertTextClassifier(backbone=backbone, num_classes=4)


def sentences(n: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(2)
    tokens = rng.integers(1, 1000, (n, WORDS)).astype("int32")
    kinds = np.zeros_like(tokens)
    return {"token_ids": tokens, "padding_mask": np.ones_like(tokens), "segment_ids": kinds}, rng.integers(0, 4, n)


LIBRARY = {
    "EfficientNetV2B0": Kind("EfficientNetV2B0", efficientnet, random_arrays(PICTURE), 32),
    "ConvNeXt small": Kind("ConvNeXt, small", convnext, random_arrays(PICTURE), 32),
    "ViT classifier": Kind("ViT of keras-hub", vit, random_arrays(PICTURE), 32),
    "BERT classifier": Kind("BERT of keras-hub", bert, sentences, 32),
}
"""By name."""
