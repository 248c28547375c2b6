"""Whatever names a specification: a preset, a file, a run directory, a Hugging Face folder, or plain data."""

from pathlib import Path
from typing import Any

from archetype.checkpoint import hub
from archetype.errors import ArchetypeError, SpecError
from archetype.families.family import Family
from archetype.families.registry import PUBLISHED, family_of, preset
from archetype.spec import ModelSpec, Spec, parse, read
from archetype.spec.io import read_mapping

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
        return _of_folder(hub.download(place.as_posix(), ["config.json"]))
    if place.suffix in SUFFIXES or len(place.parts) > 1:
        raise SpecError(str(source), "there is no such file or folder", "check the path, or see `archetype list`")
    return preset(str(source))


def read_config(folder: Path) -> tuple[Family, dict[str, Any]]:
    """The family and the contents of a folder's config.json."""
    place = folder / "config.json"
    config = read_mapping(place)
    return family_of(config, str(place)), config


def read_hf_spec(folder: Path) -> tuple[Family, ModelSpec]:
    """The family and the specification that a folder's config.json describes."""
    family, config = read_config(folder)
    place = str(folder / "config.json")
    try:
        return family, family.format.spec_from(config, place)
    except ArchetypeError as error:
        raise error if error.place.startswith(place) else error.within(place) from None


def _of_folder(folder: Path) -> ModelSpec:
    if (folder / "spec.yaml").is_file():
        return read(folder / "spec.yaml")
    if (folder / "config.json").is_file():
        return read_hf_spec(folder)[1]
    raise SpecError(str(folder), "holds neither spec.yaml nor config.json", f"known families: {', '.join(PUBLISHED)}")
