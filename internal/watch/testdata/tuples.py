"""Threads build tuples from generators while a training runs. A second reference to such a tuple would be an error."""
import threading

import keras
import numpy as np

errors, stop = [], threading.Event()


def build():
    while not stop.is_set():
        try:
            tuple(i for i in range(5000))
        except SystemError as e:
            errors.append(e)


threads = [threading.Thread(target=build) for _ in range(1)]
for t in threads:
    t.start()
model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(1)])
model.compile("adam", "mse")
model.fit(np.ones((640, 16)), np.ones(640), epochs=3, verbose=0)


def saves(kept):
    """Fits with the local variables as they were, which a debugger would change."""
    before = locals()
    later = 1
    model.fit(np.ones((640, 16)), np.ones(640), epochs=1, verbose=0)
    return later, list(before)


print(saves([])[1])
stop.set()
for t in threads:
    t.join()
print(len(errors))
