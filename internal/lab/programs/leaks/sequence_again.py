"""Model.fit gets a new Sequence in each round.

Report: https://github.com/keras-team/keras/issues/16947 (2022), memory runs away with a Sequence in a loop.
Leaks: fit makes a dataset from a generator, and TensorFlow keeps it with its Sequence and the data.
Mended: one Sequence is used again.
"""

import sys

import keras
import numpy as np

mended = sys.argv[1:] == ["mended"]


class Batches(keras.utils.PyDataset):
    def __init__(self):
        super().__init__()
        self.data = np.random.random((4000, 64)).astype("f")

    def __len__(self):
        return 5

    def __getitem__(self, i):
        x = self.data[32 * i : 32 * i + 32]
        return x, x[:, :1]


model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(16), keras.layers.Dense(1)])
model.compile("adam", "mse")
batches = Batches()
for _ in range(80):
    model.fit(batches if mended else Batches(), verbose=0)
