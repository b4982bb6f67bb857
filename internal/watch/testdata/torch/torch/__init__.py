"""What the probe needs of PyTorch: tensors with a graph, and steps of an optimizer."""


class Node:
    def __init__(self, *before):
        self.next_functions = tuple((n, 0) for n in before)
        self.held = bytes(4000)


class Tensor:
    def __init__(self, grad_fn=None):
        self.grad_fn = grad_fn

    def __add__(self, other):
        return Tensor(Node(self.grad_fn, other.grad_fn))

    def numel(self):
        return 1

    def element_size(self):
        return 4


from torch.optim import optimizer  # noqa: E402, F401
