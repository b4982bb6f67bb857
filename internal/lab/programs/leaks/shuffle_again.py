"""A shuffled dataset is iterated again in each epoch.

Report: https://github.com/tensorflow/tensorflow/issues/44176 (2020), the buffer of shuffle is not released.
Leaks: old versions kept the buffer of each epoch.
Mended: the data fit into memory, so that a permutation of the rows does the same.
"""

import sys

import numpy as np
import tensorflow as tf

mended = sys.argv[1:] == ["mended"]
rows = np.random.random((4000, 256)).astype("f")
model = tf.keras.Sequential([tf.keras.Input((256,)), tf.keras.layers.Dense(1)])
model.compile("sgd", "mse")
data = tf.data.Dataset.from_tensor_slices((rows, rows[:, :1])).shuffle(4000).batch(64)
for _ in range(30):
    if mended:
        x = rows[np.random.permutation(len(rows))]
        model.fit(x, x[:, :1], batch_size=64, verbose=0)
    else:
        model.fit(data, verbose=0)
