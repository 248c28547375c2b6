"""Weights in which nothing is hidden, and how far two results are apart."""

from typing import TypeVar

import torch
from torch import Tensor, nn

M = TypeVar("M", bound=nn.Module)


@torch.no_grad()
def randomize(model: M, seed: int = 0) -> M:
    """Draw every tensor anew, so that no norm stays 1 and no bias 0, and a lost or swapped tensor shows.

    Matrices are N(0, 1 / (2 inputs)), biases N(0, 0.3), norms N(1, 0.3). Larger matrices make stacks without norms
    explode, and float32 with them. Running variances are drawn from 0.5 to 1.5, running means as biases.

    Returns:
        The model, ready to evaluate.
    """
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            parameter.normal_(0.0, (2 * parameter.shape[-1]) ** -0.5, generator=generator)
        else:
            parameter.normal_(0.0 if "bias" in name.rpartition(".")[2] else 1.0, 0.3, generator=generator)
    for name, buffer in model.named_buffers():
        if not buffer.is_floating_point():
            continue  # numbers of positions
        if name.endswith("running_var"):
            buffer.uniform_(0.5, 1.5, generator=generator)
        else:
            buffer.normal_(0.0, 0.3, generator=generator)
    return model.eval()


def distance(ours: Tensor, theirs: Tensor) -> float:
    """The largest difference, as a share of the largest magnitude; where nothing but zeros is expected, as it is."""
    assert ours.shape == theirs.shape
    difference, size = (ours.double() - theirs.double()).abs().max().item(), theirs.double().abs().max().item()
    return difference / (size or 1.0)
