"""Formulas for parameters and FLOPs of the standard block, checked on random sizes and on GPT-3's."""

import random
from functools import partial

import torch

from archetype import families
from archetype.estimate.report import cost_report
from archetype.models.block.spec import Block, PreNorm
from archetype.models.build import build_on_meta
from archetype.models.decoder.spec import Decoder
from archetype.models.spec import ModelSpec
from archetype.parts.attention.spec import Attention
from archetype.parts.embedding.spec import Embedding
from archetype.parts.feedforward.spec import MLP, GatedMLP
from archetype.parts.head.spec import LanguageModelHead
from archetype.parts.norm.spec import LayerNorm
from archetype.parts.position.spec import Learned
from archetype.spec.repeats import repeat
from archetype.studies.outcome import Control, Curve, Outcome
from archetype.studies.registry import check
from claims.counted import counted_flops


def standard(draw: random.Random) -> Decoder:
    """Return a decoder of the standard block with random sizes: biases everywhere, 4 d, learned positions, tied."""
    head_dim, heads = draw.choice((2, 4, 8, 16)), draw.randint(1, 6)
    norm = LayerNorm()
    layer = Block(
        wiring=PreNorm(norm=norm),
        mixer=Attention.parse({"kind": "attention", "num_heads": heads, "bias": True}),
        feedforward=MLP(d_ff=4 * heads * head_dim, activation="gelu", bias=True),
    )
    return Decoder(
        vocab_size=draw.randint(2, 3000), context_length=draw.randint(2, 64), d_model=heads * head_dim,
        embedding=Embedding(position=Learned()), layers=repeat(draw.randint(1, 6), layer),
        final_norm=norm, head=LanguageModelHead(tied=True),
    )  # fmt: skip


def formula(model: Decoder) -> int:
    """Return V d + L (12 d^2 + 13 d)."""
    d = model.d_model
    return model.vocab_size * d + model.num_layers * (12 * d * d + 13 * d)


def left_out(model: Decoder) -> int:
    """Return the parameters that the formula leaves out: positions, T d, and the final norm, 2 d."""
    return model.context_length * model.d_model + 2 * model.d_model


def built_parameters(model: ModelSpec) -> int:
    return sum(parameter.numel() for parameter in build_on_meta(model).parameters())  # shared ones once


@check("counting.parameters", claim=12, part="parameters", kind="analytic")
def parameters(quick: bool) -> Outcome:
    """V d + L (12 d^2 + 13 d), with positions and final norm added, is what the built model has, to the integer."""
    draw, number = random.Random(0), 20 if quick else 200
    models = [standard(draw) for _ in range(number)]
    wrong = sum(formula(model) + left_out(model) != built_parameters(model) for model in models)
    wrong += sum(built_parameters(model) != cost_report(model).parameters["total"] for model in models)
    gpt2, llama = families.preset("gpt2"), families.preset("llama-2-7b")
    assert isinstance(gpt2, Decoder) and isinstance(llama, Decoder)
    return Outcome(
        wrong == 0 and formula(gpt2) == 123_651_840 and built_parameters(gpt2) == 124_439_808,
        f"it holds for {number} random standard decoders once positions (T d) and the final norm (2 d), which it "
        f"leaves out, are added; of GPT-2 it gives {formula(gpt2):,} of {built_parameters(gpt2):,} parameters",
        {"mismatches": wrong, "gpt2_formula": formula(gpt2), "gpt2": built_parameters(gpt2), "models": number},
        (
            Control(
                "Llama 2 7B, whose block is another (parameters that differ)",
                float(abs(formula(llama) + left_out(llama) - cost_report(llama).parameters["total"])), 0.0,
            ),
        ),
    )  # fmt: skip


@check("counting.flops", claim=12, part="flops", kind="analytic")
def flops(quick: bool) -> Outcome:
    """L (24 b s d^2 + 4 b s^2 d) + 2 b s d V is what cost counts and what the dispatcher sees, to the integer."""
    draw, number, wrong = random.Random(1), 5 if quick else 200, 0
    for _ in range(number):
        model = standard(draw)
        b, s, d, v = draw.randint(1, 4), draw.randint(1, model.context_length), model.d_model, model.vocab_size
        expected = model.num_layers * (24 * b * s * d * d + 4 * b * s * s * d) + 2 * b * s * d * v
        built, tokens = build_on_meta(model), torch.zeros(b, s, dtype=torch.long, device="meta")
        wrong += counted_flops(partial(built, tokens)) != expected
        wrong += cost_report(model, b, s).flops["forward"] != expected
    allowed = cost_report(model, b, s, attention="allowed").flops["forward"]
    gated = model.replace(layers=tuple(
        layer.replace(feedforward=GatedMLP(d_ff=4 * d, activation="silu")) for layer in model.layers
    ))  # fmt: skip
    return Outcome(
        wrong == 0,
        f"it holds for {number} random standard decoders, batches and lengths: 2 for a multiply-add, every pair of "
        "positions whether masked or not, no softmax, a tied table once",
        {"mismatches": wrong, "models": number},
        (
            Control("a gated block of 4 d (FLOPs)", float(cost_report(gated, b, s).flops["forward"] - expected), 0.0),
            Control("pairs that the causal mask allows (FLOPs fewer)", float(expected - allowed), 0.0),
        ),
    )


@check("counting.gpt3", claim=13, part="a", kind="analytic")
def gpt3(quick: bool) -> Outcome:
    """GPT-3 175B's blocks are 13B's times 2.4 in depth and 2.4 squared in width."""
    small, large = (families.preset(f"gpt3-{size}") for size in ("13b", "175b"))
    assert isinstance(small, Decoder) and isinstance(large, Decoder)
    blocks = [sum(row.parameters for row in cost_report(model).rows if row.in_block) for model in (small, large)]
    embeddings = [cost_report(model).parameters["embedding"] for model in (small, large)]
    depth, width, printed = large.num_layers / small.num_layers, large.d_model / small.d_model, 13 * 2.4**3
    grown = blocks[0] * 2.4**3
    error, of_printed = grown / blocks[1] - 1, 1e9 * printed / cost_report(large).parameters["total"] - 1
    terms = {"blocks": blocks, "embeddings": embeddings}
    return Outcome(
        abs(depth - 2.4) < 1e-12 and abs(width - 2.4) < 1e-12 and abs(error) <= 0.0005 and abs(of_printed) <= 0.03,
        f"40 to 96 layers is {depth:.3f} times, 5,120 to 12,288 features {width:.3f} times (5,140, as printed, would "
        f"make {12288 / 5140:.3f}); blocks of {blocks[0] / 1e9:.4f} B times 2.4^3 are {grown / 1e9:.2f} B against "
        f"{blocks[1] / 1e9:.2f} B ({error:+.3%}); 13 B rounded gives {printed:.1f} B, {of_printed:+.1%} of the whole; "
        f"embeddings grow {embeddings[1] / embeddings[0]:.2f} times only",
        {
            "depth_ratio": depth, "width_ratio": width, "width_ratio_as_printed": 12288 / 5140,
            "blocks_13b": blocks[0], "blocks_175b": blocks[1], "error_of_blocks": error, "printed": printed,
            "error_of_printed": of_printed, "embeddings_ratio": embeddings[1] / embeddings[0],
        },
        (Control("width alone, 2.4 squared (relative error)", abs(blocks[0] * 2.4**2 / blocks[1] - 1), 0.0005),),
        tuple(
            Curve(f"{name}, of 13B's", (13.0, 175.0), (1.0, large_one / small_one), "model", "times")
            for name, (small_one, large_one) in terms.items()
        ),
    )  # fmt: skip
