"""The recipes for German to English learn: the beginning of one here, both of them whole in `make soak`."""

import math
from collections import Counter
from pathlib import Path

import pytest
import sacrebleu
import torch

from archetype.api.loading import load
from archetype.io.text import read_text
from archetype.training.loop import run
from archetype.training.metrics import Evaluated, Event
from archetype.training.recipe import Recipe, read_recipe
from archetype.training.setup import start

RECIPES = Path(__file__).parent.parent.parent / "recipes"


def learned(recipe: Recipe, data: dict[str, Path], folder: Path) -> list[float]:
    """The losses on held-out pairs."""
    events: list[Event] = []
    files = {side: (str(file),) for side, file in data.items()}
    run(start(folder, recipe.replace(data=recipe.data.replace(**files)), torch.device("cpu")), events.append)
    return [event.evaluation.loss for event in events if isinstance(event, Evaluated)]


def pairs(shared: Path) -> dict[str, Path]:
    return {side: shared / "multi30k" / f"train.{end}.gz" for side, end in (("source", "de"), ("target", "en"))}


@pytest.mark.slow
def test_sixty_steps_learn_more_than_how_often_each_token_occurs(shared: Path, tmp_path: Path) -> None:
    """A narrower model, on the first of the pairs, in fewer tokens, and a smaller batch."""
    beginnings = {side: tmp_path / f"{side}.txt" for side in pairs(shared)}
    for side, file in pairs(shared).items():
        beginnings[side].write_text("\n".join(read_text(file).splitlines()[:1500]) + "\n")
    recipe = read_recipe(RECIPES / "multi30k_transformer.yaml")
    assert isinstance(recipe.spec, dict)
    narrow = recipe.spec | {"d_model": 64, "embedding": recipe.spec["embedding"] | {"scale": 8.0}}
    short = recipe.replace(
        spec=narrow, data=recipe.data.replace(vocab_size=1000), optimizer=recipe.optimizer.replace(learning_rate=0.004),
        steps=60, schedule=recipe.schedule.replace(warmup_steps=15), evaluate_every=1000, batch_size=16,
    )  # fmt: skip
    (loss,) = learned(short, beginnings, tmp_path / "run")
    tokenizer = load(tmp_path / "run").tokenizer
    assert tokenizer is not None
    lines = beginnings["target"].read_text().lower().splitlines()
    counts = Counter(token for line in lines for token in [*tokenizer.encode(line), "end"])
    entropy = -sum(count / counts.total() * math.log(count / counts.total()) for count in counts.values())
    assert 5.2 < entropy < 5.5
    assert loss < entropy - 0.1


@pytest.mark.slow
@pytest.mark.parametrize(("name", "bleu"), [("transformer", 37.0), ("lstm", 28.0)])
def test_the_whole_recipe_reaches_what_it_promises(name: str, bleu: float, shared: Path, tmp_path: Path) -> None:
    learned(read_recipe(RECIPES / f"multi30k_{name}.yaml"), pairs(shared), tmp_path / "run")
    sources, references = (
        read_text(shared / "multi30k" / f"test_2016_flickr.{end}.gz").splitlines() for end in ("de", "en")
    )
    translations = load(tmp_path / "run").translate(sources, num_beams=5)
    assert sacrebleu.corpus_bleu(translations, [references], lowercase=True).score >= bleu
