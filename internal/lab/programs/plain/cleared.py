"""A list that is emptied whenever it has 300 items."""
import time

pending = []
for i in range(4000):
    pending.append("p" * (5_000 + i % 7))
    if len(pending) == 300:
        pending.clear()
    time.sleep(0.005)
