"""Blocks one after the other, and the norm at their end."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from archetype import spec
from archetype.nn.build import build_block, build_norm
from archetype.nn.cache import LayerState, State
from archetype.nn.context import ForwardContext
from archetype.nn.position_bias import RelativeBias


class Stack(nn.Module):
    """The layers of a specification, as a model or as one side of it."""

    def __init__(self, stack: spec.StackView) -> None:
        super().__init__()
        if (shared := stack.relative_bias) is not None:
            self.position_bias: nn.Module | None = RelativeBias(*shared, causal=stack.causal)
        else:
            self.position_bias = None
        self.blocks = nn.ModuleList(
            build_block(block, stack.d_model, stack.causal, index) for index, block in enumerate(stack.layers)
        )
        self.final_norm = build_norm(stack.final_norm, stack.d_model)

    def new_layers(self, batch: int, capacity: int, dtype: torch.dtype, device: torch.device) -> list[LayerState]:
        """An empty state for each layer."""
        return [block.mixer.new_state(batch, capacity, dtype, device) for block in self.blocks]  # type: ignore[union-attr, operator]

    def run(
        self, x: Float[Tensor, "B T D"], context: ForwardContext, state: State | None = None
    ) -> tuple[Float[Tensor, "B T D"], list[LayerState]]:
        """The vectors after all layers, before the final norm, and each layer's state where there is one."""
        context.position_bias = self.position_bias
        layers: list[LayerState] = []
        for index, block in enumerate(self.blocks):
            x, layer = block(x, context, state.layers[index] if state else None)
            if layer is not None:
                layers.append(layer)
        return x, layers


def last(x: Float[Tensor, "B T D"], context: ForwardContext) -> Float[Tensor, "B 1 D"]:
    """The last position of each row that is no padding."""
    if context.num_tokens is None:
        return x[:, -1:]
    rows = torch.arange(x.shape[0], device=x.device)
    return x[rows, context.num_tokens.clamp(min=1) - 1][:, None]
