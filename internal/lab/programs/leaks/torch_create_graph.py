"""A penalty on the gradient of the input needs the graph of the backward pass.

Report: https://github.com/pytorch/pytorch/issues/4661 (2018), backward(create_graph=True) may leak.
Leaks: each input and its gradient hold each other.
Mended: torch.autograd.grad returns the gradient instead of storing it.
"""

import sys

import torch

mended = sys.argv[1:] == ["mended"]
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for _ in range(3000):
    x = torch.randn(32, 64, requires_grad=True)
    loss = model(x).square().mean()
    if mended:
        (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
    else:
        loss.backward(create_graph=True)
        gradient = x.grad
    optimizer.zero_grad()
    gradient.square().sum().backward()
    optimizer.step()
