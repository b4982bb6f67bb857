"""A tf.function reads images by their paths.

Report: https://github.com/tensorflow/tensorflow/issues/51083 (2021), tf.io.read_file keeps memory for each file.
Leaks: a path is a Python string, so that the function is traced for each file.
Mended: the path is a tensor.
"""

import sys
import tempfile

import tensorflow as tf

mended = sys.argv[1:] == ["mended"]


@tf.function
def load(path):
    return tf.io.decode_png(tf.io.read_file(path))


with tempfile.TemporaryDirectory() as folder:
    for i in range(3000 if mended else 400):
        path = f"{folder}/{i}.png"
        tf.io.write_file(path, tf.io.encode_png(tf.zeros([32, 32, 3], tf.uint8)))
        load(tf.constant(path) if mended else path)
