"""Blocks: each wiring places norms and residual connections around mixer, cross-attention and feed-forward part."""

import math
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from archetype.errors import SpecError
from archetype.models.block import spec
from archetype.nn.autocast import cast_for_products
from archetype.nn.context import ForwardContext, Vectors
from archetype.nn.dropout import dropout
from archetype.nn.layer_state import LayerState
from archetype.nn.place import Place
from archetype.nn.registry import build_feedforward, build_mixer, build_norm, module_class, module_for
from archetype.nn.residual import ResidualStream, stream_class
from archetype.nn.state import BlockState
from archetype.parts.attention.cross import CrossAttention
from archetype.parts.norm.module import normalize_stream
from archetype.roles.residual import ResidualSum
from archetype.weights.linear import Linear


class Block(nn.Module):
    """The sublayers of a block and their norms. Each wiring is a subclass with `sublayers`, or with a `forward`.

    Attributes:
        contents: names of the block's sublayers, in the order of computation.
    """

    norms: ClassVar[tuple[str, ...]] = ("norm",)  # `mixer_norm`, `cross_norm`, `feedforward_norm`, ...
    # suffix of the modules whose outputs are added to the residual stream: "" for contents; None: there is no sum
    added: ClassVar[str | None] = None
    mixer: nn.Module | None
    cross: CrossAttention | None
    feedforward: nn.Module | None

    def __init__(self, block: spec.Block, place: Place) -> None:
        super().__init__()
        attention = block.cross_attention
        contents = {
            "mixer": None if block.mixer.is_absent else build_mixer(block.mixer, place),
            "cross": None if attention is None else CrossAttention(attention, place.d_model),
            "feedforward": build_feedforward(block.feedforward, place),
        }
        self.contents = tuple(name for name, content in contents.items() if content is not None)
        for name, content in contents.items():
            if content is not None:
                for norm in self.norms:
                    self.add_module(f"{name}_{norm}", build_norm(block.wiring.norm_of(name, norm), place.d_model))
            setattr(self, name, content)
        residual, reads_all = place.residual or ResidualSum(), block.feedforward.reads_streams > 0
        self.adds_up = residual.is_sum
        # contents that read the stream as it is, and are added to it; each other one has a module that does both
        self.direct = self.contents if residual.is_sum or residual.per_block else ("feedforward",) * reads_all
        for index, name in enumerate(self.contents):
            if name not in self.direct:
                of_content = replace(place, content=place.content + index, sublayer=index)
                self.add_module(f"{name}_residual", stream_class(residual)(residual, of_content))
        self.residual: ResidualStream | None = None  # of streams that the block reads and writes once
        if residual.per_block and not reads_all:
            self.residual = stream_class(residual)(residual, place)
        self.dropout = block.dropout
        self.residual_scale = block.residual_scale
        self.output_scale = nn.Parameter(torch.empty(1)) if block.output_scale else None
        if block.output_scale and type(self).forward is not Block.forward:
            cause = f"{type(self).__name__} has its own forward, which would skip the scale"
            raise SpecError("output_scale", cause, "define `sublayers` in the wiring's module instead")

    def forward(self, x: Tensor, context: ForwardContext, state: LayerState | None = None) -> Tensor:
        # of the layer before; a block that reads the layer's index would be compiled once for each layer
        late = context.later.pop(context.layer - 1, None) if context.later else None
        if self.residual is None:
            y = self.sublayers(x, context, state)  # (B, T, D), or several streams
        else:
            x = self.residual.predict(x, context)  # (B, T, n, D)
            y = self.sublayers(self.residual.read(x, context), context, state)
            y = self.residual.write(x, y, context)
        if context.later and (delayed := context.later.get(context.layer)) is not None:
            context.later[context.layer] = self.branch(delayed)
        if late is not None:
            y = y + late.to(y.dtype)
        return y if self.output_scale is None else y * self.output_scale

    def sublayers(self, x: Tensor, context: ForwardContext, state: LayerState | None = None) -> Tensor:
        """Return the residual stream after all sublayers of the block."""
        raise NotImplementedError

    def new_state(self, batch: int, capacity: int, dtype: torch.dtype, device: torch.device) -> LayerState:
        """Return the state before the first token: the mixer's state, or a `BlockState` of all sublayers with a state.

        Raises:
            SpecError: the mixer has no state, such as one of an extension that only reads whole sequences.
        """
        if self.mixer is not None and not hasattr(self.mixer, "new_state"):
            cause = "keeps no state, so the model cannot generate token by token"
            raise SpecError(type(self.mixer).__name__, cause, "implement new_state, as in docs/adding_a_part.md")
        # cross-attention has no state before its source is encoded; `with_source` adds it
        states: list[LayerState | None] = []
        for content in (self.mixer, self.feedforward):
            new_state = getattr(content, "new_state", None)
            states.append(new_state and new_state(batch, capacity, dtype, device))
        mixer, feedforward = states
        return mixer if mixer is not None and feedforward is None else BlockState(mixer, feedforward=feedforward)

    def norm(self, content: str) -> nn.Module:
        return getattr(self, f"{content}_norm")

    def content(self, name: str) -> nn.Module:
        return getattr(self, name)  # called with (B, T, D), the context and `own_state`

    def own_state(self, content: str, context: ForwardContext, state: LayerState | None) -> LayerState | None:
        """Return a sublayer's state. Without a state, cross-attention projects the encoder's output."""
        if isinstance(state, BlockState):
            content_state: LayerState | None = getattr(state, content)
        else:
            content_state = state if content == "mixer" else None
        if content == "cross" and content_state is None:
            assert self.cross is not None and context.encoder_output is not None, (
                "cross-attention needs an encoder's output"
            )
            content_state = self.cross.project(context.encoder_output, context)
        return content_state

    def branch(self, y: Vectors) -> Vectors:
        """Apply dropout and the residual scale to a sublayer's output before it is added to the stream."""
        z = dropout(y, self.dropout, self.training)
        return z if self.residual_scale == 1.0 else z * self.residual_scale

    def read(self, content: str, x: Tensor, context: ForwardContext) -> Vectors:
        """Return the vectors that a sublayer reads from the residual stream, (B, T, D)."""
        return x if content in self.direct else self._residual(content).read(x, context)

    def write(self, content: str, x: Tensor, y: Vectors, context: ForwardContext) -> Tensor:
        """Return the residual stream after adding a sublayer's output `y` (B, T, D), with dropout and scale."""
        z = self.branch(y)
        if content in self.direct:
            return x + z.to(x.dtype)
        return self._residual(content).write(x, z, context)

    def _residual(self, content: str) -> ResidualStream:
        return getattr(self, f"{content}_residual")


@module_for(spec.PreNorm)
class PreNormBlock(Block):
    """x + F(norm(x)) (Xiong 2020)."""

    added = ""

    def sublayers(self, x: Tensor, context: ForwardContext, state: LayerState | None = None) -> Tensor:
        for content in self.contents:
            h = self.norm(content)(self.read(content, x, context), context)  # (B, T, D)
            y = self.content(content)(h, context, self.own_state(content, context, state))
            x = self.write(content, x, y, context)
        return x


@module_for(spec.PostNorm)
class PostNormBlock(Block):
    """norm(x + F(x)) (Vaswani 2017)."""

    def sublayers(self, x: Vectors, context: ForwardContext, state: LayerState | None = None) -> Vectors:
        for content in self.contents:
            # (B, T, D); the stream stays in float32 under autocast
            y = self.content(content)(cast_for_products(x), context, self.own_state(content, context, state))
            x = normalize_stream(self.norm(content), x + self.branch(y), context)
        return x


@module_for(spec.SandwichNorm)
class SandwichBlock(Block):
    """x + norm'(F(norm(x))) (Ding 2021; Gemma 2)."""

    norms = ("norm", "post_norm")
    added: ClassVar[str | None] = "_post_norm"

    def sublayers(self, x: Tensor, context: ForwardContext, state: LayerState | None = None) -> Tensor:
        for content in self.contents:
            _, x = self.sandwich(content, x, context, state)
        return x

    def sandwich(
        self, content: str, x: Tensor, context: ForwardContext, state: LayerState | None
    ) -> tuple[Vectors, Tensor]:
        """Return h = norm(x), and x + norm'(F(h))."""
        h = self.norm(content)(self.read(content, x, context), context)  # (B, T, D)
        y = self.content(content)(h, context, self.own_state(content, context, state))
        y = getattr(self, f"{content}_post_norm")(y, context)
        return h, self.write(content, x, y, context)


class LowRankPath(nn.Module):
    """norm''(W_r W_l h) (Menghani 2024)."""

    def __init__(self, wiring: spec.Laurel, d_model: int) -> None:
        super().__init__()
        self.left, self.right = Linear(d_model, wiring.rank, bias=False), Linear(wiring.rank, d_model, bias=False)
        self.norm = build_norm(wiring.norm if wiring.path_norm is None else wiring.path_norm, d_model)

    def forward(self, h: Vectors, context: ForwardContext) -> Vectors:
        return self.norm(self.right(self.left(h)), context)


@module_for(spec.Laurel)
class LaurelBlock(SandwichBlock):
    """(x + norm'(mixer(h)) + h + path(h)) / sqrt(2) with h = norm(x), then a sandwich around the other sublayers."""

    added = None

    def __init__(self, block: spec.Block, place: Place) -> None:
        super().__init__(block, place)
        assert isinstance(block.wiring, spec.Laurel)
        self.mixer_path = LowRankPath(block.wiring, place.d_model)

    def sublayers(self, x: Tensor, context: ForwardContext, state: LayerState | None = None) -> Tensor:
        for content in self.contents:
            h, x = self.sandwich(content, x, context, state)
            if content == "mixer":
                x = (x + (h + self.mixer_path(h, context)).to(x.dtype)) / math.sqrt(2)
        return x


@module_for(spec.Interpolated)
class InterpolatedBlock(Block):
    """h + |a| (norm'(F(h)) - h) with h = norm(x) (Loshchilov 2024, equations 10 and 11)."""

    norms = ("norm", "post_norm")

    def __init__(self, block: spec.Block, place: Place) -> None:
        super().__init__(block, place)
        assert isinstance(block.wiring, spec.Interpolated)
        stored_rate = block.wiring.stored(place.d_model)
        self.rate_scale = block.wiring.rate / stored_rate
        self.initial_values = {f"{content}_rate": stored_rate for content in self.contents}
        for content in self.contents:
            self.register_parameter(f"{content}_rate", nn.Parameter(torch.empty(place.d_model)))

    def sublayers(self, x: Vectors, context: ForwardContext, state: LayerState | None = None) -> Vectors:
        for content in self.contents:
            h = normalize_stream(self.norm(content), x, context)  # (B, T, D); the stream stays in float32
            y = self.content(content)(cast_for_products(h), context, self.own_state(content, context, state))
            y = normalize_stream(getattr(self, f"{content}_post_norm"), y.to(h.dtype), context)
            rate = getattr(self, f"{content}_rate").abs() * self.rate_scale
            x = h + rate.to(h.dtype) * self.branch(y - h)
        return x


@module_for(spec.OutputNorm)
class OutputNormBlock(Block):
    """x + norm(F(x)) (Liu 2021; OLMo 2)."""

    added = "_norm"

    def sublayers(self, x: Tensor, context: ForwardContext, state: LayerState | None = None) -> Tensor:
        for content in self.contents:
            h = self.read(content, x, context)
            y = self.content(content)(h, context, self.own_state(content, context, state))
            y = self.norm(content)(y, context)
            x = self.write(content, x, y, context)
        return x


@module_for(spec.ParallelResidual)
class ParallelBlock(Block):
    """x + mixer(norm(x)) + feedforward(norm'(x)). With a shared norm, both read the same vectors of a residual sum."""

    added = ""

    def __init__(self, block: spec.Block, place: Place) -> None:
        super().__init__(block, place)
        self.shared_norm = isinstance(block.wiring, spec.ParallelResidual) and block.wiring.shared_norm
        if self.shared_norm:
            # its weights would never be trained
            del self.feedforward_norm

    def sublayers(self, x: Tensor, context: ForwardContext, state: LayerState | None = None) -> Tensor:
        # both contents read the stream before either writes to it
        h = self.norm("mixer")(self.read("mixer", x, context), context)  # (B, T, D)
        g = h
        if not (self.shared_norm and "mixer" in self.direct):  # residual streams are read with weights of each content
            norm = self.norm("mixer" if self.shared_norm else "feedforward")
            g = norm(self.read("feedforward", x, context), context)
        y = self.content("mixer")(h, context, self.own_state("mixer", context, state))
        x = self.write("mixer", x, y, context)
        y = self.content("feedforward")(g, context, self.own_state("feedforward", context, state))
        return self.write("feedforward", x, y, context)


@module_for(spec.Plain)
class PlainBlock(Block):
    """F(x), with the output of cross-attention added to its query vector (Luong 2015, equation 5)."""

    norms = ()

    def sublayers(self, x: Vectors, context: ForwardContext, state: LayerState | None = None) -> Vectors:
        for content in self.contents:
            y = self.branch(self.content(content)(x, context, self.own_state(content, context, state)))
            # recurrent stacks have no residual connections
            x = x + y if content == "cross" else y
        return x


def build_block(block: spec.Block, place: Place) -> nn.Module:
    return module_class(block.wiring)(block, place)
