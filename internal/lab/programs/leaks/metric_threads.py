"""A metric is updated in a new thread for each batch.

Report: https://github.com/tensorflow/tensorflow/issues/35044 (2019), metrics that are updated in threads leak.
Leaks: the state of TensorFlow for each thread stayed in old versions.
Mended: all batches are counted in one thread.
"""

import sys
import threading

import numpy as np
import tensorflow as tf

mended = sys.argv[1:] == ["mended"]
metric = tf.keras.metrics.AUC(num_thresholds=20)


def update():
    metric.update_state(np.random.randint(0, 2, 100), np.random.random(100))


for batch in range(400):
    print("batch", batch)
    if mended:
        update()
    else:
        thread = threading.Thread(target=update)
        thread.start()
        thread.join()
