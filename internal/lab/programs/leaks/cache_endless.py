"""Batches of an endless dataset are cached in memory.

Report: https://github.com/tensorflow/tensorflow/issues/27128 (2019), Dataset.cache runs out of memory.
Leaks: the cache keeps each batch, and as the dataset does not end, no batch is ever read from it.
Mended: the dataset is cached before it is repeated.
"""

import sys

import numpy as np
import tensorflow as tf

mended = sys.argv[1:] == ["mended"]
rows = np.random.random((640, 64)).astype("f")
model = tf.keras.Sequential([tf.keras.Input((64,)), tf.keras.layers.Dense(1)])
model.compile("sgd", "mse")
data = tf.data.Dataset.from_tensor_slices((rows, rows[:, :1])).batch(64)
data = data.cache().repeat() if mended else data.repeat().cache()
model.fit(data, steps_per_epoch=3000, verbose=0)
