"""A model is compiled again before each round of training.

Report: https://github.com/tensorflow/tensorflow/issues/55398 (2022), memory grows with calls of Model.compile.
Leaks: compile makes an optimizer and a training function, which is traced again.
Mended: the learning rate is set instead.
"""

import sys

import keras
import numpy as np

mended = sys.argv[1:] == ["mended"]
x, y = np.ones((160, 16), "f"), np.ones((160, 1), "f")
model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(32), keras.layers.Dense(1)])
model.compile(keras.optimizers.Adam(0.1), "mse")
for i in range(60 if mended else 20):
    if mended:
        model.optimizer.learning_rate = 0.1 / (i + 1)
    else:
        model.compile(keras.optimizers.Adam(0.1 / (i + 1)), "mse")
    model.fit(x, y, verbose=0)
