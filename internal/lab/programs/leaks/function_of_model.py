"""Each model of a search has a training step with tf.function of its own.

Report: https://github.com/tensorflow/tensorflow/issues/62854 (2024), memory grows with each model that was trained.
Leaks: the traced functions stay although model and function are deleted.
Mended: the step is made once, and the model gets its first weights again.
"""

import gc
import sys

import tensorflow as tf

mended = sys.argv[1:] == ["mended"]


def make():
    model = tf.keras.Sequential([tf.keras.Input((16,)), tf.keras.layers.Dense(32), tf.keras.layers.Dense(1)])
    optimizer = tf.keras.optimizers.SGD()

    @tf.function
    def train(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x) - 1) ** 2)
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))

    return model, train


model, train = make()
weights = model.get_weights()
for _ in range(400 if mended else 40):
    if mended:
        model.set_weights(weights)
    else:
        model, train = make()
        gc.collect()
    for _ in range(10):
        train(tf.random.normal([8, 16]))
