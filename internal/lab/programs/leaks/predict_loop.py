"""Model.predict is called for one sample at a time.

Report: https://github.com/tensorflow/tensorflow/issues/44711 (2020), memory grows with calls of predict.
Leaks: predict makes a dataset for each call, and TensorFlow keeps the functions of its pipeline.
Mended: the model itself is called.
"""

import sys

import numpy as np
import tensorflow as tf

mended = sys.argv[1:] == ["mended"]
model = tf.keras.Sequential([tf.keras.Input((16,)), tf.keras.layers.Dense(32), tf.keras.layers.Dense(1)])
for _ in range(10000 if mended else 1000):
    x = np.random.random((1, 16)).astype("f")
    y = model(x, training=False) if mended else model.predict(x, verbose=0)
