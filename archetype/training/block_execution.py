"""How blocks are computed while a model learns: their activations twice instead of held, or as compiled programs."""

import logging
import os
import shutil
from typing import Literal

from torch import nn

from archetype.errors import SpecError
from archetype.models.stack.module import Stack


def stacks_of(model: nn.Module) -> list[Stack]:
    """All stacks of blocks, in the order of the forward pass."""
    return [module for module in model.modules() if isinstance(module, Stack)]


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The blocks of all stacks, in the order of the forward pass."""
    return [block for stack in stacks_of(model) for block in stack.blocks]


def recompute_blocks(model: nn.Module, recompute: Literal["none", "blocks"] | int) -> None:
    """Let the backward pass compute activations of blocks again, from the input of each, to the bit (Chen 2016).

    Args:
        model: whose stacks are told.
        recompute: none of their blocks, all `blocks`, or so many, the first ones.

    Raises:
        SpecError: there are not so many.
    """
    left = number_recomputed(recompute, len(blocks_of(model)))
    for stack in stacks_of(model):
        stack.num_recomputed = min(left, len(stack.blocks))
        left -= stack.num_recomputed


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
    # torch would say of a machine with CUDA's tools that it has no GPU
    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)
    for block in dict.fromkeys(blocks_of(model)):  # one that several layers share is one program
        block.compile()
