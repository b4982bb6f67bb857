"""Why does the memory jump when fit begins, before the first epoch? A model with dropout, trained for many epochs."""

import keras
import numpy as np

rng = np.random.default_rng(0)
x, y = rng.random((10_000, 200), dtype="float32"), rng.integers(0, 2, (10_000, 1)).astype("float32")
model = keras.Sequential(
    [
        keras.Input((200,)),
        keras.layers.Dense(512, activation="relu"),
        keras.layers.Dropout(0.5),
        keras.layers.Dense(256, activation="relu"),
        keras.layers.Dropout(0.5),
        keras.layers.Dense(1, activation="sigmoid"),
    ]
)
model.compile(optimizer="adam", loss="binary_crossentropy", metrics=["accuracy"])
model.fit(x, y, batch_size=64, epochs=20, validation_split=0.1, verbose=0)
