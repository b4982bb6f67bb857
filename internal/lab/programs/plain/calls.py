"""functools.cache keeps the result of each call."""
import functools
import time


@functools.cache
def load(i):
    return "z" * 30_000 + str(i)


for i in range(4000):
    load(i)
    time.sleep(0.004)
