"""A program closes all descriptors, opens a file, and forks. Steps of keras would write to the file."""
import os
import sys

import keras
import numpy as np

model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(np.ones((64, 4)), np.ones(64), verbose=0)
os.closerange(3, 256)
files = [open(sys.argv[1], "w") for _ in range(64)]
model.fit(np.ones((3200, 4)), np.ones(3200), epochs=2, verbose=0)
pid = os.fork()
if pid == 0:
    os._exit(0)
print(os.waitpid(pid, 0)[1], os.path.getsize(sys.argv[1]))
