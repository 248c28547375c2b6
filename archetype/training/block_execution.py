"""Activation recomputation and compilation of blocks in training."""

import logging
import os
import shutil
from typing import Literal

from torch import nn

from archetype.errors import SpecError
from archetype.models.stack.module import Stack


def stacks_of(model: nn.Module) -> list[Stack]:
    return [module for module in model.modules() if isinstance(module, Stack)]


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """Return the blocks of all stacks, in the order of the forward pass."""
    return [block for stack in stacks_of(model) for block in stack.blocks]


def recompute_blocks(model: nn.Module, recompute: Literal["none", "blocks"] | int) -> None:
    """Recompute the activations of blocks in the backward pass, bit for bit, from the input of each block (Chen 2016).

    Args:
        recompute: "none", "blocks" for all blocks, or the number of first blocks.
    """
    # the first blocks: the backward pass reaches them last, when the others have freed their activations
    left = number_recomputed(recompute, len(blocks_of(model)))
    for stack in stacks_of(model):
        stack.num_recomputed = min(left, len(stack.blocks))
        left -= stack.num_recomputed


def number_recomputed(recompute: Literal["none", "blocks"] | int, num_blocks: int) -> int:
    """Return the number of blocks to recompute. Raise a SpecError if the model has fewer blocks."""
    if isinstance(recompute, str):
        return num_blocks if recompute == "blocks" else 0
    if recompute > num_blocks:
        raise SpecError("recompute", f"{recompute} is more than the {num_blocks} blocks", "use blocks for all of them")
    return recompute


def compile_blocks(model: nn.Module) -> None:
    """Compile each block with torch.compile on its first call.

    Raises:
        SpecError: there is no C++ compiler, which torch.compile needs on a CPU.
    """
    compiler = os.environ.get("CXX", "g++")
    if next(model.parameters()).device.type in ("cpu", "meta") and shutil.which(compiler) is None:
        raise SpecError(
            "compile", f"{compiler} is not installed", "install it, name another compiler in CXX, or do not compile"
        )
    # where the CUDA toolkit is installed, torch would only report a missing GPU
    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)
    for block in dict.fromkeys(blocks_of(model)):  # a block shared by several layers is compiled once
        block.compile()
