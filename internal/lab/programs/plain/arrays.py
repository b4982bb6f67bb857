"""A function keeps the weights of each round in a local variable."""
import time

import numpy as np


def train():
    history, w = [], np.zeros(1000)
    for i in range(3000):
        w = w + np.random.default_rng(i).normal(size=1000)
        history.append(w)
        time.sleep(0.004)
    return history


train()
