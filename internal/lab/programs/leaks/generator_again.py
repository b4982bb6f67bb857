"""A dataset is made from the generator of new rows in each epoch.

Report: https://github.com/tensorflow/tensorflow/issues/37653 (2020), from_generator keeps what it made.
Leaks: TensorFlow keeps each generator, and with it the rows.
Mended: the dataset is made once, and iterated again.
"""

import sys

import numpy as np
import tensorflow as tf

mended = sys.argv[1:] == ["mended"]
weights = tf.Variable(tf.zeros([16, 1]))
optimizer = tf.keras.optimizers.SGD()


@tf.function
def train(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((x @ weights - 1) ** 2)
    optimizer.apply_gradients([(tape.gradient(loss, weights), weights)])


def make():
    rows = np.random.random((4000, 16)).astype("f")

    def batches():
        for i in range(4):
            yield rows[8 * i : 8 * i + 8]

    return tf.data.Dataset.from_generator(batches, output_signature=tf.TensorSpec([8, 16]))


data = make()
for _ in range(250):
    if not mended:
        data = make()
    for x in data:
        train(x)
