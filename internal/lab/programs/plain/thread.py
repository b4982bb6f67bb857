"""A thread keeps lists in an object while the main thread waits for it."""
import threading
import time


class Store:
    def __init__(self):
        self.seen = []

    def work(self):
        for i in range(3000):
            self.seen.append([i] * 2000)
            time.sleep(0.005)


t = threading.Thread(target=Store().work)
t.start()
t.join()
