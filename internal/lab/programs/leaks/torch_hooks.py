"""A hook that stores activations is registered for each evaluation.

Report: https://github.com/NeuroBench/neurobench/issues/184 (2024), hooks of a benchmark are not removed.
Leaks: the hooks, and what they stored, stay with the model.
Mended: the hook is removed after its evaluation.
"""

import sys

import torch

mended = sys.argv[1:] == ["mended"]
model = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.Tanh(), torch.nn.Linear(512, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.01)


class Recorder:
    def __call__(self, module, inputs, output):
        self.output = output.detach().clone()


for _ in range(3000 if mended else 1000):
    optimizer.zero_grad()
    model(torch.randn(32, 64)).square().mean().backward()
    optimizer.step()
    handle = model[0].register_forward_hook(Recorder())
    with torch.no_grad():
        model(torch.randn(32, 64))
    if mended:
        handle.remove()
