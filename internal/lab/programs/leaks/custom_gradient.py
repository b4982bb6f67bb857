"""A function with a gradient of its own is called in a tf.function that is made again for each batch.

Report: https://github.com/tensorflow/tensorflow/issues/97697 (2025), tf.custom_gradient keeps tensors for good.
Leaks: each trace registers a gradient that holds the tensors of the traced graph.
Mended: the tf.function is made once.
"""

import sys

import tensorflow as tf

mended = sys.argv[1:] == ["mended"]


@tf.custom_gradient
def clip(x):
    return x, lambda upstream: tf.clip_by_norm(upstream, 1.0)


def make():
    @tf.function
    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum(clip(x) ** 2)
        return tape.gradient(y, x)

    return gradient


x = tf.random.normal([64])
gradient = make()
for _ in range(5000 if mended else 200):
    if not mended:
        gradient = make()
    gradient(x)
