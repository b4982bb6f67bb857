"""Writes a trainable SavedModel around a Keras LSTM, without the project's exporter.

Reads a noisy sine wave (``x`` [B,T,1], T of any length; the data has 20) and gives its next
value (``y`` [B,1]). Always saying 0 gives a loss of 0.5; ten epochs of batches of 32 come
below 0.1.

    python lstm.py OUT    writes OUT/model and OUT/train.npz
"""

import os
import sys

os.environ["KERAS_BACKEND"] = "tensorflow"

import keras
import numpy as np
import tensorflow as tf

X = tf.TensorSpec([None, None, 1], tf.float32, name="x")
Y = tf.TensorSpec([None, 1], tf.float32, name="y")


class NextValue(tf.Module):
    """An LSTM with its optimizer."""

    def __init__(self) -> None:
        super().__init__()
        keras.utils.set_random_seed(3)
        self.model = keras.Sequential(
            [keras.Input((None, 1)), keras.layers.LSTM(24), keras.layers.Dense(1)]
        )
        self.optimizer = keras.optimizers.Adam(0.01)
        self.optimizer.build(self.model.trainable_variables)
        # tf.Module does not look inside Keras optimizers: without this line their state is
        # missing from the SavedModel, and the first step fails.
        self.state = [v.value for v in self.model.variables + self.optimizer.variables]

    @tf.function(input_signature=[X, Y])
    def train(self, x, y):
        """One step on the mean squared error."""
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self.model(x, training=True) - y))
        weights = self.model.trainable_variables
        slopes = tape.gradient(loss, [w.value for w in weights])
        self.optimizer.apply(slopes, weights)
        return {"loss": loss}

    @tf.function(input_signature=[X, Y])
    def evaluate(self, x, y):
        """The same loss without a step, and the mean absolute error."""
        error = self.model(x, training=False) - y
        return {"loss": tf.reduce_mean(tf.square(error)), "mae": tf.reduce_mean(tf.abs(error))}

    @tf.function(input_signature=[X])
    def predict(self, x):
        """The next value."""
        return {"next": self.model(x, training=False)}


def data(samples: int = 512, length: int = 20) -> dict:
    """Sine waves of random phase and speed, with a little noise."""
    random = np.random.default_rng(3)
    phase = random.uniform(0, 2 * np.pi, (samples, 1))
    speed = random.uniform(0.2, 0.6, (samples, 1))
    wave = np.sin(phase + speed * np.arange(length + 1))
    noise = random.normal(0, 0.03, (samples, length))
    x = (wave[:, :-1] + noise)[..., None]
    return {"x": x.astype("float32"), "y": wave[:, -1:].astype("float32")}


def main(out: str) -> None:
    """Write the model and its data."""
    module = NextValue()
    signatures = {
        "train": module.train,
        "evaluate": module.evaluate,
        "predict": module.predict,
    }
    tf.saved_model.save(module, os.path.join(out, "model"), signatures=signatures)
    np.savez(os.path.join(out, "train.npz"), **data())


if __name__ == "__main__":
    main(sys.argv[1])
