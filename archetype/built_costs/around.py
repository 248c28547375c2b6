"""Costs of wirings and residual wirings without a registered cost, measured on their modules."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from archetype.built_costs import counting
from archetype.cost.formula import ZERO, Formula, constant
from archetype.cost.registry import NormCost, ResidualCost, WiringCost
from archetype.cost.work import TrainingWork
from archetype.models.block.module import build_block
from archetype.nn.context import EncoderOutput, ForwardContext
from archetype.nn.place import Place
from archetype.nn.registry import module_class
from archetype.nn.residual import stream_class
from archetype.roles.residual import Residual
from archetype.roles.wiring import Wiring


class Passing(nn.Module):
    """Placeholder for a sublayer, which returns its input."""

    def forward(self, x: Tensor, context: ForwardContext, state: object = None) -> Tensor:
        return x

    def project(self, source: Tensor) -> None:
        pass  # called on cross-attention, whose keys and values are not needed


class MeasuredWiringCost(WiringCost):
    """Cost of a wiring, from its norms and everything else that its block has outside the sublayers."""

    def __init__(self, part: Wiring, d: Formula) -> None:
        super().__init__(part, d)
        self.names = getattr(module_class(part), "norms", ()) if hasattr(part, "norm") else ()
        self.empty_block = _without_contents(counting.counted_layer())

    def parameters(self, content: str) -> tuple[Formula, Formula]:
        # of the first norm, and of all others
        counts = [norm.parameters() for norm in self._norms(content)]
        return sum(counts[:1], ZERO), sum(counts[1:], ZERO)

    def own_parameters(self) -> Formula:
        # everything that the block has besides its contents and their norms
        if (block := self.empty_block) is None:
            return ZERO
        endings = tuple(f"_{name}" for name in self.names)
        norms = [counting.total(child).value for name, child in block.named_children() if name.endswith(endings)]
        return constant(counting.total(block).value - sum(norms))

    def flops(self, tokens: Formula) -> Formula:
        # the products of one pass, except those of the contents
        if (block := self.empty_block) is None:
            return ZERO
        x = torch.empty(1, tokens.value, self.d.value, device=counting.META)
        context = replace(counting.context_of(x), encoder_output=EncoderOutput(x, None))
        return counting.flops_of(lambda: block(x, context, None), self.part)

    def saved_activations(self, contents: Sequence[str], work: TrainingWork) -> int:
        return sum(norm.saved_activations(work.tokens) for name in contents for norm in self._norms(name))

    def _norms(self, content: str) -> list[NormCost]:
        return [NormCost.of(self.part.norm_of(content, name), self.d) for name in self.names]


class MeasuredResidualCost(ResidualCost):
    """Cost of a residual wiring, from the module of each sublayer."""

    def __init__(self, part: Residual, d: Formula) -> None:
        super().__init__(part, d)
        self.module = counting.on_meta(lambda: module_class(part)(part, counting.place_for(d)))
        vectors = torch.empty(1, 1, d.value, device=counting.META)
        entry = self._end(stream_class(part).entry, 0)
        stream = stream_class(part).enter(part, vectors) if entry is None else entry(vectors)
        self.read = stream.shape[2:]  # of each position
        self.streams = self._pass(1, 1).numel() // d.value

    def parameters(self) -> Formula:
        return counting.total(self.module)

    def flops(self, tokens: Formula) -> Formula:
        return counting.flops_of(lambda: self._pass(1, tokens.value), self.part)

    def saved_activations(self, work: TrainingWork) -> int:
        return counting.saved_by(lambda: self._pass(work.rows, work.length), self.module, work)

    def entry(self) -> "MeasuredEndCost | None":
        module = self._end(stream_class(self.part).entry, 0)
        return None if module is None else MeasuredEndCost(self, module, (self.d.value,))

    def exit(self, num_layers: int) -> "MeasuredEndCost | None":
        module = self._end(stream_class(self.part).exit, num_layers)
        return None if module is None else MeasuredEndCost(self, module, self.read)

    def _end(self, build: Callable[[Residual, Place], nn.Module | None], layer: int) -> nn.Module | None:
        with counting.META:
            return build(self.part, replace(counting.place_for(self.d), layer=layer))

    def _pass(self, batch: int, length: int) -> Tensor:
        module: Any = self.module
        stream = torch.empty(batch, length, *self.read, device=counting.META)
        context = counting.context_of(stream.flatten(2))
        stream = module.predict(stream, context)
        written: Tensor = module.write(stream, module.read(stream, context), context)
        return written


class MeasuredEndCost(MeasuredResidualCost):
    """Cost of the weights between a stack's input or output vectors and its residual stream."""

    def __init__(self, residual: MeasuredResidualCost, module: nn.Module, read: Sequence[int]) -> None:
        ResidualCost.__init__(self, residual.part, residual.d)
        self.module, self.read = module, read

    def _pass(self, batch: int, length: int) -> Tensor:
        y: Tensor = self.module(torch.empty(batch, length, *self.read, device=counting.META))
        return y


def _without_contents(layer: counting.Layer | None) -> nn.Module | None:
    # the layer's block with contents that return zeros; None outside a layer
    if layer is None:
        return None
    plain = layer.block.replace(output_scale=False)  # which BlockCost counts
    block = counting.on_meta(lambda: build_block(plain, replace(layer.place, residual=None)))
    for name in layer.block.contents:
        setattr(block, name, Passing())
    return block
