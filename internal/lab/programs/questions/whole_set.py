"""Does fit crash because all of the data is loaded? Trains on a file by one of three ways: memory, generator, dataset."""

import os
import sys
import tempfile

import keras
import numpy as np
import tensorflow as tf

ROWS, BATCH = 1_000_000, 256
way = sys.argv[1] if len(sys.argv) > 1 else "memory"
path = os.path.join(tempfile.gettempdir(), "whole_set.npy")
if not os.path.exists(path):
    np.save(path, np.random.default_rng(0).random((ROWS, 100), dtype="float32"))
rows = np.load(path, mmap_mode=None if way == "memory" else "r")


def batches():
    while True:
        for at in range(0, ROWS, BATCH):
            x = np.array(rows[at : at + BATCH])
            yield x, x.sum(axis=1, keepdims=True)


model = keras.Sequential([keras.Input((100,)), keras.layers.Dense(64, activation="relu"), keras.layers.Dense(1)])
model.compile(optimizer="adam", loss="mse")
if way == "memory":
    model.fit(rows, rows.sum(axis=1), batch_size=BATCH, epochs=6, verbose=0)
elif way == "generator":
    model.fit(batches(), steps_per_epoch=ROWS // BATCH, epochs=6, verbose=0)
else:
    signature = (tf.TensorSpec((None, 100)), tf.TensorSpec((None, 1)))
    data = tf.data.Dataset.from_generator(batches, output_signature=signature).prefetch(tf.data.AUTOTUNE)
    model.fit(data, steps_per_epoch=ROWS // BATCH, epochs=6, verbose=0)
