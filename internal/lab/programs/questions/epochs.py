"""Does the memory grow with each epoch of an LSTM? With the argument history, a callback keeps each batch's output."""

import sys

import keras
import numpy as np

rng = np.random.default_rng(0)
x, y = rng.random((2_000, 20, 16), dtype="float32"), rng.integers(0, 10, 2_000)
model = keras.Sequential([keras.Input((20, 16)), keras.layers.LSTM(32), keras.layers.Dense(10, activation="softmax")])
model.compile(optimizer="adam", loss="sparse_categorical_crossentropy")


class History(keras.callbacks.Callback):
    """Keeps what the model predicts after each batch."""

    def __init__(self):
        super().__init__()
        self.outputs = []

    def on_train_batch_end(self, batch, logs=None):
        self.outputs.append(self.model(x[:100], training=False))


model.fit(x, y, epochs=30, verbose=0, callbacks=[History()] if "history" in sys.argv else [])
