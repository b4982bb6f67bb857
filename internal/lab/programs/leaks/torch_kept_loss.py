"""The validation losses of a training are kept for a plot.

Report: https://github.com/TRI-ML/packnet-sfm/pull/51 (2020), losses are kept with their graphs.
Leaks: each loss holds its graph, with all activations.
Mended: the losses are detached.
"""

import sys

import torch

mended = sys.argv[1:] == ["mended"]
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
losses = []
for _ in range(4000):
    loss = model(torch.randn(32, 64)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    validation = model(torch.randn(32, 64)).square().mean()
    losses.append(validation.detach() if mended else validation)
