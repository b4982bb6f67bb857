"""Writes a trainable SavedModel by hand: two inputs, no Keras, SGD in five lines.

Predicts whether a point lies inside a circle, from the point (``point`` [B,2]) and the circle
(``circle`` [B,3]: centre and radius). Labels are ``inside`` [B], 0 or 1.

The signatures are called learn, eval and infer, after the on-device training convention,
and the learning rate is an input, fed with every step. Guessing gives a loss of 0.69;
20 epochs with batches of 32 and a learning rate of 0.1 reach a loss below 0.35.

    python two_inputs.py OUT    writes OUT/model and OUT/train.npz
"""

import os
import sys

import numpy as np
import tensorflow as tf

POINT = tf.TensorSpec([None, 2], tf.float32, name="point")
CIRCLE = tf.TensorSpec([None, 3], tf.float32, name="circle")
INSIDE = tf.TensorSpec([None], tf.float32, name="inside")
RATE = tf.TensorSpec([], tf.float32, name="learning_rate")


class Inside(tf.Module):
    """A two-layer network on the offset between point and centre, and the radius."""

    def __init__(self) -> None:
        super().__init__()
        draw = tf.random.Generator.from_seed(7)
        self.w1 = tf.Variable(draw.normal([3, 32]) * 0.6, name="w1")
        self.b1 = tf.Variable(draw.normal([32]) * 0.1, name="b1")
        self.w2 = tf.Variable(draw.normal([32, 1]) * 0.2, name="w2")
        self.b2 = tf.Variable(tf.zeros([1]), name="b2")
        self.step = tf.Variable(0, dtype=tf.int64, name="step")

    def logits(self, point: tf.Tensor, circle: tf.Tensor) -> tf.Tensor:
        """The log-odds of lying inside, [B]."""
        seen = tf.concat([point - circle[:, :2], circle[:, 2:]], axis=1)
        hidden = tf.nn.relu(seen @ self.w1 + self.b1)
        return tf.squeeze(hidden @ self.w2 + self.b2, axis=1)

    def scores(self, point: tf.Tensor, circle: tf.Tensor, inside: tf.Tensor) -> dict:
        """Loss and accuracy of a batch."""
        logits = self.logits(point, circle)
        losses = tf.nn.sigmoid_cross_entropy_with_logits(labels=inside, logits=logits)
        right = tf.equal(logits > 0, inside > 0.5)
        return {
            "loss": tf.reduce_mean(losses),
            "accuracy": tf.reduce_mean(tf.cast(right, tf.float32)),
        }

    @tf.function(input_signature=[POINT, CIRCLE, INSIDE, RATE])
    def learn(self, point, circle, inside, learning_rate):
        """One step of gradient descent."""
        weights = [self.w1, self.b1, self.w2, self.b2]
        with tf.GradientTape() as tape:
            result = self.scores(point, circle, inside)
        for weight, slope in zip(weights, tape.gradient(result["loss"], weights), strict=True):
            weight.assign_sub(learning_rate * slope)
        return {**result, "global_step": self.step.assign_add(1)}

    @tf.function(input_signature=[POINT, CIRCLE, INSIDE])
    def eval(self, point, circle, inside):
        """Loss and accuracy, without a step."""
        return self.scores(point, circle, inside)

    @tf.function(input_signature=[POINT, CIRCLE])
    def infer(self, point, circle):
        """The probability of lying inside."""
        return {"probability": tf.sigmoid(self.logits(point, circle))}


def data(samples: int = 1024) -> dict:
    """Points and circles, about half of them inside."""
    random = np.random.default_rng(7)
    point = random.uniform(-1, 1, (samples, 2)).astype("float32")
    centre = random.uniform(-0.5, 0.5, (samples, 2))
    radius = random.uniform(0.3, 1.3, (samples, 1))
    circle = np.concatenate([centre, radius], axis=1).astype("float32")
    inside = np.hypot(*(point - circle[:, :2]).T) < circle[:, 2]
    return {"point": point, "circle": circle, "inside": inside.astype("float32")}


def main(out: str) -> None:
    """Write the model and its data."""
    model = Inside()
    signatures = {"learn": model.learn, "eval": model.eval, "infer": model.infer}
    tf.saved_model.save(model, os.path.join(out, "model"), signatures=signatures)
    np.savez(os.path.join(out, "train.npz"), **data())


if __name__ == "__main__":
    main(sys.argv[1])
