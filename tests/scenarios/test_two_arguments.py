"""`compile(model, budget)` and nothing else, on models as people train them: the numbers are plain ones, bit by bit.

Each plan is made at the first batch. Where a model, its losses or its data need more than Keras's own step, the plan
has to find that by itself.
"""

from __future__ import annotations

import pytest
from cases import Case, assert_same_state, compile_quickly, make, train

from benchmarks.lib.kinds import KINDS

pytestmark = [pytest.mark.usefixtures("fresh_keras", "no_grappler")]

BUDGETS = {
    "gradient penalty": 0.5, "diffusion": 0.7, "vae": 0.8, "experts": 0.75, "towers": 1.0, "distilled": 0.7,
    "ctc": 0.97, "detector": 0.7, "fourier": 0.7, "py_function": 0.9, "numpy_function": 0.85, "mask": 0.85,
    "unique": 0.85, "tensor array": 1.0, "convnext": 0.7, "masked state": 0.9,
}  # fmt: skip
CASES = {
    name: Case(KINDS[name].build, KINDS[name].data, budget=share, missing=5 * (name == "detector"))
    for name, share in BUDGETS.items()
}


ORDERED = ("gradient penalty", "towers", "tensor array")  # nothing has to be computed again


@pytest.mark.long(but=("mask",))
@pytest.mark.feature("Models", "GAN with a gradient penalty", name="gradient penalty")
@pytest.mark.feature("Models", "diffusion: noise drawn in the step", name="diffusion")
@pytest.mark.feature("Models", "variational autoencoder", name="vae")
@pytest.mark.feature("Models", "mixture of experts, routed by scores", name="experts")
@pytest.mark.feature("Models", "two towers, negatives in the batch", name="towers")
@pytest.mark.feature("Models", "distillation", name="distilled")
@pytest.mark.feature("Models", "CTC: targets of another shape than the output", name="ctc")
@pytest.mark.feature("Models", "targets in a dict", name="detector")
@pytest.mark.feature("Models", "Fourier transforms", name="fourier")
@pytest.mark.feature(
    "Models", "py_function, numpy_function", name=["py_function", "numpy_function"], note="`set_shape` tells the size"
)
@pytest.mark.feature(
    "Models",
    "boolean_mask, unique",
    name=["mask", "unique"],
    note="planned for the most that can come, if a batch comes near that",
)
@pytest.mark.feature("Models", "TensorArray in a loop of one's own", name="tensor array")
@pytest.mark.feature("Models", "ConvNeXt blocks, stochastic depth", name="convnext")
@pytest.mark.feature("Models", "stateful recurrent layers with masks", name="masked state")
@pytest.mark.parametrize("name", CASES)
def test_training_is_equal(name):
    case = CASES[name]
    plain, model = make(case), make(case)
    compile_quickly(model, case, batch_size=None, data=None, time_limit=60)
    assert train(model, case, 2) == train(plain, case, 2)
    assert_same_state(plain, model)
    assert model.checkmate.recomputations > 0 or name in ORDERED
