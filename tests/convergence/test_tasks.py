"""Other tasks than the next token are learned, not only trained on: held-out pictures, and held-out pairs."""

import random
from pathlib import Path

import numpy as np
import pytest
import torch

from archetype.api.loading import load
from archetype.families.original_transformer import transformer
from archetype.training.datasets import PairData
from archetype.training.loop import run
from archetype.training.metrics import Evaluated, Event
from archetype.training.optimizers import AdamW
from archetype.training.recipe import Recipe, read_recipe
from archetype.training.schedules import Cosine
from archetype.training.setup import start
from tests.helpers.digits import load_digits

CPU = torch.device("cpu")
RECIPES = Path(__file__).parent.parent.parent / "recipes"


def held_out_accuracy(recipe: Recipe, folder: Path) -> float:
    events: list[Event] = []
    run(start(folder, recipe, CPU), events.append)
    return [event.evaluation.accuracy for event in events if isinstance(event, Evaluated)][-1]


@pytest.mark.slow
def test_handwritten_digits_are_told_apart(tmp_path: Path) -> None:
    images, labels = load_digits()
    np.savez(tmp_path / "digits.npz", images=images, labels=labels)
    recipe = read_recipe(RECIPES / "digits_vit.yaml")
    recipe = recipe.replace(data=recipe.data.replace(file=str(tmp_path / "digits.npz")))
    assert recipe.data.validation_fraction == 0.2
    assert held_out_accuracy(recipe, tmp_path / "run") >= 0.96


@pytest.mark.slow
def test_words_are_translated_and_their_order_turned(tmp_path: Path) -> None:
    words = {"one": "uno", "two": "due", "three": "tre", "four": "quattro", "five": "cinque"}
    drawn = random.Random(0)
    lines = [drawn.choices(list(words), k=drawn.randint(1, 4)) for _ in range(3000)]
    (tmp_path / "a.txt").write_text("".join(" ".join(line) + "\n" for line in lines))
    (tmp_path / "b.txt").write_text("".join(" ".join(words[word] for word in line[::-1]) + "\n" for line in lines))
    spec = transformer(num_layers=2, d_model=64, num_heads=4, d_ff=128, vocab_size=290, context_length=32)
    recipe = Recipe(
        spec=spec.dump(),
        data=PairData(source=(str(tmp_path / "a.txt"),), target=(str(tmp_path / "b.txt"),), vocab_size=290),
        batch_size=64, steps=600, optimizer=AdamW(learning_rate=2e-3), schedule=Cosine(warmup_steps=100),
        dtype="float32", evaluate_every=600,
    )  # fmt: skip
    assert held_out_accuracy(recipe, tmp_path / "run") > 0.97
    lm = load(tmp_path / "run")
    assert lm.translate(["one two three four", "five", "two two one"]) == [
        "quattro tre due uno",
        "cinque",
        "uno due due",
    ]
