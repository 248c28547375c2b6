"""The recipes for German to English learn: the beginning of one here, both of them whole in `make soak`."""

from pathlib import Path

import pytest
import sacrebleu
import torch

from archetype.io.text import read_text
from archetype.loading import load
from archetype.train.loop import run
from archetype.train.metrics import Evaluated, Event
from archetype.train.recipe import Recipe, read_recipe
from archetype.train.setup import start

RECIPES = Path(__file__).parent.parent.parent / "recipes"


def learned(recipe: Recipe, shared: Path, folder: Path) -> list[float]:
    """The losses on held-out pairs."""
    source, target = ((str(shared / "multi30k" / f"train.{end}.gz"),) for end in ("de", "en"))
    events: list[Event] = []
    recipe = recipe.replace(data=recipe.data.replace(source=source, target=target))
    run(start(folder, recipe, torch.device("cpu")), events.append)
    return [event.evaluation.loss for event in events if isinstance(event, Evaluated)]


def test_fifty_steps_learn_more_than_how_often_each_token_occurs(shared: Path, tmp_path: Path) -> None:
    recipe = read_recipe(RECIPES / "multi30k_transformer.yaml")
    short = recipe.replace(
        steps=50, schedule=recipe.schedule.replace(warmup_steps=20), evaluate_every=1000, batch_size=64
    )
    (loss,) = learned(short, shared, tmp_path / "run")
    assert loss < 5.4  # knowing only how often each token occurs gives 5.70


@pytest.mark.slow
@pytest.mark.parametrize(("name", "bleu"), [("transformer", 37.0), ("lstm", 28.0)])
def test_the_whole_recipe_reaches_what_it_promises(name: str, bleu: float, shared: Path, tmp_path: Path) -> None:
    learned(read_recipe(RECIPES / f"multi30k_{name}.yaml"), shared, tmp_path / "run")
    sources, references = (
        read_text(shared / "multi30k" / f"test_2016_flickr.{end}.gz").splitlines() for end in ("de", "en")
    )
    found = load(tmp_path / "run").translate(sources, beams=5)
    assert sacrebleu.corpus_bleu(found, [references], lowercase=True).score >= bleu
