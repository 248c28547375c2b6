"""Recipe of a training run: the file that `archetype train --recipe` reads and every run directory contains."""

from pathlib import Path
from typing import Annotated, Any

from archetype.errors import errors_at
from archetype.io.yaml import read_mapping
from archetype.settings.training import TRACKERS, RunSettings
from archetype.spec.kinds import ByKind
from archetype.spec.serialize import document_schema
from archetype.training.datasets import Data, TextData
from archetype.training.objectives import ObjectiveConfig
from archetype.training.optimizers import AdamW, Optimizer
from archetype.training.parallel.layout import Parallel
from archetype.training.schedules import Cosine, Schedule
from archetype.training.stages import Stage
from archetype.training.teacher.spec import Teacher
from archetype.training.trackers import Tracker


class Recipe(RunSettings):
    """All settings of a training run.

    If `spec` is a mapping without `vocab_size`, the tokenizer determines it. Weights and optimizer moments are always
    saved in float32.

    Attributes:
        data: training data.
        objective: training objective (absent: the first objective that suits the model and the data).
        optimizer: optimizer.
        schedule: learning rate schedule.
        parallel: how processes share the work.
        teacher: model whose outputs the loss compares with (absent: none).
        stages: steps at the start in which only some parameters are trained.
    """

    data: Annotated[Data, ByKind(Data, default="corpus")] = TextData()
    objective: Annotated[ObjectiveConfig, ByKind(ObjectiveConfig)] | None = None
    optimizer: Annotated[Optimizer, ByKind(Optimizer, default="adamw")] = AdamW()
    schedule: Annotated[Schedule, ByKind(Schedule, default="cosine")] = Cosine()
    parallel: Parallel = Parallel()
    teacher: Teacher | None = None
    stages: tuple[Stage, ...] = ()
    trackers: Annotated[tuple[Annotated[Tracker, ByKind(Tracker)], ...], TRACKERS] = ()


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of recipe files, for editors."""
    return document_schema("recipe", Recipe.model_json_schema())


def read_recipe(file: Path) -> Recipe:
    """Read a recipe from a YAML or JSON file.

    Raises:
        SpecError: the recipe is invalid; the message names the file and the first invalid field.
    """
    data = read_mapping(file)
    with errors_at(str(file)):
        return Recipe.parse(data)
