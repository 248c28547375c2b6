"""Copies of the buffers that a forward pass may change, such as running means and variances."""

from torch import Tensor, nn

Copies = list[tuple[Tensor, Tensor]]  # each buffer with a copy of its values


def copy_buffers(module: nn.Module) -> Copies:
    """Copy the buffers of a module and its submodules, except the `constant_buffers` that a submodule's class names."""
    # a model without running statistics has nothing to copy
    return [
        (buffer, buffer.clone())
        for part in module.modules()
        for name, buffer in part.named_buffers(recurse=False)
        if name not in getattr(part, "constant_buffers", ())
    ]


def restore_buffers(copies: Copies) -> None:
    for buffer, before in copies:
        buffer.copy_(before)
