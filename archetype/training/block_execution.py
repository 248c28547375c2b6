"""How blocks are computed while a model learns: their activations twice instead of held, or as compiled programs.

Both replace `forward` of the blocks that a model has, so that no part needs to know of it.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from archetype.errors import SpecError
from archetype.models.stack.module import Stack
from archetype.nn.cache import LayerState
from archetype.nn.context import ForwardContext, Vectors

BlockForward = Callable[[Vectors, ForwardContext, LayerState | None], Vectors]


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The blocks of all stacks, in the order of the forward pass."""
    return [block for module in model.modules() if isinstance(module, Stack) for block in module.blocks]


def recompute_blocks(model: nn.Module, recompute: Literal["none", "blocks"] | int) -> None:
    """Let the backward pass compute activations of blocks again, from the input of each, to the bit (Chen 2016).

    Args:
        model: whose blocks' `forward` is replaced.
        recompute: none of them, all `blocks`, or so many, the first ones.

    Raises:
        SpecError: there are not so many.
    """
    blocks = blocks_of(model)
    for block in blocks[: number_recomputed(recompute, len(blocks))]:
        block.forward = _recomputed(block, block.forward)


def number_recomputed(recompute: Literal["none", "blocks"] | int, num_blocks: int) -> int:
    """How many of a model's blocks a recipe's `recompute` means; errors as of `recompute_blocks`."""
    if isinstance(recompute, str):
        return num_blocks if recompute == "blocks" else 0
    if recompute > num_blocks:
        raise SpecError("recompute", f"{recompute} is more than the {num_blocks} blocks", "use blocks for all of them")
    return recompute


def compile_blocks(model: nn.Module) -> None:
    """Let torch.compile make a program of each block when it is first computed.

    Raises:
        SpecError: there is no C++ compiler, which programs for a processor need.
    """
    compiler = os.environ.get("CXX", "g++")
    if next(model.parameters()).device.type in ("cpu", "meta") and shutil.which(compiler) is None:
        raise SpecError("compile", f"{compiler} is not installed", "install it, name another in CXX, or do not compile")
    for block in blocks_of(model):
        block.forward = torch.compile(block.forward)


def _recomputed(block: nn.Module, compute: BlockForward) -> BlockForward:
    def forward(x: Vectors, context: ForwardContext, cache: LayerState | None = None) -> Vectors:
        if cache is not None or not (block.training and torch.is_grad_enabled()):
            return compute(x, context, cache)
        shared, is_first = dict(context.shared), True

        def run(x: Vectors) -> Vectors:
            nonlocal is_first
            if is_first:
                is_first = False
                return compute(x, context, None)
            with _buffers_unchanged(block):  # such as a norm's running statistics, which have counted this batch
                return compute(x, replace(context, shared=dict(shared), aux_losses=[]), None)

        output: Tensor = checkpoint(run, x, use_reentrant=False)
        return output

    return forward


@contextmanager
def _buffers_unchanged(block: nn.Module) -> Iterator[None]:
    buffers = [(buffer, buffer.clone()) for buffer in block.buffers()]
    try:
        yield
    finally:  # the second computation ends by an exception as soon as it has all that backward needs
        for buffer, before in buffers:
            buffer.copy_(before)
