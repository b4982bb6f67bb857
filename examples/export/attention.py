"""Writes a trainable SavedModel with one attention block, in plain TensorFlow.

A row of tokens (``tokens`` int32 [B,12], values 0 to 15) holds one marker, token 0; the
class (``label`` int32 [B], 0 to 14) is the token right after it, less one. To answer, the
model must look from the marker to its neighbour, which is what attention does. Guessing
gives an accuracy of 0.07; 20 epochs of batches of 32 come above 0.9.

Adam is written out by hand, with its moments in variables of the module. The signature is
called train_step.

    python attention.py OUT    writes OUT/model and OUT/train.npz
"""

import os
import sys

import numpy as np
import tensorflow as tf

LENGTH, VOCABULARY, WIDTH, HEADS, CLASSES = 12, 16, 32, 4, 15
TOKENS = tf.TensorSpec([None, LENGTH], tf.int32, name="tokens")
LABEL = tf.TensorSpec([None], tf.int32, name="label")


class Neighbour(tf.Module):
    """Embedding, self-attention with a residual, and a classifier, with Adam."""

    def __init__(self) -> None:
        super().__init__()
        draw = tf.random.Generator.from_seed(5)

        def weight(name: str, *shape: int) -> tf.Variable:
            return tf.Variable(draw.normal(shape) / shape[0] ** 0.5, name=name)

        self.w = {
            "embedding": tf.Variable(draw.normal([VOCABULARY, WIDTH]), name="embedding"),
            "position": tf.Variable(draw.normal([LENGTH, WIDTH]), name="position"),
            "query": weight("query", WIDTH, WIDTH),
            "key": weight("key", WIDTH, WIDTH),
            "value": weight("value", WIDTH, WIDTH),
            "hidden": weight("hidden", WIDTH, 64),
            "out": weight("out", 64, CLASSES),
        }
        zeros = tf.zeros_like
        self.mean = {k: tf.Variable(zeros(v), name=f"{k}_mean") for k, v in self.w.items()}
        self.square = {k: tf.Variable(zeros(v), name=f"{k}_square") for k, v in self.w.items()}
        self.step = tf.Variable(0.0, name="step")

    def logits(self, tokens: tf.Tensor) -> tf.Tensor:
        """Class scores, [B,15]."""
        seen = tf.gather(self.w["embedding"], tokens) + self.w["position"]

        def heads(name: str) -> tf.Tensor:
            split = tf.reshape(seen @ self.w[name], [-1, LENGTH, HEADS, WIDTH // HEADS])
            return tf.transpose(split, [0, 2, 1, 3])

        scores = tf.matmul(heads("query"), heads("key"), transpose_b=True)
        mixed = tf.nn.softmax(scores * (WIDTH // HEADS) ** -0.5) @ heads("value")
        merged = tf.reshape(tf.transpose(mixed, [0, 2, 1, 3]), [-1, LENGTH, WIDTH])
        hidden = tf.nn.relu((seen + merged) @ self.w["hidden"])
        # The marker's own place, wherever it is in the row, holds the answer.
        marker = tf.cast(tf.equal(tokens, 0), tf.float32)[..., None]
        return tf.reduce_sum(hidden * marker, axis=1) @ self.w["out"]

    def scores(self, tokens: tf.Tensor, label: tf.Tensor) -> dict:
        """Loss and accuracy of a batch."""
        logits = self.logits(tokens)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=label, logits=logits)
        right = tf.equal(tf.argmax(logits, axis=1, output_type=tf.int32), label)
        return {
            "loss": tf.reduce_mean(losses),
            "accuracy": tf.reduce_mean(tf.cast(right, tf.float32)),
        }

    @tf.function(input_signature=[TOKENS, LABEL])
    def train_step(self, tokens, label):
        """One step of Adam."""
        with tf.GradientTape() as tape:
            result = self.scores(tokens, label)
        slopes = tape.gradient(result["loss"], self.w)
        step = self.step.assign_add(1.0)
        rate = 0.003 * tf.sqrt(1 - 0.999**step) / (1 - 0.9**step)
        for name, weight in self.w.items():
            slope = tf.convert_to_tensor(slopes[name])
            mean = self.mean[name].assign(0.9 * self.mean[name] + 0.1 * slope)
            square = self.square[name].assign(0.999 * self.square[name] + 0.001 * slope**2)
            weight.assign_sub(rate * mean / (tf.sqrt(square) + 1e-7))
        return result

    @tf.function(input_signature=[TOKENS, LABEL])
    def evaluate(self, tokens, label):
        """Loss and accuracy, without a step."""
        return self.scores(tokens, label)

    @tf.function(input_signature=[TOKENS])
    def serving_default(self, tokens):
        """Class probabilities."""
        return {"probabilities": tf.nn.softmax(self.logits(tokens))}


def data(samples: int = 2048) -> dict:
    """Rows of tokens with one marker, never in the last place."""
    random = np.random.default_rng(5)
    tokens = random.integers(1, VOCABULARY, (samples, LENGTH)).astype("int32")
    place = random.integers(0, LENGTH - 1, samples)
    rows = np.arange(samples)
    label = tokens[rows, place + 1] - 1
    tokens[rows, place] = 0
    return {"tokens": tokens, "label": label.astype("int32")}


def main(out: str) -> None:
    """Write the model and its data."""
    module = Neighbour()
    signatures = {
        "train_step": module.train_step,
        "evaluate": module.evaluate,
        "serving_default": module.serving_default,
    }
    tf.saved_model.save(module, os.path.join(out, "model"), signatures=signatures)
    np.savez(os.path.join(out, "train.npz"), **data())


if __name__ == "__main__":
    main(sys.argv[1])
