"""Provenance of a run: a record of its start, which is saved with the recipe and checked when the run is resumed."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from pydantic import BaseModel, ValidationError

from archetype.data.skipping import Skipped
from archetype.errors import CheckpointError, SpecError, shorten
from archetype.io import atomic
from archetype.io.files import MAX_FILE_BYTES, check_regular, read_bytes
from archetype.io.yaml import mapping_to_yaml, with_schema_line
from archetype.machine.environment import environment
from archetype.models.spec import ModelSpec
from archetype.runs.directory import Run
from archetype.spec.base import fingerprint
from archetype.spec.edit import differences
from archetype.training.objectives.base import Objective
from archetype.training.recipe import Recipe

MAX_SHOWN = 60  # characters of a value in a message
ALLOW = "or pass --allow-changes"


class Provenance(BaseModel, frozen=True):
    """Record of a run's start.

    Attributes:
        spec: hash of the specification.
        data: hash of the examples.
        recipe: recipe with all defaults.
        environment: machine and package versions.
        guessing_loss: validation loss of guessing without reading the inputs, if known.
        changes: differences that were allowed when the run was resumed, each with the step.
        examples: number of training examples, and how many were truncated or left out.
        skipped: first bad records that were left out, with location and fault.
        teacher: hash of the teacher's weights; empty without a teacher.
    """

    spec: str
    data: str
    recipe: dict[str, Any]
    environment: dict[str, Any] = {}
    guessing_loss: float | None = None
    changes: tuple[str, ...] = ()
    examples: str = ""
    num_skipped: int = 0
    skipped: tuple[str, ...] = ()
    teacher: str = ""


def write_recipe(
    run: Run, recipe: Recipe, spec: ModelSpec, objective: Objective, skipped: Skipped, changes: Sequence[str] = ()
) -> None:
    """Write the full recipe of a run and its provenance, at the start or after allowed changes."""
    values = recipe.dump(full=True)
    atomic.write_bytes(run.recipe_file, with_schema_line(mapping_to_yaml(values), "recipe").encode())
    provenance = Provenance(
        spec=fingerprint(spec),
        data=objective.fingerprint,
        recipe=values,
        environment=environment(),
        guessing_loss=objective.guessing_loss(spec),
        changes=tuple(changes),
        examples=objective.description,
        num_skipped=skipped.count,
        skipped=skipped.named(),
        teacher=objective.teacher.fingerprint if objective.teacher else "",
    )
    atomic.write_json(run.provenance_file, provenance.model_dump())


def read_provenance(run: Run) -> Provenance | None:
    """Read the provenance of a run; None if its file was removed."""
    check_regular(run.provenance_file, CheckpointError)
    if not run.provenance_file.exists():
        return None
    data = read_bytes(run.provenance_file, MAX_FILE_BYTES, CheckpointError)
    try:
        provenance = Provenance.model_validate_json(data)
        Recipe.parse(provenance.recipe)
        return provenance
    except (SpecError, ValidationError):
        remedy = "restore it, or remove it to resume with the recipe unchecked"
        raise CheckpointError(str(run.provenance_file), "is damaged", remedy) from None


def check_recipe(run: Run, recipe: Recipe, began: Provenance | None) -> None:
    """Refuse a recipe that differs from the recipe at the start of the run. The error names the first changed field."""
    if began is None:
        return
    # may change: data are compared by hash, and a step does not depend on the number of processes
    paths = ("parallel", *(f"data.{field}" for field in recipe.data.path_fields))
    changes = [change for change in differences(Recipe.parse(began.recipe), recipe) if not change[0].startswith(paths)]
    if changes:
        field, before, now = changes[0]
        further = f" (and {', '.join(change[0] for change in changes[1:4])})" if len(changes) > 1 else ""
        before, now = (shorten(str(value), MAX_SHOWN) for value in (before, now))
        cause = f"was {before} when this run began and is {now} now{further}"
        raise CheckpointError(f"{run.recipe_file}: {field}", cause, f"restore it, {ALLOW}")


def check_spec(run: Run, spec: ModelSpec, origin: Mapping[str, Any]) -> None:
    """Raise a CheckpointError if the specification's hash differs from that of the run or its checkpoint."""
    if origin.get("spec") != fingerprint(spec):
        cause = "the architecture has changed since this run began"
        raise CheckpointError(str(run.spec_file), cause, "restore it, or start a new run")


def check_data(recipe: Recipe, objective: Objective, origin: Mapping[str, Any]) -> None:
    """Raise a CheckpointError if the hash of the data or the teacher differs from that of the run or its checkpoint."""
    if origin.get("data") != objective.fingerprint:
        cause = "the data have changed since this run began"
        raise CheckpointError(", ".join(recipe.data.files()), cause, f"restore them, {ALLOW}")
    teacher = objective.teacher
    if teacher is not None and origin.get("teacher", "") not in ("", teacher.fingerprint):
        cause = "the weights have changed since this run began"
        raise CheckpointError(f"teacher.model: {teacher.settings.model}", cause, f"restore them, {ALLOW}")


@contextmanager
def noting(changes: dict[str, None] | None) -> Iterator[None]:
    """Record a CheckpointError in `changes` instead of raising it, unless `changes` is None."""
    try:
        yield
    except CheckpointError as error:
        if changes is None:
            raise
        changes[f"{error.place}: {error.cause}"] = None
