"""A small recipe of every kind of model and task, each with dropout or running statistics where its parts have them."""

import random
from pathlib import Path
from typing import Any

import numpy as np

from archetype.training.datasets import ImageData, PairData, TextData
from archetype.training.objectives import MaskedToken, NextToken, SpanCorruption
from archetype.training.recipe import Recipe
from archetype.training.schedules import Cosine

WORDS = ["the", "model", "reads", "a", "token", "and", "says", "what", "comes", "next", "for", "it", "has", "seen"]
RMS, LAYER, BATCH = ({"kind": kind} for kind in ("rms", "layer", "batch"))
ATTENTION = {"kind": "attention", "num_heads": 2, "dropout": 0.1}
MLP = {"kind": "mlp", "d_ff": 24, "activation": "gelu"}
EXPERTS = {
    "kind": "experts", "num_experts": 4, "experts_per_token": 2, "balance_loss": 0.1,
    "expert": {"kind": "gated", "d_ff": 8, "activation": "silu"},
}  # fmt: skip
SIZES = {"context_length": 16, "d_model": 16}


def block(mixer: dict[str, Any] = ATTENTION, norm: dict[str, Any] = RMS, **more: Any) -> dict[str, Any]:
    """A pre-norm block with dropout."""
    contents = {"wiring": {"kind": "pre_norm", "norm": norm}, "mixer": mixer, "feedforward": MLP, "dropout": 0.1}
    return contents | more


def decoder(**more: Any) -> dict[str, Any]:
    """A decoder of two equal blocks."""
    return SIZES | {"layers": [block(**more), block(**more)], "final_norm": RMS}


def recurrent_pair() -> dict[str, Any]:
    """LSTMs with attention and a bridge, dropout between them."""
    plain = {"wiring": {"kind": "plain"}, "dropout": 0.1}
    source, target = plain | {"mixer": {"kind": "lstm", "bidirectional": True}}, plain | {"mixer": {"kind": "lstm"}}
    cross = {"kind": "attention", "num_heads": 1, "score": "additive"}
    return SIZES | {
        "kind": "encoder_decoder",
        "embedding": {"shared": False},
        "encoder": {"layers": [source, source]},
        "decoder": {"layers": [target, target | {"cross_attention": cross}]},
        "state_bridge": {"kind": "state"},
    }


def transformer_pair() -> dict[str, Any]:
    """An encoder and a decoder of one block each, the decoder's with cross-attention."""
    return SIZES | {
        "kind": "encoder_decoder",
        "embedding": {"position": {"kind": "sinusoidal"}},
        "encoder": {"layers": [block()], "final_norm": RMS},
        "decoder": {"layers": [block(cross_attention=ATTENTION)], "final_norm": RMS},
    }


def megabyte() -> dict[str, Any]:
    """A global and a local model, dropout in both."""
    side = {"d_model": 16, "layers": [block()], "final_norm": LAYER}
    return {"kind": "megabyte", "context_length": 16, "patch_size": 4, "global_model": side, "local_model": side}


def vision(norm: dict[str, Any] = LAYER) -> dict[str, Any]:
    """Pictures of 8 x 8 in patches of 4 x 4."""
    return {
        "kind": "vision_encoder", "image_size": 8, "patch_size": 4, "num_channels": 1, "d_model": 16,
        "layers": [block(norm=norm)], "final_norm": norm, "head": {"kind": "classification", "num_classes": 3},
    }  # fmt: skip


NEXT: dict[str, dict[str, Any]] = {
    "batch norm": decoder(norm=BATCH),
    "experts": decoder(feedforward=EXPERTS),
    "gru": decoder(mixer={"kind": "gru"}),
    "mamba": decoder(mixer={"kind": "mamba", "state_size": 4}, feedforward={"kind": "none"}),
    "ngram": {"kind": "ngram", "context_length": 16, "n": 3, "d_model": 8, "hidden": [16]},
    "megabyte": megabyte(),
}
ENCODER = decoder(norm=BATCH) | {"kind": "encoder", "embedding": {"position": {"kind": "learned"}}}


def recipes(folder: Path) -> dict[str, Recipe]:
    """Each with nine steps, of which more than one epoch; the data are written into the folder."""
    drawn, numbers = random.Random(0), np.random.default_rng(0)
    lines = [" ".join(drawn.choice(WORDS) for _ in range(drawn.randint(1, 6))) for _ in range(40)]
    (folder / "text.txt").write_text("\n".join(lines * 3))
    (folder / "source.txt").write_text("\n".join(lines) + "\n")
    (folder / "target.txt").write_text("\n".join(" ".join(line.split()[::-1]) for line in lines) + "\n")
    pixels, labels = numbers.random((40, 8, 8)), numbers.integers(3, size=40)
    pixels[np.arange(40), 2 * labels] += 1.0  # one bright row for each class
    np.savez(folder / "images.npz", images=pixels, labels=labels)
    text = TextData(text=(str(folder / "text.txt"),), tokenizer="bytes")
    source, target = (str(folder / f"{side}.txt") for side in ("source", "target"))
    pairs = PairData(source=(source,), target=(target,), vocab_size=300)
    common = Recipe(
        batch_size=16, steps=9, schedule=Cosine(warmup_steps=3), evaluate_every=5, evaluate_batches=2,
        checkpoint_every=4, seed=5, dtype="float32",
    )  # fmt: skip
    next_token = {name: common.replace(spec=spec, data=text, objective=NextToken()) for name, spec in NEXT.items()}
    return next_token | {
        "encoder": common.replace(spec=ENCODER, data=text, objective=MaskedToken()),
        "spans": common.replace(spec=transformer_pair(), data=text, objective=SpanCorruption()),
        "pairs": common.replace(spec=transformer_pair(), data=pairs),
        "recurrent pairs": common.replace(spec=recurrent_pair(), data=pairs),
        "images": common.replace(spec=vision(), data=ImageData(file=str(folder / "images.npz"))),
        "images, batch norm": common.replace(spec=vision(BATCH), data=ImageData(file=str(folder / "images.npz"))),
    }


NAMES = (*NEXT, "encoder", "spans", "pairs", "recurrent pairs", "images", "images, batch norm")
