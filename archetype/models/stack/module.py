"""Blocks one after the other, and the norm at their end."""

from collections.abc import Iterator

import torch
from torch import nn

from archetype.models.block.module import build_block
from archetype.models.stack import spec
from archetype.nn.cache import LayerState, State
from archetype.nn.context import ForwardContext, Vectors
from archetype.nn.registry import build_norm
from archetype.parts.position.module import RelativeBias


class Stack(nn.Module):
    """The layers of a specification, as a model or as one side of it."""

    def __init__(self, stack: spec.StackView) -> None:
        super().__init__()
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

    def layers(self, state: State | None) -> Iterator[tuple[nn.Module, LayerState | None]]:
        """Each block with its cache, where there is a state."""
        return zip(self.blocks, state.layers if state else [None] * len(self.blocks), strict=True)

    def run(self, x: Vectors, context: ForwardContext, state: State | None = None) -> Vectors:
        """The vectors after all layers, before the final norm; the state's layers go on in place."""
        context.position_bias = self.position_bias
        for block, cache in self.layers(state):
            x = block(x, context, cache)
        return x
