"""Activation checkpointing: the backward pass recomputes a block's activations from its input (Chen 2016)."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from archetype.nn.buffers import copy_buffers, restore_buffers
from archetype.nn.context import ForwardContext, Vectors


def recomputed(block: nn.Module, x: Vectors, context: ForwardContext) -> Vectors:
    """Return the output of a block, saving only its input for backward. Recomputation is bit-exact."""
    # copies: the context of the pass changes until backward
    shared, left, layer, is_first = dict(context.shared), dict(context.left), context.layer, True
    later, routing = dict(context.later), dict(context.routing)

    def run(x: Vectors) -> Vectors:
        nonlocal is_first
        y: Tensor
        if is_first:
            is_first = False
            y = block(x, context, None)
            return y
        with _buffers_unchanged(block):  # such as running statistics, which already include this batch
            # losses were added by the first run
            then = replace(
                context,
                shared=dict(shared),
                layer=layer,
                left=dict(left),
                later=dict(later),
                routing=dict(routing),
                aux_losses=[],
            )
            y = block(x, then, None)
            return y

    return checkpoint(run, x, use_reentrant=False)


@contextmanager
def _buffers_unchanged(block: nn.Module) -> Iterator[None]:
    copies = copy_buffers(block)
    try:
        yield
    finally:  # recomputation stops by an exception once backward has all it needs
        restore_buffers(copies)
