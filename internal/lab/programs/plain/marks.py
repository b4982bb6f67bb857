"""A program that prints a line for each item keeps the item."""
import time

log = []
for i in range(3000):
    log.append(f"line {i}\n" * 2000)
    print("item", i, flush=True)
    time.sleep(0.005)
