"""WHAT an architecture is: frozen, closed data. Nothing here computes, and nothing imports torch."""

from archetype.spec.activation import Activation, Swish
from archetype.spec.attention import Attention, AttentionSizes, Mixer, ProjectionBiases
from archetype.spec.base import Spec, fingerprint
from archetype.spec.block import Block, ParallelResidual, PostNorm, PreNorm, Wiring
from archetype.spec.edit import assign, differences
from archetype.spec.feedforward import MLP, EightThirds, FeedForward, GatedMLP
from archetype.spec.initialization import (
    GPT2Initialization,
    Initialization,
    NormalInitialization,
    XavierInitialization,
)
from archetype.spec.io import json_schema, parse, read, to_json, to_yaml
from archetype.spec.layers import cycle, repeat, runs
from archetype.spec.model import Decoder, Embedding, LanguageModelHead, ModelSpec
from archetype.spec.norm import LayerNorm, NoNorm, Norm, RMSNorm
from archetype.spec.position import (
    DynamicScaling,
    EmbeddingPosition,
    Learned,
    LinearScaling,
    Llama3Scaling,
    MixerPosition,
    NoPosition,
    NoScaling,
    Rotary,
    RotaryScaling,
    Sinusoidal,
    YarnScaling,
)

__all__ = [
    "MLP",
    "Activation",
    "Attention",
    "AttentionSizes",
    "Block",
    "Decoder",
    "DynamicScaling",
    "EightThirds",
    "Embedding",
    "EmbeddingPosition",
    "FeedForward",
    "GPT2Initialization",
    "GatedMLP",
    "Initialization",
    "LanguageModelHead",
    "LayerNorm",
    "Learned",
    "LinearScaling",
    "Llama3Scaling",
    "Mixer",
    "MixerPosition",
    "ModelSpec",
    "NoNorm",
    "NoPosition",
    "NoScaling",
    "Norm",
    "NormalInitialization",
    "ParallelResidual",
    "PostNorm",
    "PreNorm",
    "ProjectionBiases",
    "RMSNorm",
    "Rotary",
    "RotaryScaling",
    "Sinusoidal",
    "Spec",
    "Swish",
    "Wiring",
    "XavierInitialization",
    "YarnScaling",
    "assign",
    "cycle",
    "differences",
    "fingerprint",
    "json_schema",
    "parse",
    "read",
    "repeat",
    "runs",
    "to_json",
    "to_yaml",
]
