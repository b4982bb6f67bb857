"""The losses of a training are added up as tensors, whose graphs stay."""

import time

import torch

total = torch.Tensor()
for _ in range(2000):
    loss = torch.Tensor(torch.Node())
    torch.optimizer.step()
    total = total + loss
    time.sleep(0.002)
