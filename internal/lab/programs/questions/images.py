"""Does a generator of image tensors build up memory?

The argument is what the generator yields: tensors, arrays, dataset (arrays through tf.data with prefetch), or sizes
(tensors of many sizes).
"""

import sys

import keras
import numpy as np
import tensorflow as tf

way = sys.argv[1] if len(sys.argv) > 1 else "tensors"
rng = np.random.default_rng(0)
sizes = range(64, 128) if way == "sizes" else [96]


def tensors():
    while True:
        size = int(rng.choice(sizes))
        image = tf.random.uniform((8, size, size, 3))
        yield tf.image.random_flip_left_right(image), tf.constant(rng.integers(0, 10, 8))


def arrays():
    while True:
        image = rng.random((8, 96, 96, 3), dtype="float32")
        yield image[:, :, :: rng.choice([-1, 1])], rng.integers(0, 10, 8)


model = keras.Sequential(
    [
        keras.Input((None, None, 3)),
        keras.layers.Conv2D(16, 3, activation="relu"),
        keras.layers.GlobalMaxPooling2D(),
        keras.layers.Dense(10, activation="softmax"),
    ]
)
model.compile(optimizer="adam", loss="sparse_categorical_crossentropy")
if way == "dataset":
    signature = (tf.TensorSpec((8, 96, 96, 3)), tf.TensorSpec((8,), tf.int64))
    data = tf.data.Dataset.from_generator(arrays, output_signature=signature).prefetch(tf.data.AUTOTUNE)
else:
    data = arrays() if way == "arrays" else tensors()
model.fit(data, steps_per_epoch=100, epochs=15, verbose=0)
