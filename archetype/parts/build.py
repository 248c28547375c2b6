"""Specification to module: one exhaustive match for each union, and nowhere else."""

from typing import assert_never

from torch import nn

from archetype import spec
from archetype.parts.attention import Attention
from archetype.parts.block import ParallelBlock, PostNormBlock, PreNormBlock
from archetype.parts.feedforward import MLP, GatedMLP
from archetype.parts.norm import LayerNorm, NoNorm, RMSNorm
from archetype.parts.position import Learned, NoPosition, Sinusoidal


def build_norm(norm: spec.Norm, d_model: int) -> nn.Module:
    """The module of a norm."""
    match norm:
        case spec.LayerNorm():
            return LayerNorm(norm, d_model)
        case spec.RMSNorm():
            return RMSNorm(norm, d_model)
        case spec.NoNorm():
            return NoNorm(norm, d_model)
        case _:
            assert_never(norm)


def build_position(position: spec.EmbeddingPosition, context_length: int, d_model: int) -> nn.Module:
    """The module of positions that are added to embeddings."""
    match position:
        case spec.Learned():
            return Learned(position, context_length, d_model)
        case spec.Sinusoidal():
            return Sinusoidal(position, context_length, d_model)
        case spec.NoPosition():
            return NoPosition(position, context_length, d_model)
        case _:
            assert_never(position)


def build_mixer(mixer: spec.Mixer, d_model: int) -> nn.Module:
    """The module of a mixer: (x, span, state) -> (y, state)."""
    match mixer:
        case spec.Attention():
            return Attention(mixer, d_model)
        case _:
            assert_never(mixer)


def build_feedforward(feedforward: spec.FeedForward, d_model: int) -> nn.Module:
    """The module of a feed-forward part."""
    match feedforward:
        case spec.MLP():
            return MLP(feedforward, d_model)
        case spec.GatedMLP():
            return GatedMLP(feedforward, d_model)
        case _:
            assert_never(feedforward)


def build_block(block: spec.Block, d_model: int) -> nn.Module:
    """The module of one layer."""
    wiring = block.wiring
    mixer_norm, feedforward_norm = build_norm(wiring.norm, d_model), build_norm(wiring.norm, d_model)
    mixer, feedforward = build_mixer(block.mixer, d_model), build_feedforward(block.feedforward, d_model)
    match wiring:
        case spec.PreNorm():
            return PreNormBlock(mixer_norm, mixer, feedforward_norm, feedforward, block.dropout)
        case spec.PostNorm():
            return PostNormBlock(mixer_norm, mixer, feedforward_norm, feedforward, block.dropout)
        case spec.ParallelResidual(shared_norm=shared):
            own_norm = None if shared else feedforward_norm
            return ParallelBlock(mixer_norm, mixer, own_norm, feedforward, block.dropout)
        case _:
            assert_never(wiring)
