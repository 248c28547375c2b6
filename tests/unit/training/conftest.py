"""A small recipe on a small text, with everything that could break an exact resume: dropout, several epochs."""

import random
from pathlib import Path

import pytest

from archetype.training.datasets import TextData
from archetype.training.recipe import Recipe
from archetype.training.schedules import Cosine

WORDS = ["the", "model", "reads", "a", "token", "and", "says", "what", "comes", "next", "for", "it", "has", "seen"]


@pytest.fixture(scope="session")
def text_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two thousand words in a fixed random order."""
    file = tmp_path_factory.mktemp("text") / "text.txt"
    generator = random.Random(0)
    file.write_text(" ".join(generator.choice(WORDS) for _ in range(2000)))
    return file


@pytest.fixture(scope="session")
def recipe(text_file: Path) -> Recipe:
    """Twelve steps of a two-layer decoder on bytes."""
    block = {
        "wiring": {"kind": "pre_norm", "norm": {"kind": "rms"}},
        "mixer": {"kind": "attention", "num_heads": 2, "position": {"kind": "rotary"}, "dropout": 0.1},
        "feedforward": {"kind": "gated", "d_ff": 32, "activation": "silu"},
        "dropout": 0.1,
    }
    spec = {
        "context_length": 16,
        "d_model": 16,
        "layers": [{"repeat": 2, "block": block}],
        "final_norm": {"kind": "none"},
    }
    return Recipe(
        spec=spec,
        data=TextData(text=(str(text_file),), tokenizer="bytes"),
        batch_size=64,
        steps=12,
        schedule=Cosine(warmup_steps=3),
        evaluate_every=6,
        evaluate_batches=2,
        checkpoint_every=4,
        seed=5,
    )
