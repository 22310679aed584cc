"""A training loop of one's own: a small transformer, with gradients that are computed within a budget.

    python examples/transformer_loop.py

The task is made up. The input is a sequence of 64 random symbols, and the answer is whichever of two of them came
more often.
"""

import os

# On a CPU TensorFlow counts the bytes of its tensors only if this is set before it is imported. With the count, the
# plan's peak is measured and not only predicted. On a GPU bytes are always counted.
os.environ.setdefault("TF_CPU_ALLOCATOR_USE_BFC", "true")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # fewer messages of TensorFlow itself

import keras
import numpy as np

import checkmate_tf

SYMBOLS, LENGTH, WIDTH, BATCH_SIZE, STEPS = 8, 64, 64, 32, 60


def build_model() -> keras.Model:
    """Two transformer blocks: attention, then two dense layers, each with a normalization and a way around."""
    inputs = keras.Input((LENGTH,), dtype="int32")
    x = keras.layers.Embedding(SYMBOLS, WIDTH)(inputs)
    for _ in range(2):
        attended = keras.layers.MultiHeadAttention(4, WIDTH // 4, dropout=0.1)(x, x)
        x = keras.layers.LayerNormalization()(keras.layers.add([x, attended]))
        hidden = keras.layers.Dense(4 * WIDTH, activation="gelu")(x)
        x = keras.layers.LayerNormalization()(keras.layers.add([x, keras.layers.Dense(WIDTH)(hidden)]))
    outputs = keras.layers.Dense(2)(keras.layers.GlobalAveragePooling1D()(x))
    return keras.Model(inputs, outputs, name="transformer")


def make_batch(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Random sequences, and whether symbol 1 is in them more often than symbol 0."""
    x = rng.integers(0, SYMBOLS, (BATCH_SIZE, LENGTH)).astype("int32")
    return x, ((x == 1).sum(axis=1) > (x == 0).sum(axis=1)).astype("int32")


def main() -> None:
    keras.utils.set_random_seed(0)
    rng = np.random.default_rng(0)
    model = build_model()  # it need not be compiled
    optimizer = keras.optimizers.Adam(1e-3)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    # A function of a batch that gives the loss, and the gradients in the order of model.trainable_variables. It drops
    # values of the forward pass and computes them again, so that all of it fits the budget. The gradients are still in
    # memory when it returns, so they are part of the budget; what the optimizer needs is not.
    step = checkmate_tf.gradient_function(model, loss, budget="60%", data=make_batch(rng))

    # What happens to the gradients is this program's: here one step of Adam a batch.
    losses = []
    for number in range(STEPS):
        x, y = make_batch(rng)
        value, gradients = step(x, y)
        optimizer.apply(gradients, model.trainable_variables)
        losses.append(float(value))
        if number % 10 == 9:
            print(f"step {number + 1}: loss {np.mean(losses[-10:]):.3f}")

    # What was asked, predicted, measured and proven.
    print(step.checkmate)


if __name__ == "__main__":
    main()
