"""A policy of reinforcement learning gets its rate of exploration as a Python number.

Report: https://github.com/instadeepai/Mava/issues/346 (2022), the memory of agents increases until they are killed.
Leaks: each number is a trace of its own.
Mended: the number is a tensor.
"""

import sys

import tensorflow as tf

mended = sys.argv[1:] == ["mended"]
weights = tf.Variable(tf.random.normal([16, 4]))


@tf.function
def act(state, epsilon):
    best = tf.argmax(state @ weights, axis=1)
    other = tf.random.uniform(tf.shape(best), maxval=4, dtype=tf.int64)
    return tf.where(tf.random.uniform(tf.shape(best)) < epsilon, other, best)


for i in range(5000 if mended else 500):
    epsilon = 1 / (1 + i)
    act(tf.random.normal([1, 16]), tf.constant(epsilon) if mended else epsilon)
