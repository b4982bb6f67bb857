"""Models of Keras 2 are made and trained in a loop.

Report: https://github.com/keras-team/tf-keras/issues/286 (2023), clear_session of Keras 2 does not give the memory back.
Leaks: what TensorFlow traced for each model stays.
Mended: one model is trained again from its first weights.
"""

import sys

import numpy as np
import tf_keras

mended = sys.argv[1:] == ["mended"]
x, y = np.ones((160, 32), "f"), np.ones((160, 1), "f")


def make():
    model = tf_keras.Sequential([tf_keras.Input((32,)), tf_keras.layers.Dense(64), tf_keras.layers.Dense(1)])
    model.compile("adam", "mse")
    return model


model = make()
weights = model.get_weights()
for _ in range(60):
    if mended:
        model.set_weights(weights)
    else:
        tf_keras.backend.clear_session()
        model = make()
    model.fit(x, y, verbose=0)
