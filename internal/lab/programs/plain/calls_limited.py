"""functools.lru_cache with a size, which fills at first."""
import functools
import time


@functools.lru_cache(maxsize=300)
def load(i):
    return "z" * 50_000 + str(i)


for i in range(4000):
    load(i)
    time.sleep(0.005)
