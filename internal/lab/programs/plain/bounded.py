"""A deque with a size fills at first."""
import collections
import time

recent = collections.deque(maxlen=200)
for i in range(4000):
    recent.append("r" * (100_000 + i % 7))
    time.sleep(0.005)
