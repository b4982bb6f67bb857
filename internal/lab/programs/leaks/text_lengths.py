"""A tf.function gets texts of many lengths.

Report: https://github.com/tensorflow/tensorflow/issues/124972 (2026), traces for varying shapes are never released.
Leaks: each length is a trace of its own, which stays.
Mended: the signature has None for the length.
"""

import sys

import tensorflow as tf

mended = sys.argv[1:] == ["mended"]
table = tf.Variable(tf.random.normal([100, 16]))
signature = [tf.TensorSpec([1, None], tf.int32)] if mended else None


@tf.function(input_signature=signature)
def encode(tokens):
    x = tf.nn.embedding_lookup(table, tokens)
    return tf.reduce_mean(tf.nn.softmax(x @ tf.transpose(x, [0, 2, 1])) @ x, axis=1)


for i in range(3000 if mended else 250):
    encode(tf.ones([1, 1 + i % 250], tf.int32))
