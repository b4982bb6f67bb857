"""Python code is called by tf.py_function outside of a graph.

Report: https://github.com/tensorflow/tensorflow/issues/35010 (2019), tf.py_function keeps tensors without a graph.
Leaks: each call registers the function anew, and TensorFlow keeps a kernel for each.
Mended: tf.numpy_function calls the Python code itself.
"""

import sys

import numpy as np
import tensorflow as tf

mended = sys.argv[1:] == ["mended"]
x = tf.random.uniform([1000])
every = 1000 if mended else 50
for i in range(200_000 if mended else 6000):
    if i % every == 0:
        print("call", i)
    y = tf.numpy_function(np.cos, [x], tf.float32) if mended else tf.py_function(np.cos, [x], tf.float32)
