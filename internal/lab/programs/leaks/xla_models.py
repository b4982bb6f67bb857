"""Models that are compiled by XLA are trained one after the other.

Report: https://github.com/tensorflow/tensorflow/issues/64170 (2024), memory grows with XLA since TensorFlow 2.16.
Leaks: each model is traced and compiled again, and the compiled programs stay.
Mended: one model is trained again from its first weights.
"""

import sys

import numpy as np
import tensorflow as tf

mended = sys.argv[1:] == ["mended"]
x, y = np.ones((160, 16), "f"), np.ones((160, 1), "f")


def make():
    model = tf.keras.Sequential([tf.keras.Input((16,)), tf.keras.layers.Dense(8), tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=True)
    return model


model = make()
weights = model.get_weights()
for _ in range(150 if mended else 24):
    if mended:
        model.set_weights(weights)
    else:
        model = make()
    model.fit(x, y, verbose=0)
