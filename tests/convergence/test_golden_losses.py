"""Losses of eight small architectures, as they were recorded: a change of numbers is a change of training.

The first twenty-five steps of each here, the whole hundred in `make soak`.

Recorded with torch 2.13 on x86-64. After a change that is meant: raise NUMERICS (archetype/training/numerics.py), then

    python -m tests.convergence.test_golden_losses
"""

import hashlib
import json
import random
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

from archetype.training.datasets import TextData
from archetype.training.loop import take_step
from archetype.training.numerics import NUMERICS
from archetype.training.objectives import NextToken
from archetype.training.recipe import Recipe
from archetype.training.schedules import Cosine
from archetype.training.setup import start
from tests.helpers.examples import every
from tests.helpers.kernels import kernels
from tests.helpers.recipes import EXPERTS, NEXT, WORDS, decoder

RECORDED_AT = (1, 25, 50, 75, 100)
SMALL = {"kind": "adamw", "learning_rate": 0.01}
ROTARY = {"kind": "attention", "num_heads": 2, "position": {"kind": "rotary"}}
GATED = {"kind": "gated", "d_ff": 24, "activation": "silu"}
WINDOW = ROTARY | {"pattern": {"kind": "window", "size": 4}}
MAMBA_2 = {"kind": "mamba2", "state_size": 4, "num_heads": 4, "head_dim": 8}
WSD = {"schedule": {"kind": "wsd"}}
NO_MLP = {"kind": "none"}
LION = {"kind": "lion", "learning_rate": 0.001}
MODELS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # architecture, and what the recipe says otherwise
    "attention, learned positions": (decoder() | {"embedding": {"position": {"kind": "learned"}}}, {}),
    "rotary, gated, tied": (
        decoder(mixer=ROTARY, feedforward=GATED) | {"head": {"tied": True}},
        {"schedule": {"kind": "wsd"}},
    ),
    "experts": (decoder(mixer=ROTARY, feedforward=EXPERTS), {"ema_decay": 0.9}),
    "lstm": (decoder(mixer={"kind": "lstm"}), {}),
    "mamba": (decoder(mixer={"kind": "mamba", "state_size": 4}, feedforward=NO_MLP), {}),
    "sliding window": (decoder(mixer=WINDOW), {"optimizer": LION, "recompute": "blocks"}),
    "mamba 2": (decoder(mixer=MAMBA_2, feedforward=NO_MLP), {"micro_batch_size": 2}),
    "n-gram": (NEXT["ngram"], {"optimizer": {"kind": "sgd", "nesterov": True}}),
}
GOLDEN = {
    "attention, learned positions": [2.945784, 1.843009, 1.440037, 1.340468, 1.301149],
    "rotary, gated, tied": [2.960121, 2.767258, 2.435118, 2.000981, 1.631821],
    "experts": [3.131595, 1.958129, 1.437171, 1.279037, 1.252642],
    "lstm": [2.94997, 1.864137, 1.185245, 1.035851, 0.887689],
    "mamba": [2.933674, 1.603946, 0.943273, 0.859559, 0.717332],
    "sliding window": [2.932837, 2.682823, 2.445484, 2.323247, 2.302083],
    "mamba 2": [2.947311, 1.710598, 1.085291, 0.982384, 0.807955],
    "n-gram": [2.944464, 2.572408, 2.713215, 2.629608, 2.619673],
}
RECORDED = {1: "d97c28e09de8", 2: "71f01b0b555e"}  # by the version of the numerics, a hash of its losses


def losses(name: str, folder: Path, steps: int = 100) -> list[float]:
    """The losses of one of them at the recorded ones of its first steps."""
    model, fields = MODELS[name]
    drawn = random.Random(0)
    (folder / "text.txt").write_text(" ".join(drawn.choice(WORDS) for _ in range(2000)))
    recipe = Recipe(
        spec=model, objective=NextToken(),
        data=TextData(text=(str(folder / "text.txt"),), tokenizer="characters", split="end"),
        batch_size=4, steps=100, schedule=Cosine(warmup_steps=10), seed=5, dtype="float32",
    )  # fmt: skip
    state = start(folder / "run", Recipe.parse(recipe.dump() | {"optimizer": SMALL} | fields), torch.device("cpu"))
    taken = [take_step(state).loss for _ in range(steps)]
    return [taken[step - 1] for step in RECORDED_AT if step <= steps]


def test_other_losses_are_another_version_of_the_numerics() -> None:
    """Which the studies' stored runs are found by: whoever records new losses raises it."""
    recorded = hashlib.sha256(json.dumps(GOLDEN, sort_keys=True).encode()).hexdigest()[:12]
    assert RECORDED[NUMERICS] == recorded and max(RECORDED) == NUMERICS


@pytest.mark.parametrize("steps", [25, pytest.param(100, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", every(2, MODELS))
def test_losses_are_those_recorded(name: str, steps: int, tmp_path: Path) -> None:
    kernels("native")  # whose dropout the recorded runs had
    recorded = [loss for step, loss in zip(RECORDED_AT, GOLDEN[name], strict=True) if step <= steps]
    assert losses(name, tmp_path, steps) == pytest.approx(recorded, abs=1e-4)


if __name__ == "__main__":
    for name in MODELS:
        with tempfile.TemporaryDirectory() as folder:
            print(name, [round(loss, 6) for loss in losses(name, Path(folder))])
