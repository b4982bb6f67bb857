"""A variable of a graph is assigned in a loop of a session.

Report: https://github.com/tensorflow/tensorflow/issues/4151 (2016), tf.assign in a loop makes the graph grow.
Leaks: each call adds operations, and a constant with the value, to the graph.
Mended: one operation assigns the value of a placeholder.
"""

import sys

import numpy as np
import tensorflow.compat.v1 as tf

mended = sys.argv[1:] == ["mended"]
tf.disable_eager_execution()
weights = tf.get_variable("weights", (64, 64))
value = tf.placeholder(tf.float32, (64, 64))
assign = tf.assign(weights, value)
with tf.Session() as session:
    for _ in range(12_000 if mended else 500):
        x = np.random.random((64, 64))
        if mended:
            session.run(assign, {value: x})
        else:
            session.run(tf.assign(weights, x))
