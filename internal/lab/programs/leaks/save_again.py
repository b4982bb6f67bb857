"""A model is saved to a file and loaded from it in a loop.

Report: https://github.com/tensorflow/tensorflow/issues/32234 (2019), saving and loading a model leaks.
Leaks: load_model makes and compiles the model again, and what TensorFlow traced for it stays.
Mended: NumPy saves and loads the weights alone, so that the model stays the same.
"""

import os
import sys
import tempfile

import numpy as np
import tensorflow as tf

mended = sys.argv[1:] == ["mended"]
x, y = np.ones((32, 32), "f"), np.ones((32, 1), "f")
model = tf.keras.Sequential([tf.keras.Input((32,)), tf.keras.layers.Dense(64), tf.keras.layers.Dense(1)])
model.compile("adam", "mse")
with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "weights.npz" if mended else "model.keras")
    for _ in range(600 if mended else 60):
        model.train_on_batch(x, y)
        if mended:
            np.savez(path, *model.get_weights())
            with np.load(path) as saved:
                model.set_weights([saved[name] for name in saved])
        else:
            model.save(path)
            model = tf.keras.models.load_model(path)
