"""How a model is trained, written down: the file that `archetype train --recipe` reads and every run keeps."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar

from archetype.errors import SpecError
from archetype.io.yaml import read_mapping
from archetype.settings.training import TRACKERS, RunSettings
from archetype.spec.kinds import ByKind
from archetype.spec.serialize import document_schema
from archetype.training.datasets import Data, TextData
from archetype.training.objectives import ObjectiveConfig
from archetype.training.optimizers import AdamW, Optimizer
from archetype.training.parallel.layout import Parallel
from archetype.training.schedules import Cosine, Schedule
from archetype.training.trackers import Tracker


class Recipe(RunSettings):
    """Everything that a run depends on except the data themselves.

    A `spec` written as a mapping may leave `vocab_size` to the tokenizer. Saved weights and optimizer moments are
    always float32.

    Attributes:
        data: training data.
        objective: training objective (absent: the first that suits the model and the data).
        optimizer: optimizer.
        schedule: learning rate schedule.
        parallel: how processes share the work.
    """

    renamed: ClassVar[dict[str, str]] = {"length": "sequence_length", "clip": "max_grad_norm"}
    data: Annotated[Data, ByKind(Data, default="corpus")] = TextData()
    objective: Annotated[ObjectiveConfig, ByKind(ObjectiveConfig)] | None = None
    optimizer: Annotated[Optimizer, ByKind(Optimizer, default="adamw")] = AdamW()
    schedule: Annotated[Schedule, ByKind(Schedule, default="cosine")] = Cosine()
    parallel: Parallel = Parallel()
    trackers: Annotated[tuple[Annotated[Tracker, ByKind(Tracker)], ...], TRACKERS] = ()


def json_schema() -> dict[str, Any]:
    """A JSON Schema of recipe files, for editors."""
    return document_schema("recipe", Recipe.model_json_schema())


def read_recipe(file: Path, of_run: bool = False) -> Recipe:
    """The recipe in a YAML or JSON file.

    Args:
        file: the recipe.
        of_run: whether a run wrote it: what earlier versions did not write is as they took it.

    Raises:
        SpecError: names the file, the first field that is wrong, why, and what would be right.
    """
    data = read_mapping(file)
    try:
        return recipe_of_run(data) if of_run else Recipe.parse(data)
    except SpecError as error:
        raise error.at(str(file)) from None


def recipe_of_run(values: Mapping[str, Any]) -> Recipe:
    """The recipe that a run wrote, perhaps one of an earlier version, which did not write every field."""
    recipe = Recipe.parse(dict(values))
    unwritten = {name: value for name, value in recipe.data.unwritten.items() if name not in (values.get("data") or {})}
    return recipe.replace(data=recipe.data.replace(**unwritten)) if unwritten else recipe
