"""Gated feed-forward parts and plain ones with ReLU at initialization: units without gradient, and its gain."""

from typing import Any

import torch
from torch import Tensor, nn

from archetype.models.block.spec import Block, PreNorm
from archetype.models.build import build
from archetype.models.decoder.spec import Decoder
from archetype.models.initialization import initialize
from archetype.models.initialization_spec import GPT2Initialization, Initialization, XavierInitialization
from archetype.nn.context import ForwardContext
from archetype.nn.place import Place
from archetype.nn.registry import build_feedforward
from archetype.parts.attention.spec import Attention
from archetype.parts.feedforward.spec import MLP, GatedMLP
from archetype.parts.norm.spec import RMSNorm
from archetype.parts.position.spec import Rotary
from archetype.roles.feedforward import FeedForward
from archetype.spec.repeats import repeat
from archetype.studies.outcome import Outcome
from archetype.studies.registry import check
from claims.fit import bootstrap, median
from claims.small_models import normal, random_tokens

RELU, SWIGLU = MLP(d_ff=384, activation="relu"), GatedMLP(d_ff=256, activation="silu")  # equal parameters
WIDTH, LENGTH = 96, 128


def model_with(feedforward: FeedForward, layers: int) -> Decoder:
    """Return a byte-level decoder with one kind of feed-forward part."""
    norm = RMSNorm()
    mixer = Attention(num_heads=3, position=Rotary())
    layer = Block(wiring=PreNorm(norm=norm), mixer=mixer, feedforward=feedforward)
    return Decoder(vocab_size=256, context_length=LENGTH, d_model=WIDTH, layers=repeat(layers, layer), final_norm=norm)


@check("gated.dead_units", claim=5, part="b", kind="initialization")
def dead_units(quick: bool) -> Outcome:
    """At initialization some ReLU units get no gradient from any of 10,000 tokens, and no SwiGLU unit does."""
    layers, rows = (1, 4) if quick else (4, 80)  # of 128 tokens
    shares = {}
    for name, feedforward in (("relu", RELU), ("swiglu", SWIGLU)):
        silent, dead = gradients_of_units(model_with(feedforward, layers), rows)
        shares[f"{name}_dead_units"], shares[f"{name}_pairs_without_gradient"] = dead, silent
    tokens = rows * LENGTH
    return Outcome(
        shares["relu_dead_units"] > 0 and shares["swiglu_dead_units"] == 0,
        f"as initialized {shares['relu_dead_units']:.1%} of ReLU's units get no gradient from any of {tokens:,} tokens "
        f"and {shares['swiglu_dead_units']:.1%} of SwiGLU's; of pairs of unit and token "
        f"{shares['relu_pairs_without_gradient']:.0%} and {shares['swiglu_pairs_without_gradient']:.0%} get none: dead "
        "units are made by training, if at all",
        shares,
    )


def gradients_of_units(model: Decoder, rows: int) -> tuple[float, float]:
    """Return the share of (unit, token) pairs without gradient, and of units that get none from any token."""
    built: Any = build(model)
    collected: dict[nn.Module, list[Tensor]] = {}
    for layer in built.blocks:
        for name in ("gate", "up"):
            if (projection := getattr(layer.feedforward, name, None)) is not None:
                collected[projection] = []
                projection.register_full_backward_hook(
                    lambda module, _, gradients: collected[module].append(gradients[0].flatten(0, -2) != 0)
                )
    for start in range(0, rows, 16):
        tokens = random_tokens(model, min(16, rows - start), LENGTH + 1, seed=start)
        nn.functional.cross_entropy(built(tokens[:, :-1]).logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
    reached = []
    for layer in built.blocks:
        parts = [getattr(layer.feedforward, name, None) for name in ("gate", "up")]
        # a unit of SwiGLU is reached through its gate or its up projection
        reached.append(torch.stack([torch.cat(collected[part]) for part in parts if part is not None]).any(0))
    flows = torch.stack(reached)  # (L, N, F)
    return 1 - flows.double().mean().item(), 1 - flows.any(1).double().mean().item()


@check("gated.backward_gain", claim=5, part="c", kind="initialization")
def backward_gain(quick: bool) -> Outcome:
    """A feed-forward part with ReLU passes less gradient back to its input than SwiGLU with equal parameters."""
    seeds, vectors = (6, 256) if quick else (20, 4096)
    schemes: dict[str, Initialization] = {
        "gpt2": GPT2Initialization(), "xavier": XavierInitialization(),
    }  # fmt: skip
    values, intervals = {}, {}
    for name, scheme in schemes.items():
        pairs = [[gain(part, scheme, vectors, seed) for part in (RELU, SWIGLU)] for seed in range(seeds)]
        ratios = [one / other for one, other in pairs]
        intervals[name] = bootstrap(ratios)
        values[f"relu_over_swiglu_{name}"] = median(torch.tensor(ratios)).item()
        for part, gains in zip(("relu", "swiglu"), zip(*pairs, strict=True), strict=True):
            values[f"{part}_{name}"] = sum(gains) / seeds
    return Outcome(
        all(high < 1 for _, high in intervals.values()),
        "the gradient that ReLU passes back is "
        + " and ".join(
            f"{values[f'relu_over_swiglu_{name}']:.2f} [{low:.2f}, {high:.2f}] times SwiGLU's with {name} weights"
            for name, (low, high) in intervals.items()
        )
        + ": ReLU passes all of it on the half that is active, and a gate is small before training",
        values,
    )


def gain(part: FeedForward, scheme: Initialization, vectors: int, seed: int) -> float:
    """Return the median over vectors of |dL/dx| / |dL/dy| of one drawn part, for random inputs and gradients."""
    module = build_feedforward(part, Place(WIDTH))
    assert module is not None
    initialize(module, scheme, 1, seed)
    x = normal(1, vectors, WIDTH, dtype=torch.float32, seed=2 * seed).requires_grad_()
    dy = normal(1, vectors, WIDTH, dtype=torch.float32, seed=2 * seed + 1)
    (dx,) = torch.autograd.grad(module(x, ForwardContext.of(x)), x, dy)
    ratio: float = (dx.norm(dim=-1) / dy.norm(dim=-1)).median().item()
    return ratio
