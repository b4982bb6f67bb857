"""Does a loop of one's own keep the results of each step? Arguments: graph compiles the step, floats keeps only numbers."""

import sys

import keras
import numpy as np
import tensorflow as tf

rng = np.random.default_rng(0)
x, y = rng.random((3_200, 784), dtype="float32"), rng.integers(0, 10, 3_200)
model = keras.Sequential([keras.Input((784,)), keras.layers.Dense(10)])
optimizer = keras.optimizers.Adam()
loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
results = []


def step(images, labels):
    with tf.GradientTape() as tape:
        outputs = model(images, training=True)
        loss = loss_of(labels, outputs)
    optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
    return loss, outputs


if "graph" in sys.argv:
    step = tf.function(step)
for epoch in range(40):
    for at in range(0, len(x), 32):
        result = step(x[at : at + 32], y[at : at + 32])
        results.append(float(result[0]) if "floats" in sys.argv else result)
