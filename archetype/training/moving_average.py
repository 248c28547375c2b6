"""Exponential moving average (EMA) of weights."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor


class MovingAverage:
    """Exponential moving average of the trainable weights over steps (Polyak 1992).

    Args:
        weights: float32 weights by name; only weights that require gradients are averaged.
        decay: weight of the old average in each update.
    """

    def __init__(self, weights: Mapping[str, Tensor], decay: float) -> None:
        self.decay = decay
        self.tensors = {name: weight.detach().clone() for name, weight in weights.items() if weight.requires_grad}

    @torch.no_grad()
    def update(self, weights: Mapping[str, Tensor], step: int) -> None:
        """Update the average with the weights after `step` steps."""
        # smaller in the first steps, so that the initial random weights fade quickly
        decay = min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(list(self.tensors.values()), [weights[name] for name in self.tensors], 1 - decay)

    @torch.no_grad()
    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        for name, tensor in self.tensors.items():
            tensor.copy_(tensors[name])


@contextmanager
def averaged(model: torch.nn.Module, average: MovingAverage | None) -> Iterator[None]:
    """Use the averaged weights, if the run has any, within the `with` block."""
    parameters = dict(model.named_parameters())
    tensors = average.tensors if average else {}
    with torch.no_grad():
        # copied in place: the optimizer holds these parameters
        trained = {name: parameters[name].detach().clone() for name in tensors}
        for name, tensor in tensors.items():
            parameters[name].copy_(tensor)
    try:
        yield
    finally:
        with torch.no_grad():
            for name, tensor in trained.items():
                parameters[name].copy_(tensor)
