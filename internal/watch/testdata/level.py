"""A training without a fault. It prints a hash of its weights."""
import hashlib

import keras
import numpy as np

keras.utils.set_random_seed(1)
model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(1)])
model.compile("adam", "mse")
x = np.random.default_rng(0).random((32 * 100, 16), "f")
model.fit(x, x.sum(1), epochs=20, verbose=0, validation_split=0.1)
print(hashlib.sha256(b"".join(w.tobytes() for w in model.get_weights())).hexdigest())
