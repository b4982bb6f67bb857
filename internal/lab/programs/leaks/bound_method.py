"""A method of an object is an argument of a tf.function.

Report: https://github.com/tensorflow/tensorflow/issues/31175 (2019), each bound method is traced again.
Leaks: model.step is another object each time, so that each call is a trace.
Mended: the function is traced for the object and not for its method.
"""

import sys

import tensorflow as tf

mended = sys.argv[1:] == ["mended"]


class Model:
    def __init__(self):
        self.weights = tf.Variable(tf.zeros([16, 1]))
        self.optimizer = tf.keras.optimizers.SGD()

    def step(self, x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((x @ self.weights - 1) ** 2)
        self.optimizer.apply_gradients([(tape.gradient(loss, self.weights), self.weights)])


model = Model()


@tf.function
def run(step, x):
    step(x)


@tf.function
def run_model(x):
    model.step(x)


for _ in range(4000 if mended else 1500):
    x = tf.random.normal([8, 16])
    if mended:
        run_model(x)
    else:
        run(model.step, x)
