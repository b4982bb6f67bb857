"""The items of a dataset are cached by functools.lru_cache.

Report: https://github.com/MoonshotAI/Kimi-Audio/issues/117 (2025), lru_cache(maxsize=None) keeps all training data.
Leaks: the cache has no limit.
Mended: the cache has a limit.
"""

import functools
import sys

import torch

mended = sys.argv[1:] == ["mended"]


class Items(torch.utils.data.Dataset):
    def __len__(self):
        return 100_000

    @functools.lru_cache(maxsize=1000 if mended else None)
    def __getitem__(self, i):
        return torch.randn(512)


model = torch.nn.Linear(512, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.001)
for _, x in zip(range(3000), torch.utils.data.DataLoader(Items(), batch_size=16, shuffle=True)):
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
