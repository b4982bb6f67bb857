"""A function with jit_compile gets sequences of many lengths.

Report: https://github.com/tensorflow/tensorflow/issues/52645 (2021), the cache of compiled programs grows.
Leaks: XLA compiles the function for each length, and keeps what it compiled.
Mended: the sequences are padded to one length.
"""

import sys

import numpy as np
import tensorflow as tf

mended = sys.argv[1:] == ["mended"]
weights = tf.Variable(tf.random.normal([16, 16]))


@tf.function(jit_compile=True, input_signature=[tf.TensorSpec([None, 16])])
def score(x):
    return tf.reduce_mean(tf.nn.softmax(tf.tanh(x @ weights) @ weights))


for length in range(4000 if mended else 60):
    x = np.ones((length % 256 + 1, 16), "f")
    if mended:
        x = np.pad(x, ((0, 256 - len(x)), (0, 0)))
    score(tf.constant(x))
