"""Batches of many lengths are given to Model.train_on_batch.

Report: https://github.com/tensorflow/tensorflow/issues/38742 (2020), the training is traced for each length.
Leaks: each length is a trace in old versions. Keras 3 traces with reduce_retracing.
Mended: the batches are padded to one length.
"""

import sys

import numpy as np
import tensorflow as tf

mended = sys.argv[1:] == ["mended"]
inputs = tf.keras.Input((None, 4))
outputs = tf.keras.layers.Dense(1)(tf.keras.layers.GlobalAveragePooling1D()(inputs))
model = tf.keras.Model(inputs, outputs)
model.compile("adam", "mse")
for i in range(2000):
    x = np.random.random((8, 1 + i % 300, 4)).astype("f")
    if mended:
        x = np.pad(x, ((0, 0), (0, 300 - x.shape[1]), (0, 0)))
    model.train_on_batch(x, np.ones((8, 1), "f"))
