"""The losses of an epoch are added up.

Report: https://github.com/MultimediaTechLab/YOLO/pull/83 (2024), each batch leaks a little memory.
Leaks: the sum is a tensor, and its graph holds the graph of each loss.
Mended: numbers are added.
"""

import sys

import torch

mended = sys.argv[1:] == ["mended"]
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
total = 0
for _ in range(6000):
    loss = model(torch.randn(32, 64)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    total += loss.item() if mended else loss
