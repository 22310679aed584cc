"""Backbones of KerasHub train as before: BERT, GPT-2 and ViT cut down, with random weights; bit by bit.

Two blocks of width 32 on sequences of 16, a small head, one step. Nothing is downloaded.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
from cases import CROSSENTROPY, Case, assert_same_state, compile_quickly, images, make, train
from keras import layers

models = pytest.importorskip("keras_hub", reason="KerasHub is not installed: pip install 'checkmate-tf[hub]'").models

pytestmark = pytest.mark.usefixtures("fresh_keras", "no_grappler")

LENGTH, WORDS, WIDTH, BLOCKS, HEADS = 16, 50, 32, 2, 4
SIZES = {"num_layers": BLOCKS, "num_heads": HEADS, "hidden_dim": WIDTH}
TEXT = SIZES | {"vocabulary_size": WORDS, "intermediate_dim": 2 * WIDTH, "max_sequence_length": LENGTH}


def sentences(n: int, *more: str) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Words, the second half of every other sentence padded; `more` inputs of zeros and ones."""
    rng = np.random.default_rng(4)
    words = rng.integers(1, WORDS, (n, LENGTH), dtype="int32")
    mask = np.ones((n, LENGTH), "int32")
    mask[::2, LENGTH // 2 :] = 0
    x = {"token_ids": words * mask, "padding_mask": mask}
    x |= {name: rng.integers(0, 2, (n, LENGTH), dtype="int32") for name in more}
    return x, np.roll(words, -1, axis=1)


def text_inputs(*names: str) -> dict[str, Any]:
    """Of a fixed length: a backbone's own are open, and so would memory be."""
    return {name: keras.Input((LENGTH,), dtype="int32", name=name) for name in ("token_ids", "padding_mask", *names)}


def classified(inputs: Any, x: Any) -> keras.Model:
    model = keras.Model(inputs, layers.Dense(4, activation="softmax")(x))
    model.compile("adamw", CROSSENTROPY, metrics=["accuracy"])
    return model


def bert() -> keras.Model:
    inputs = text_inputs("segment_ids")
    return classified(inputs, models.BertBackbone(**TEXT)(inputs)["pooled_output"])


def bert_data(n: int) -> tuple[Any, Any]:
    x, _ = sentences(n, "segment_ids")
    return x, np.arange(n) % 4


def gpt2() -> keras.Model:
    """Predicts the next word with the table that it looks words up in."""
    inputs = text_inputs()
    backbone = models.GPT2Backbone(**TEXT)
    model = keras.Model(inputs, backbone.token_embedding(backbone(inputs), reverse=True))
    model.compile("adamw", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def vit() -> keras.Model:
    inputs = keras.Input((16, 16, 3))
    backbone = models.ViTBackbone((16, 16, 3), 4, **SIZES, mlp_dim=2 * WIDTH, dropout_rate=0.1, attention_dropout=0.1)
    return classified(inputs, backbone(inputs)[:, 0])


CASES = {
    "bert": Case(bert, bert_data, budget=0.75),
    "gpt2": Case(gpt2, sentences, budget=0.75),
    "vit": Case(vit, images(16), budget=0.75),
}


@pytest.mark.feature("Models", "keras-hub backbones (BERT, GPT-2, ViT)")
@pytest.mark.parametrize("name", CASES)
def test_backbones(name):
    case = CASES[name]
    plain, compiled = make(case), compile_quickly(make(case), case, time_limit=60)
    assert compiled.checkmate.recomputations > 0
    assert train(compiled, case, 1) == train(plain, case, 1)
    assert_same_state(plain, compiled)
