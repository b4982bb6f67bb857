"""A model is built again for each round."""
import keras
import numpy as np

x, y = np.ones((320, 16)), np.ones(320)
for _ in range(25):
    model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    model.fit(x, y, epochs=1, verbose=0)
