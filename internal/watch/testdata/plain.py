"""Programs without TensorFlow and without steps, whose memory grows until they end."""
import functools
import multiprocessing
import sys
import threading
import time

ROUNDS = 2500


class Store:
    def __init__(self):
        self.seen = []

    def work(self):
        for i in range(ROUNDS):
            self.seen.append(b"x" * (30_000 + i))
            time.sleep(0.004)


@functools.cache
def load(i):
    return str(i) * 8000


cache = {}


def worker(i):
    cache[i] = b"x" * (40_000 + i)
    time.sleep(0.004)


def thread():
    t = threading.Thread(target=Store().work)
    t.start()
    t.join()


def calls():
    for i in range(ROUNDS):
        load(i)
        time.sleep(0.004)


def workers():
    with multiprocessing.get_context("fork").Pool(2) as pool:
        pool.map(worker, range(2 * ROUNDS), 1)


{"thread": thread, "calls": calls, "workers": workers}[sys.argv[1]]()
