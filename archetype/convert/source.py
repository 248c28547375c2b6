"""Whatever names a specification: a preset, a file, a run directory, a Hugging Face folder, or plain data."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from archetype.errors import ArchetypeError, CheckpointError, SpecError, UnknownFamily
from archetype.families.family import Family
from archetype.families.index import preset_facts
from archetype.families.registry import designs, family_of, preset
from archetype.io import hub
from archetype.io import weight_files as files
from archetype.io.yaml import read_mapping
from archetype.models.file import parse, read
from archetype.models.spec import ModelSpec
from archetype.spec.base import Spec

if TYPE_CHECKING:
    from archetype.convert.infer import Shapes

SUFFIXES = (".yaml", ".yml", ".json")
Source = str | Path | dict[str, Any] | ModelSpec


def open_spec(source: Source) -> ModelSpec:
    """The specification that `source` names.

    Raises:
        ArchetypeError: nothing of that name exists, or what exists is wrong.
    """
    if isinstance(source, Spec):
        return source
    if isinstance(source, dict):
        return parse(source)
    place = Path(source)
    if place.is_dir():
        return _of_folder(place)
    if place.is_file():
        return read(place)
    if hub.is_name(place) and place.suffix not in SUFFIXES:
        return _of_folder(hub.download(place.as_posix(), ["config.json"]), _not_fetched)
    if place.suffix in SUFFIXES or len(place.parts) > 1:
        raise SpecError(str(source), "there is no such file or folder", "check the path, or see `archetype list`")
    return preset(str(source))


def without_weights(place: str | Path) -> CheckpointError:
    """The error of a name that is no model's folder: what it is instead, and how to come to a model."""
    is_preset = str(place) in preset_facts()
    if is_preset or (Path(place).is_file() and Path(place).suffix in SUFFIXES):
        what = "a preset" if is_preset else "a specification"
        remedy = f"train it: archetype train TEXT --spec {place} --to RUN, and give RUN"
        return CheckpointError(str(place), f"is {what}, which has no weights", remedy)
    return CheckpointError(str(place), "there is no such folder", "give a run directory or a Hugging Face folder")


def read_hf_spec(
    folder: Path, shapes: Callable[[], Shapes] | None = None, warn: bool = True
) -> tuple[Family, ModelSpec]:
    """The family and the specification that a folder's config.json describes.

    A family that is not registered is read by what the files show; then its `reading` says what that rests on.

    Args:
        folder: holds config.json.
        shapes: gives those of the tensors (absent: as the folder's safetensors say).
        warn: say so where a family is not registered.

    Warns:
        UnknownFamily: the family is not registered.
    """
    from archetype.convert.infer import read_unknown  # here, because presets and files need none of it

    place = folder / "config.json"
    config = read_mapping(place)
    try:
        family = family_of(config, str(place)) or read_unknown(
            config, (shapes or partial(files.shapes, folder))(), str(place)
        )
        if family.reading is not None and warn:
            warnings.warn(UnknownFamily(f"{folder}: {family.reading.summary(family.name)}"), stacklevel=2)
        return family, family.format.spec_from(config, str(place))
    except ArchetypeError as error:
        raise error if error.place.startswith(str(folder)) else error.at(str(place)) from None


def _of_folder(folder: Path, shapes: Callable[[], Shapes] | None = None) -> ModelSpec:
    if (folder / "spec.yaml").is_file():
        return read(folder / "spec.yaml")
    if (folder / "config.json").is_file():
        return read_hf_spec(folder, shapes)[1]
    raise SpecError(str(folder), "holds neither spec.yaml nor config.json", f"known families: {', '.join(designs())}")


def _not_fetched() -> Shapes:
    cause = "is of no family that is known here, and its tensors, which would show more, are not fetched"
    raise CheckpointError("model_type", cause, "`archetype import` fetches them")
