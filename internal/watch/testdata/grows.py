"""A program without steps grows by time. It prints a line in each round."""
import sys
import time

kept = []
for i in range(int(sys.argv[1])):
    kept.append(b"x" * 200_000)
    print("round", i, flush=True)
    time.sleep(0.01)
