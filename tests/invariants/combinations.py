"""Every combination of norm, position, wiring, feed-forward and number of key heads, as models of one layer."""

from functools import cache
from itertools import product

import pytest
import torch
from torch import Tensor

from archetype import spec
from archetype.model import Decoder, build
from tests.strategies import CONTEXT, VOCABULARY
from tests.weights import randomize

EXACT = 1e-5  # of the logits' largest magnitude, in float32

NORMS: dict[str, spec.Norm] = {
    "layer": spec.LayerNorm(),
    "rms": spec.RMSNorm(),
    "no-norm": spec.NoNorm(),
}
ADDED: dict[str, spec.EmbeddingPosition] = {"learned": spec.Learned(), "sinusoidal": spec.Sinusoidal()}
ROTATED: dict[str, spec.MixerPosition] = {
    "rotary": spec.Rotary(),
    "interleaved": spec.Rotary(interleaved=True),
    "partial": spec.Rotary(dim=2),
    "linear": spec.Rotary(scaling=spec.LinearScaling(factor=4.0)),
    "dynamic": spec.Rotary(scaling=spec.DynamicScaling(factor=4.0, original_context_length=CONTEXT)),
    "yarn": spec.Rotary(scaling=spec.YarnScaling(factor=4.0, original_context_length=8)),
    "llama3": spec.Rotary(
        scaling=spec.Llama3Scaling(
            factor=8.0, low_frequency_factor=1.0, high_frequency_factor=4.0, original_context_length=8
        )
    ),
}
POSITIONS = ("no-position", *ADDED, *ROTATED)
WIRINGS = ("pre", "post", "parallel", "parallel-shared")
FEEDFORWARDS: dict[str, spec.FeedForward] = {
    "mlp": spec.MLP(d_ff=12, activation="gelu_tanh", bias=True),
    "gated": spec.GatedMLP(d_ff=spec.EightThirds(multiple_of=2), activation="silu"),
}
KV_HEADS = (1, 2, 4)

GRID = [
    pytest.param(combination, id=" ".join(map(str, combination)))
    for combination in product(NORMS, POSITIONS, WIRINGS, FEEDFORWARDS, KV_HEADS)
]


def combined(norm: str, position: str, wiring: str, feedforward: str, num_kv_heads: int) -> spec.Decoder:
    """A decoder of one combination."""
    kinds: dict[str, spec.Wiring] = {
        "pre": spec.PreNorm(norm=NORMS[norm]),
        "post": spec.PostNorm(norm=NORMS[norm]),
        "parallel": spec.ParallelResidual(norm=NORMS[norm]),
        "parallel-shared": spec.ParallelResidual(norm=NORMS[norm], shared_norm=True),
    }
    block = spec.Block(
        wiring=kinds[wiring],
        mixer=spec.Attention(
            num_heads=4, num_kv_heads=num_kv_heads, head_dim=4, bias=spec.ProjectionBiases(q=True, v=True),
            position=ROTATED.get(position, spec.NoPosition()),
        ),
        feedforward=FEEDFORWARDS[feedforward],
    )  # fmt: skip
    return spec.Decoder(
        vocab_size=VOCABULARY, context_length=CONTEXT, d_model=8, layers=(block,), final_norm=NORMS[norm],
        embedding=spec.Embedding(position=ADDED.get(position, spec.NoPosition())),
    )  # fmt: skip


@cache
def model_of(decoder: spec.Decoder) -> Decoder:
    """The model of a specification, every tensor random, ready to evaluate."""
    model = build(decoder)
    randomize(model)
    return model.requires_grad_(False)


def text(batch: int, length: int, seed: int = 0) -> Tensor:
    """Random tokens."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, VOCABULARY, (batch, length), generator=generator)
