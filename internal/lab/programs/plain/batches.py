"""Gradient descent on batches of an array."""
import time

import numpy as np

data, w = np.random.default_rng(0).random((20_000, 100)), np.zeros(100)
for i in range(2500):
    x = data[np.random.default_rng(i).integers(0, len(data), 4096)]
    w -= 1e-4 * x.T @ (x @ w - 1)
    time.sleep(0.004)
