"""A SavedModel is loaded for each request.

Report: https://github.com/tensorflow/tensorflow/issues/40171 (2020), loading and deleting models leaks.
Leaks: loaded models stay until Python collects cycles. On 2.21, 1600 loads grew no more after the first 100.
Mended: the model is loaded once.
"""

import sys
import tempfile

import tensorflow as tf

mended = sys.argv[1:] == ["mended"]


class Model(tf.Module):
    def __init__(self):
        self.weights = [tf.Variable(tf.random.normal([32, 32])) for _ in range(8)]

    @tf.function(input_signature=[tf.TensorSpec([None, 32])])
    def __call__(self, x):
        for w in self.weights:
            x = tf.tanh(x @ w)
        return x


with tempfile.TemporaryDirectory() as folder:
    tf.saved_model.save(Model(), folder)
    model = tf.saved_model.load(folder)
    for _ in range(3000 if mended else 80):
        if not mended:
            model = tf.saved_model.load(folder)
        model(tf.ones([1, 32]))
