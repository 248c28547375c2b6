"""Specification to module: one exhaustive match for each union, and nowhere else."""

from functools import partial
from typing import assert_never

from torch import nn

from archetype import spec
from archetype.nn.attention import Attention
from archetype.nn.block import (
    Block,
    Contents,
    OutputNormBlock,
    ParallelBlock,
    PlainBlock,
    PostNormBlock,
    PreNormBlock,
    SandwichBlock,
)
from archetype.nn.cross_attention import CrossAttention
from archetype.nn.experts import MixtureOfExperts
from archetype.nn.feedforward import MLP, GatedMLP
from archetype.nn.latent_attention import LatentAttention
from archetype.nn.mamba import Mamba
from archetype.nn.norm import BatchNorm, LayerNorm, NoNorm, RMSNorm
from archetype.nn.position import Learned, NoPosition, Sinusoidal
from archetype.nn.recurrent import Recurrent


def build_norm(norm: spec.Norm, d_model: int) -> nn.Module:
    """The module of a norm: (x, valid) -> y."""
    match norm:
        case spec.LayerNorm():
            return LayerNorm(norm, d_model)
        case spec.RMSNorm():
            return RMSNorm(norm, d_model)
        case spec.BatchNorm():
            return BatchNorm(norm, d_model)
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


def build_mixer(mixer: spec.Mixer, d_model: int, causal: bool, layer: int) -> nn.Module:
    """The module of a mixer, the `layer`-th of its stack: (x, context, state) -> (y, state)."""
    match mixer:
        case spec.Attention():
            return Attention(mixer, d_model, causal, layer)
        case spec.LatentAttention():
            return LatentAttention(mixer, d_model, causal)
        case spec.RNN() | spec.LSTM() | spec.GRU():
            return Recurrent(mixer, d_model)
        case spec.Mamba():
            return Mamba(mixer, d_model)
        case _:
            assert_never(mixer)


def build_feedforward(feedforward: spec.FeedForward, d_model: int) -> nn.Module | None:
    """The module of a feed-forward part: (x, context) -> y."""
    match feedforward:
        case spec.MLP():
            return MLP(feedforward, d_model)
        case spec.GatedMLP():
            return GatedMLP(feedforward, d_model)
        case spec.MixtureOfExperts():
            return MixtureOfExperts(feedforward, d_model)
        case spec.NoFeedForward():
            return None
        case _:
            assert_never(feedforward)


def build_block(block: spec.Block, d_model: int, causal: bool, layer: int) -> Block:
    """The module of one layer, the `layer`-th of its stack."""
    contents = Contents(
        mixer=build_mixer(block.mixer, d_model, causal, layer),
        cross=CrossAttention(block.cross_attention, d_model) if block.cross_attention is not None else None,
        feedforward=build_feedforward(block.feedforward, d_model),
        dropout=block.dropout,
        residual_scale=block.residual_scale,
    )
    match block.wiring:
        case spec.PreNorm(norm=norm):
            return PreNormBlock(contents, partial(build_norm, norm, d_model))
        case spec.PostNorm(norm=norm):
            return PostNormBlock(contents, partial(build_norm, norm, d_model))
        case spec.SandwichNorm(norm=norm):
            return SandwichBlock(contents, partial(build_norm, norm, d_model))
        case spec.OutputNorm(norm=norm):
            return OutputNormBlock(contents, partial(build_norm, norm, d_model))
        case spec.ParallelResidual(norm=norm, shared_norm=shared):
            return ParallelBlock(contents, partial(build_norm, norm, d_model), shared)
        case spec.Plain():
            return PlainBlock(contents, partial(build_norm, spec.NoNorm(), d_model))
        case _:
            assert_never(block.wiring)
