"""Blocks one after the other, and the norm at their end."""

import torch
from torch import nn

from archetype.models.block.module import build_block
from archetype.models.stack import spec
from archetype.models.stack.recompute import recomputed
from archetype.nn.cache import LayerState, State
from archetype.nn.context import ForwardContext, Vectors
from archetype.nn.registry import build_norm
from archetype.parts.position.module import RelativeBias


class Stack(nn.Module):
    """The layers of a specification, as a model or as one side of it.

    Attributes:
        num_recomputed: first blocks whose activations are not held while training, but computed again by backward.
    """

    def __init__(self, stack: spec.StackView) -> None:
        super().__init__()
        self.num_recomputed = 0
        self.position_bias: RelativeBias | None = None
        if (shared := stack.relative_bias) is not None:
            self.position_bias = RelativeBias(*shared, causal=stack.causal)
        self.blocks = nn.ModuleList(
            build_block(block, stack.d_model, stack.causal, index) for index, block in enumerate(stack.layers)
        )
        self.final_norm = build_norm(stack.final_norm, stack.d_model)

    def new_layers(self, batch: int, capacity: int, dtype: torch.dtype, device: torch.device) -> list[LayerState]:
        """An empty state for each layer."""
        return [block.mixer.new_state(batch, capacity, dtype, device) for block in self.blocks]  # type: ignore[union-attr, operator]

    def run(self, x: Vectors, context: ForwardContext, state: State | None = None) -> Vectors:
        """The vectors after all layers, before the final norm; the state's layers go on in place."""
        context.position_bias = self.position_bias
        caches = state.layers if state else [None] * len(self.blocks)
        for index, cache in zip(range(len(self.blocks)), caches, strict=True):
            x = self.run_block(index, x, context, cache)
        return x

    def run_block(self, index: int, x: Vectors, context: ForwardContext, cache: LayerState | None = None) -> Vectors:
        """The vectors after one layer."""
        block = self.blocks[index]
        if index < self.num_recomputed and cache is None and block.training and torch.is_grad_enabled():
            return recomputed(block, x, context)
        y: Vectors = block(x, context, cache)
        return y
