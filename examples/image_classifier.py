"""A convolutional network learns handwritten digits in 60% of the memory that its training step would need.

    python examples/image_classifier.py

Needs scikit-learn for the digits: 1,797 grey images of 8 x 8 pixels that come with it.
"""

import os

# On a CPU TensorFlow counts the bytes of its tensors only if this is set before it is imported. With the count, the
# plan's peak is measured and not only predicted. On a GPU bytes are always counted.
os.environ.setdefault("TF_CPU_ALLOCATOR_USE_BFC", "true")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # fewer messages of TensorFlow itself

import keras
from sklearn.datasets import load_digits

import checkmate_tf

BATCH_SIZE = 128


def build_model() -> keras.Model:
    """Five times convolution, batch normalization and ReLU; the last halves the image."""
    inputs = keras.Input((8, 8, 1))
    x = keras.layers.UpSampling2D(4)(inputs)  # 32 x 32: as it is the network would hardly need memory
    for filters, strides in ((16, 1), (16, 1), (16, 1), (16, 1), (32, 2)):
        x = keras.layers.Conv2D(filters, 3, strides, padding="same", use_bias=False)(x)
        x = keras.layers.BatchNormalization(momentum=0.8)(x)
        x = keras.layers.ReLU()(x)
    x = keras.layers.Flatten()(keras.layers.MaxPooling2D()(x))
    outputs = keras.layers.Dense(10, activation="softmax")(x)
    return keras.Model(inputs, outputs, name="digits")


def main() -> None:
    keras.utils.set_random_seed(0)
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).reshape(-1, 8, 8, 1).astype("float32")

    # An ordinary Keras model, compiled as ever.
    model = build_model()
    model.compile(optimizer=keras.optimizers.Adam(2e-3), loss="sparse_categorical_crossentropy", metrics=["accuracy"])

    # The one line that is new. The same model comes back. Its step now drops some values of the forward pass, and
    # computes them again when the backward pass needs them. The budget covers all that is on the device.
    checkmate_tf.compile(model, budget="60%", batch_size=BATCH_SIZE)

    # Training and validation go on as before.
    history = model.fit(images, labels, batch_size=BATCH_SIZE, epochs=4, validation_split=0.2, verbose=2).history

    # It learns: the loss falls, and images that it has never seen are told apart far better than by chance (10%).
    losses, accuracy = history["loss"], history["val_accuracy"][-1]
    print(f"loss {losses[0]:.2f} -> {losses[-1]:.2f}, validation accuracy {accuracy:.0%}")
    assert losses[-1] < losses[0] / 2 and accuracy > 0.5

    # What was asked, predicted, measured and proven.
    print(model.checkmate)


if __name__ == "__main__":
    main()
