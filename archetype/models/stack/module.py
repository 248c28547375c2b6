"""A stack of blocks with a final norm."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from archetype.models.block.module import build_block
from archetype.models.stack.early_exit import ExitGate
from archetype.models.stack.recompute import recomputed
from archetype.models.stack.spec import StackView
from archetype.nn.context import ForwardContext, Vectors
from archetype.nn.layer_state import LayerState
from archetype.nn.place import Place
from archetype.nn.registry import build_norm, module_class
from archetype.nn.residual import stream_class
from archetype.nn.state import State
from archetype.parts.norm import spec as norm_spec
from archetype.parts.norm.module import L2Norm, normalize_stream

UNIT = L2Norm(norm_spec.L2Norm(), 1)  # of vectors of any width


class Blocks(nn.ModuleList):
    """The blocks of a stack. Only layers that do not share another layer's weights have a module.

    Indexing and iteration cover all layers: a layer that shares weights returns the module of the earlier layer.
    """

    def __init__(self, modules: Sequence[nn.Module | int]) -> None:
        super().__init__()
        self.order = [index if isinstance(module, nn.Module) else module for index, module in enumerate(modules)]
        for index, module in enumerate(modules):
            if isinstance(module, nn.Module):
                # under the layer's index, which is part of the names in checkpoints
                self.add_module(str(index), module)

    def __len__(self) -> int:
        return len(self.order)

    def __iter__(self) -> Iterator[nn.Module]:
        return (self._modules[str(index)] for index in self.order)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return list(self)[index]
        return self._modules[str(self.order[index])]

    def __setitem__(self, index: int, module: nn.Module) -> None:
        self.add_module(str(self.order[index]), module)


class Stack(nn.Module):
    """The layers of a specification, as a whole model or as one side of a model.

    Attributes:
        num_recomputed: number of blocks, counted from the first, with activation checkpointing in training.
        recorded: residual streams that a pass keeps, within `recording`.
    """

    def __init__(self, stack: StackView) -> None:
        super().__init__()
        self.num_recomputed = 0
        self.recorded: dict[int, Tensor | None] = {}
        self.position_bias: nn.Module | None = None
        if (shared := stack.relative_bias) is not None:
            position, num_heads = shared
            self.position_bias = module_class(position)(position, num_heads, stack.d_model, stack.causal)
        self.blocks = Blocks(
            [
                build_block(block, place) if block.weights_of is None else block.weights_of
                for block, place in zip(stack.layers, places_of(stack), strict=True)
            ]
        )
        sources = ((index, block.reads_again) for index, block in enumerate(stack.layers))
        self.reinjected = {index: source for index, source in sources if source is not None}
        self.of_unit_length = {index for index, block in enumerate(stack.layers) if block.reinject == "unit"}
        self.residual, self.stream_class = stack.residual, stream_class(stack.residual)
        self.sources, self.passes = stack.sources, frozenset(stack.passes)
        self.exit_gate = None if stack.early_exit is None else ExitGate(stack.early_exit, stack.d_model)
        end = Place(stack.d_model, len(stack.layers), len(stack.layers))
        self.residual_entry = self.stream_class.entry(stack.residual, replace(end, layer=0))
        self.residual_exit = self.stream_class.exit(stack.residual, end)
        self.final_norm = build_norm(stack.final_norm, stack.d_model)

    def new_layers(self, batch: int, capacity: int, dtype: torch.dtype, device: torch.device) -> list[LayerState]:
        return [block.new_state(batch, capacity, dtype, device) for block in self.blocks]  # type: ignore[operator]

    def run(
        self, x: Tensor, context: ForwardContext, state: State | None = None, layers: range | None = None
    ) -> Tensor:
        """Return the vectors after all layers, (B, T, D), before the final norm. States are updated in place.

        Args:
            state: state of all layers (absent: whole sequences).
            layers: compute only these layers, with residual streams as input and output (pipeline parallelism).
        """
        context.position_bias, context.left, context.sources = self.position_bias, {}, self.sources
        context.later, context.routing = {}, {}
        stream = self.enter(x) if layers is None else x  # (B, T, D), or several streams
        read: dict[int, Tensor] = {}  # inputs of layers that later ones add to theirs
        passes: list[tuple[Tensor, Tensor]] = []  # vectors after each pass but the last, and their gates
        for index in range(len(self.blocks)) if layers is None else layers:
            if index in self.recorded:
                self.recorded[index] = stream
            if index in self.passes:
                before, stream = stream, normalize_stream(self.final_norm, stream, context)
                if self.exit_gate is not None and self.exit_gate.threshold is not None and not self.training:
                    passes.append((before, self.exit_gate(stream)))
            # later layers add this input, without what is added here
            if index in self.reinjected.values():
                read[index] = stream
            if index in self.reinjected:
                first = read[self.reinjected[index]]
                if index in self.of_unit_length:
                    first, stream = (normalize_stream(UNIT, x, context) for x in (first, stream))
                stream = stream + first
            # parts read the index: shared blocks compute several layers
            block, context.layer = self.blocks[index], index
            # without gradients or with a state nothing is saved for backward
            if state is None and index < self.num_recomputed and block.training and torch.is_grad_enabled():
                stream = recomputed(block, stream, context)
            else:
                stream = block(stream, context, None if state is None else state.layers[index])
            if index + 1 in self.recorded:
                self.recorded[index + 1] = stream
        assert not context.later, "a wiring with its own forward leaves out what the layer before computed"
        if self.exit_gate is not None and passes:
            stream = self.exit_gate.choose(passes, stream)
        return self.leave(stream) if layers is None else stream

    @contextmanager
    def recording(self, layers: Iterable[int]) -> Iterator[dict[int, Any]]:
        """Record the residual stream before each of these layers. `len(blocks)` is the stream after the last layer.

        Yields a dictionary that each pass within the block fills.
        """
        self.recorded = dict.fromkeys(layers)
        try:
            yield self.recorded
        finally:
            self.recorded = {}

    def enter(self, x: Vectors) -> Tensor:
        """Return the residual stream before the first layer from the embedded tokens, (B, T, D)."""
        if self.residual_entry is None:
            return self.stream_class.enter(self.residual, x)
        return self.residual_entry(x)

    def leave(self, stream: Tensor) -> Vectors:
        """Return the output vectors, (B, T, D), from the residual stream after the last layer."""
        if self.residual_exit is None:
            return self.stream_class.leave(self.residual, stream)
        return self.residual_exit(stream)


def places_of(stack: StackView) -> list[Place]:
    """Return the place of each layer."""
    counts = accumulate((len(block.contents) for block in stack.layers), initial=0)  # of sublayers before each layer
    return [
        Place(stack.d_model, layer, len(stack.layers), stack.causal, content, stack.residual, stack.vocab_size)
        for layer, content in zip(range(len(stack.layers)), counts, strict=False)
    ]
