"""An operation of TensorFlow is called in a loop.

Report: https://github.com/tensorflow/tensorflow/issues/62551 (2023), basic calls leak with Python 3.11 and newer.
Leaks: TensorFlow 2.15 and 2.16 keep 0.7 KiB for each call; 2.17 does not.
Mended: the operations run in a tf.function, in one call.
"""

import sys

import tensorflow as tf

mended = sys.argv[1:] == ["mended"]


@tf.function
def zeros():
    for _ in tf.range(1000):
        x = tf.zeros(shape=(1,))
    return x


for i in range(300):
    print("thousand", i)
    if mended:
        zeros()
    else:
        for _ in range(1000):
            tf.zeros(shape=(1,))
