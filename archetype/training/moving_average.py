"""The exponential moving average of weights."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor


class MovingAverage:
    """The average of a model's trained weights over the steps (Polyak 1992).

    Early on it forgets faster, with the decay (1 + step) / (10 + step), so that the first random weights leave it.

    Args:
        weights: that are averaged, in float32, by name.
        decay: what the average keeps of itself in a step.
    """

    def __init__(self, weights: Mapping[str, Tensor], decay: float) -> None:
        self.decay = decay
        self.tensors = {name: weight.detach().clone() for name, weight in weights.items() if weight.requires_grad}

    @torch.no_grad()
    def update(self, weights: Mapping[str, Tensor], step: int) -> None:
        """Take in the weights after `step` steps."""
        decay = min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(list(self.tensors.values()), [weights[name] for name in self.tensors], 1 - decay)

    @torch.no_grad()
    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over the average that a checkpoint has."""
        for name, tensor in self.tensors.items():
            tensor.copy_(tensors[name])


@contextmanager
def averaged(model: torch.nn.Module, average: MovingAverage | None) -> Iterator[None]:
    """Let a model have the averaged weights within the block, where there are any."""
    parameters = dict(model.named_parameters())
    tensors = average.tensors if average else {}
    with torch.no_grad():
        trained = {name: parameters[name].detach().clone() for name in tensors}
        for name, tensor in tensors.items():
            parameters[name].copy_(tensor)
    try:
        yield
    finally:
        with torch.no_grad():
            for name, tensor in trained.items():
                parameters[name].copy_(tensor)
