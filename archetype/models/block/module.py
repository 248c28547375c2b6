"""One layer: its wiring decides where norms and residuals go around mixer, cross-attention and feed-forward part."""

from typing import ClassVar

from torch import nn

from archetype.models.block import spec
from archetype.nn.cache import CrossKVCache, DecoderBlockState, LayerState
from archetype.nn.context import ForwardContext, Vectors
from archetype.nn.dropout import dropout
from archetype.nn.registry import build_feedforward, build_mixer, build_norm, module_class, module_for
from archetype.parts.attention.cross import CrossAttention
from archetype.parts.norm.module import cast_for_products, normalize_stream


class Block(nn.Module):
    """The contents of a layer and their norms; each wiring is a subclass with a `forward`."""

    norms: ClassVar[tuple[str, ...]] = ("norm",)  # `mixer_norm`, `cross_norm`, `feedforward_norm`, ...
    # whose outputs are added to the residual stream: the contents (""), or their norms by suffix; None: it is no sum
    added: ClassVar[str | None] = None
    mixer: nn.Module
    cross: CrossAttention | None
    feedforward: nn.Module | None
    mixer_norm: nn.Module
    cross_norm: nn.Module
    feedforward_norm: nn.Module

    def __init__(self, block: spec.Block, d_model: int, causal: bool, layer: int) -> None:
        super().__init__()
        attention = block.cross_attention
        contents = {
            "mixer": build_mixer(block.mixer, d_model, causal, layer),
            "cross": None if attention is None else CrossAttention(attention, d_model),
            "feedforward": build_feedforward(block.feedforward, d_model),
        }
        for name, content in contents.items():
            if content is not None:
                for norm in self.norms:
                    self.add_module(f"{name}_{norm}", build_norm(getattr(block.wiring, "norm"), d_model))  # noqa: B009
            setattr(self, name, content)
        self.dropout = block.dropout
        self.residual_scale = block.residual_scale

    def caches(
        self, context: ForwardContext, cache: LayerState | None
    ) -> tuple[LayerState | None, CrossKVCache | None]:
        """The mixer's cache, and the source's keys and values: out of the cache, or projected where there is none."""
        if self.cross is None:
            return cache, None
        if isinstance(cache, DecoderBlockState):
            return cache.mixer, cache.cross
        assert context.encoder_output is not None, "cross-attention needs an encoder's output"
        return cache, self.cross.project(context.encoder_output)

    def branch(self, y: Vectors) -> Vectors:
        """A content's output as it is added to the residual stream: dropped out and scaled."""
        z = dropout(y, self.dropout, self.training)
        return z if self.residual_scale == 1.0 else z * self.residual_scale


@module_for(spec.PreNorm)
class PreNormBlock(Block):
    """x + F(norm(x)) (Xiong 2020)."""

    added = ""

    def forward(self, x: Vectors, context: ForwardContext, cache: LayerState | None = None) -> Vectors:
        cache, source = self.caches(context, cache)
        x = x + self.branch(self.mixer(self.mixer_norm(x, context), context, cache))
        if self.cross is not None:
            x = x + self.branch(self.cross(self.cross_norm(x, context), context, source))
        if self.feedforward is not None:
            x = x + self.branch(self.feedforward(self.feedforward_norm(x, context), context))
        return x


@module_for(spec.PostNorm)
class PostNormBlock(Block):
    """norm(x + F(x)) (Vaswani 2017)."""

    def forward(self, x: Vectors, context: ForwardContext, cache: LayerState | None = None) -> Vectors:
        cache, source = self.caches(context, cache)
        y = self.mixer(cast_for_products(x), context, cache)
        x = normalize_stream(self.mixer_norm, x + self.branch(y), context)
        if self.cross is not None:
            y = self.cross(cast_for_products(x), context, source)
            x = normalize_stream(self.cross_norm, x + self.branch(y), context)
        if self.feedforward is not None:
            y = self.feedforward(cast_for_products(x), context)
            x = normalize_stream(self.feedforward_norm, x + self.branch(y), context)
        return x


@module_for(spec.SandwichNorm)
class SandwichBlock(Block):
    """x + norm'(F(norm(x))) (Ding 2021; Gemma 2)."""

    norms = ("norm", "post_norm")
    added = "_post_norm"
    mixer_post_norm: nn.Module
    cross_post_norm: nn.Module
    feedforward_post_norm: nn.Module

    def forward(self, x: Vectors, context: ForwardContext, cache: LayerState | None = None) -> Vectors:
        cache, source = self.caches(context, cache)
        y = self.mixer(self.mixer_norm(x, context), context, cache)
        x = x + self.branch(self.mixer_post_norm(y, context))
        if self.cross is not None:
            y = self.cross(self.cross_norm(x, context), context, source)
            x = x + self.branch(self.cross_post_norm(y, context))
        if self.feedforward is not None:
            y = self.feedforward(self.feedforward_norm(x, context), context)
            x = x + self.branch(self.feedforward_post_norm(y, context))
        return x


@module_for(spec.OutputNorm)
class OutputNormBlock(Block):
    """x + norm(F(x)) (Liu 2021; OLMo 2)."""

    added = "_norm"

    def forward(self, x: Vectors, context: ForwardContext, cache: LayerState | None = None) -> Vectors:
        cache, source = self.caches(context, cache)
        x = x + self.branch(self.mixer_norm(self.mixer(x, context, cache), context))
        if self.cross is not None:
            x = x + self.branch(self.cross_norm(self.cross(x, context, source), context))
        if self.feedforward is not None:
            x = x + self.branch(self.feedforward_norm(self.feedforward(x, context), context))
        return x


@module_for(spec.ParallelResidual)
class ParallelBlock(Block):
    """x + mixer(norm(x)) + feedforward(norm'(x)); with a shared norm, the second reads the first's."""

    added = ""

    def __init__(self, block: spec.Block, d_model: int, causal: bool, layer: int) -> None:
        super().__init__(block, d_model, causal, layer)
        self.shared_norm = isinstance(block.wiring, spec.ParallelResidual) and block.wiring.shared_norm
        if self.shared_norm:
            del self.feedforward_norm

    def forward(self, x: Vectors, context: ForwardContext, cache: LayerState | None = None) -> Vectors:
        assert self.feedforward is not None
        mixer_input = self.mixer_norm(x, context)
        feedforward_input = mixer_input if self.shared_norm else self.feedforward_norm(x, context)
        y = self.mixer(mixer_input, context, cache)
        return x + self.branch(y) + self.branch(self.feedforward(feedforward_input, context))


@module_for(spec.Plain)
class PlainBlock(Block):
    """F(x); the result of cross-attention is added to the vector that asked (Luong 2015, equation 5)."""

    norms = ()

    def forward(self, x: Vectors, context: ForwardContext, cache: LayerState | None = None) -> Vectors:
        cache, source = self.caches(context, cache)
        x = self.branch(self.mixer(x, context, cache))
        if self.cross is not None:
            x = x + self.branch(self.cross(x, context, source))
        if self.feedforward is not None:
            x = self.branch(self.feedforward(x, context))
        return x


def build_block(block: spec.Block, d_model: int, causal: bool, layer: int) -> nn.Module:
    """The module of one layer, at index `layer` of its stack."""
    return module_class(block.wiring)(block, d_model, causal, layer)
