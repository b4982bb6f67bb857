"""A program without steps grows by time. It prints a line in each round."""
import sys
import time

kept = []
began = time.monotonic()
for i in range(int(sys.argv[1])):
    kept.append(b"x" * 200_000)
    print("round", i, flush=True)
    # A busy machine delays rounds, and the next ones make up for it.
    time.sleep(max(0, began + (i + 1) * 0.01 - time.monotonic()))
