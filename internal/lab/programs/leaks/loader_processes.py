"""A process that prepares data is started in each epoch.

Report: https://github.com/NVIDIA/sentiment-discovery/issues/60 (2019), each epoch starts more loading processes.
Leaks: the processes of earlier epochs wait for good.
Mended: the process is ended with its epoch.
"""

import multiprocessing
import sys

import numpy as np
import torch

mended = sys.argv[1:] == ["mended"]
model = torch.nn.Linear(64, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.01)


def load(queue):
    while True:
        queue.put(np.random.random((32, 64)).astype("f"))


for _ in range(80):
    queue = multiprocessing.Queue(2)
    loader = multiprocessing.Process(target=load, args=(queue,), daemon=True)
    loader.start()
    for _ in range(30):
        optimizer.zero_grad()
        model(torch.from_numpy(queue.get())).square().mean().backward()
        optimizer.step()
    if mended:
        loader.terminate()
        loader.join()
