"""Write models with a frozen layer before a trained one, and data for them.

Usage: features.py FOLDER KIND...
"""

import sys

import numpy as np
import tensorflow as tf

rng = np.random.default_rng(0)
features = tf.TensorSpec([None, 8], tf.float32, name="x")
labels = tf.TensorSpec([None], tf.int64, name="y")


def weights(*shape):
    return tf.Variable(tf.constant(rng.normal(0, 0.3, shape), tf.float32))


class Model(tf.Module):
    """Two frozen layers with another operation between them, and a trained head."""

    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        self.first, self.second, self.head = (
            weights(8, 16),
            weights(16, 8),
            weights(8, 3),
        )
        self.mean = tf.Variable(tf.zeros([16]))
        self.image = weights(3, 3, 1, 1)
        self.random = tf.Variable(tf.constant([1, 2], tf.int64))

    def dropout(self, x):
        self.random.assign_add([0, 1])
        return tf.nn.experimental.stateless_dropout(x, 0.3, self.random)

    def body(self, x, training):
        kind = self.kind
        if kind == "dropout before" and training:
            x = self.dropout(x)
        h = tf.nn.relu(x @ self.first)
        if kind == "dropout between" and training:
            h = self.dropout(h)
        elif kind == "batch mean":
            h = h - tf.reduce_mean(h, axis=0)
        elif kind == "batch product":
            h = tf.linalg.matmul(h, h, transpose_b=True) @ h
        elif kind == "batch softmax":
            h = tf.reshape(tf.nn.softmax(tf.reshape(h, [1, -1])), tf.shape(h))
        elif kind == "assigned variable":
            self.mean.assign(0.9 * self.mean + 0.1 * tf.reduce_mean(h, axis=0))
            h = h - self.mean
        elif kind == "batch normalization":
            scale = tf.ones([16])
            h = tf.reshape(h, [-1, 1, 1, 16])
            h = tf.compat.v1.nn.fused_batch_norm(
                h,
                scale,
                scale,
                is_training=training,
                mean=None if training else self.mean,
                variance=None if training else scale,
            )[0]
            h = tf.reshape(h, [-1, 16])
        elif kind == "stateful random" and training:
            h = h + tf.random.uniform(tf.shape(h), seed=3)
        elif kind == "condition":
            h = tf.cond(tf.reduce_any(h > 5.0), lambda: h * 2.0, lambda: h)
        elif kind == "nested function":
            h = tf.function(lambda v: tf.nn.relu(v * 2.0))(h)
        elif kind == "tensor product":
            # With an open number of samples, the axes of the transposition are computed.
            h = tf.reshape(
                tf.tensordot(tf.reshape(h, [-1, 4, 4]), self.first[:4, :4], [[2], [0]]),
                [-1, 16],
            )
        elif kind == "first sample":
            h = h - h[:1]
        elif kind == "shift":
            h = tf.pad(h, [[1, 0], [0, 0]])[:-1]
        elif kind == "position":
            h = h + tf.cast(tf.range(tf.shape(h)[0]), tf.float32)[:, None]
        elif kind == "batch size":
            h = h * 8.0 / tf.cast(tf.shape(h)[0], tf.float32)
        elif kind == "gated position":
            odd = tf.cast(tf.range(tf.shape(h)[0]) % 2, tf.float32)
            h = h - tf.nn.relu(h - 2.0) * odd[:, None]
        elif kind == "gated size":
            h = h * (1.0 + tf.cast(tf.shape(h)[0] <= 24, tf.float32))
        elif kind == "gated mask":
            samples = tf.shape(h)[0]
            mask = tf.linalg.band_part(tf.ones([samples, samples]), -1, 0)
            h = h - tf.nn.relu(h - 2.0) * (mask @ tf.ones([samples, 1]))
        elif kind == "gated columns":
            columns = tf.ones(tf.stack([1, tf.shape(h)[0]]))
            h = h - tf.nn.relu(h - 2.0) * tf.reduce_sum(columns, axis=1)
        elif kind == "gated sum of shapes":
            samples = tf.shape(h)[0]
            shape = tf.reduce_sum(tf.stack([[1, samples], [0, samples]]), axis=0)
            columns = tf.ones(shape)
            h = h - tf.nn.relu(h - 2.0) * tf.reduce_sum(columns, axis=1)
        elif kind == "dynamic shapes":
            samples, width = tf.shape(h)[0], tf.shape(h)[1]
            h = tf.reshape(h, [samples * 2, width // 2])
            h = tf.reshape(h / tf.sqrt(tf.cast(width, tf.float32)), [samples, 16])
            h = h + tf.broadcast_to(self.first[:1, :], [samples, tf.shape(h)[-1]])
            h = h + tf.tile(self.first[1:2, :], [samples, 1])
        elif kind == "batch maximum":
            h = h / tf.reduce_max(tf.reshape(h, [1, -1]), axis=1)
        elif kind == "negative axis":
            h = tf.cumsum(h, axis=-2)
        elif kind == "half":
            h = tf.cast(
                tf.cast(h, tf.float16)
                @ tf.cast(self.second @ tf.transpose(self.second), tf.float16),
                tf.float32,
            )
        if kind == "max pooling":
            h = tf.reshape(h, [-1, 4, 4, 1])
            h = tf.nn.max_pool2d(tf.nn.conv2d(h, self.image, 1, "SAME"), 2, 2, "VALID")
            h = tf.reshape(tf.nn.conv2d(h, self.image, 1, "SAME"), [-1, 4]) @ self.second[:4]
            return tf.nn.relu(h)
        return tf.nn.relu(h @ self.second)

    def loss(self, x, y, training):
        if self.kind == "label diamond":
            for _ in range(60):
                y = y + y - y
        logits = self.body(x, training) @ self.head
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits))

    @tf.function(input_signature=[features, labels])
    def train(self, x, y):
        trained = [self.head] + (
            [self.first] if self.kind == "trained first layer" else []
        )
        return self.step(trained, x, y)

    @tf.function(
        input_signature=[
            features,
            labels,
            tf.TensorSpec([], tf.float32, name="learning_rate"),
        ]
    )
    def train_at(self, x, y, learning_rate):
        return self.step([self.head], x, y, learning_rate)

    def step(self, trained, x, y, rate=0.1):
        with tf.GradientTape() as tape:
            loss = self.loss(x, y, True)
        for v, g in zip(trained, tape.gradient(loss, trained)):
            v.assign_sub(rate * g)
        return {"loss": loss}

    @tf.function(input_signature=[features, labels])
    def train_all(self, x, y):
        self.first.assign_sub(0.1 * self.first)
        return {"loss": self.loss(x, y, False)}

    @tf.function(input_signature=[features, labels])
    def evaluate(self, x, y):
        return {"loss": self.loss(x, y, False)}

    @tf.function(input_signature=[features])
    def predict(self, x):
        return {"output": self.body(x, False) @ self.head}


folder = sys.argv[1]
for kind in sys.argv[2:]:
    model = Model(kind)
    signatures = {
        "train": model.train,
        "evaluate": model.evaluate,
        "predict": model.predict,
    }
    if kind == "trained elsewhere":
        signatures["train_all"] = model.train_all
    if kind == "rate":
        signatures["train"] = model.train_at
    tf.saved_model.save(model, f"{folder}/{kind}", signatures=signatures)
x, y = rng.normal(0, 1, (200, 8)), rng.integers(0, 3, 200)
np.savez(f"{folder}/data.npz", x=x.astype("float32"), y=y)
np.savez(f"{folder}/double.npz", x=x, y=y)
