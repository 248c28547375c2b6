"""Random weights that reveal swapped or missing tensors, and the relative distance of two tensors."""

from typing import TypeVar

import torch
from torch import Tensor, nn

M = TypeVar("M", bound=nn.Module)


@torch.no_grad()
def randomize(model: M, seed: int = 0) -> M:
    """Redraw every tensor, so that no norm stays 1 and no bias 0 and a missing or swapped tensor changes the output.

    Matrices are N(0, 1 / (2 inputs)), biases N(0, 0.3), norms N(1, 0.3). Larger matrices overflow float32 in stacks
    without norms. Running variances are uniform on [0.5, 1.5], running means drawn like biases.

    Returns:
        The model, in evaluation mode.
    """
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            parameter.normal_(0.0, (2 * parameter.shape[-1]) ** -0.5, generator=generator)
        else:
            parameter.normal_(0.0 if "bias" in name.rpartition(".")[2] else 1.0, 0.3, generator=generator)
    for name, buffer in model.named_buffers():
        if not buffer.is_floating_point():  # position ids, for example
            continue
        if name.endswith("running_var"):
            buffer.uniform_(0.5, 1.5, generator=generator)
        else:
            buffer.normal_(0.0, 0.3, generator=generator)
    return model.eval()


def distance(ours: Tensor, theirs: Tensor) -> float:
    """Return max |ours - theirs| / max |theirs|; the absolute difference if `theirs` is all zeros."""
    assert ours.shape == theirs.shape
    difference, size = (ours.double() - theirs.double()).abs().max().item(), theirs.double().abs().max().item()
    return difference / (size or 1.0)
