"""A thread keeps memory while C code waits in the main thread, and then while the program handles SIGURG itself."""
import ctypes
import signal
import threading
import time

kept, hits = [], []


def grow():
    for i in range(2000):
        kept.append(b"x" * (30_000 + i))
        time.sleep(0.004)


t = threading.Thread(target=grow)
t.start()
print(ctypes.CDLL(None).poll(None, 0, 5000))
signal.signal(signal.SIGURG, lambda number, frame: hits.append(number))
t.join()
print(hits)
