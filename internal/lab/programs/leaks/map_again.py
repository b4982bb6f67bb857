"""A dataset with a function of Python is made for each prediction.

Report: https://github.com/RasaHQ/rasa/issues/5550 (2020), predictions with a new tf.data.Dataset increase memory.
Leaks: the memory of each dataset stayed, says the report.
Mended: the function is called without a dataset.
"""

import sys

import numpy as np
import tensorflow as tf

mended = sys.argv[1:] == ["mended"]
weights = tf.Variable(tf.random.normal([16, 4]))


@tf.function
def predict(x):
    return tf.nn.softmax(x @ weights)


def normalize(x):
    return (x - tf.reduce_mean(x)) / (tf.math.reduce_std(x) + 1e-6)


for _ in range(3000 if mended else 500):
    rows = np.random.random((8, 16)).astype("f")
    if mended:
        predict(normalize(tf.constant(rows)))
    else:
        for x in tf.data.Dataset.from_tensors(rows).map(normalize):
            predict(x)
