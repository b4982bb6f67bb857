"""The workers of a pool keep what they made."""
import multiprocessing
import time

cache = {}


def work(i):
    cache[i] = "w" * (40_000 + i)
    time.sleep(0.004)
    return i


if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(2) as pool:
        for _ in pool.imap(work, range(8000)):
            pass
