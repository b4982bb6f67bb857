"""Python code is called by tf.py_function outside of a graph.

Report: https://github.com/tensorflow/tensorflow/issues/35010 (2019), tf.py_function keeps tensors without a graph.
Leaks: old versions kept a tape, with its tensors, for each call.
Mended: tf.numpy_function has no gradients and no tapes.
"""

import sys

import numpy as np
import tensorflow as tf

mended = sys.argv[1:] == ["mended"]
for _ in range(6000):
    x = tf.random.uniform([1000])
    y = tf.numpy_function(np.cos, [x], tf.float32) if mended else tf.py_function(np.cos, [x], tf.float32)
