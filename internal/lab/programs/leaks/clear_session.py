"""A model is made and trained in each fold, and the session is cleared after it.

Report: https://github.com/keras-team/keras/issues/17458 (2023), clear_session does not give the memory back.
Leaks: what TensorFlow traced for each model stays.
Mended: one model is trained again from its first weights.
"""

import gc
import sys

import numpy as np
import tensorflow as tf

mended = sys.argv[1:] == ["mended"]
x, y = np.ones((160, 32), "f"), np.ones((160, 1), "f")


def make():
    model = tf.keras.Sequential(
        [tf.keras.Input((32,)), tf.keras.layers.Dense(64, activation="relu"), tf.keras.layers.Dense(1)]
    )
    model.compile("adam", "mse")
    return model


model = make()
weights = model.get_weights()
for _ in range(60 if mended else 20):
    if mended:
        model.set_weights(weights)
    else:
        del model
        tf.keras.backend.clear_session()
        gc.collect()
        model = make()
    model.fit(x, y, verbose=0)
