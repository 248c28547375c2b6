"""Specification from any source: preset, file, run directory, Hugging Face folder, GGUF or plain data."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from archetype.convert.gguf.header import is_gguf
from archetype.convert.sentence_transformers.files import read_files
from archetype.convert.sentence_transformers.head import with_head_of
from archetype.errors import ArchetypeError, CheckpointError, DataError, SpecError, UnknownFamily
from archetype.families.class_keys import warn_of_releases
from archetype.families.family import Family
from archetype.families.index import preset_facts
from archetype.families.registry import designs, family_of, preset
from archetype.io import hub, weight_files
from archetype.io.low_bit.header import plain_header
from archetype.io.low_bit.settings import read_settings, without_settings
from archetype.io.weight_files import Header
from archetype.io.yaml import read_mapping
from archetype.models.file import parse, read
from archetype.models.spec import ModelSpec
from archetype.spec.base import Spec

if TYPE_CHECKING:
    from archetype.convert.infer import Shapes

SUFFIXES = (".yaml", ".yml", ".json")
CONFIG = "config.json"
Source = str | Path | dict[str, Any] | ModelSpec


def open_spec(source: Source) -> ModelSpec:
    """Return the specification that `source` names.

    Raises:
        ArchetypeError: the source does not exist, or is invalid.
    """
    if isinstance(source, Spec):
        return source
    if isinstance(source, dict):
        return parse(source)
    path = Path(source)
    # a run directory; its spec.yaml has precedence over a config.json next to it
    if (path / "spec.yaml").is_file():
        return read(path / "spec.yaml")
    if (config := find_config(path)) is not None:
        return with_head_of(read_config(config)[1], read_files(path if path.is_dir() else config.file.parent))
    if path.is_dir():
        raise SpecError(
            str(path), "contains neither spec.yaml nor config.json", f"known families: {', '.join(designs())}"
        )
    if is_gguf(path):
        from archetype.convert.gguf.specification import read_spec  # imported here, since no other source needs it

        return read_spec(path)
    if path.is_file():
        return read(path)
    # not a bare name, so it cannot be a preset
    if path.suffix in SUFFIXES or len(path.parts) > 1:
        raise SpecError(str(source), "there is no such file or folder", "check the path, or see `archetype list`")
    if str(source) not in preset_facts():
        from archetype.gallery.entries import specification  # imported here, since presets do not need it

        if (published := specification(str(source))) is not None:
            return published
    return preset(str(source))


class PublishedConfig(NamedTuple):
    """Location of a published config.json.

    Attributes:
        file: local path.
        shapes: returns the shapes of the model's dequantized tensors, for unregistered families.
        model: folder, or name on huggingface.co.
        has_tensors: whether tensors are next to it; True for a name on huggingface.co.
    """

    file: Path
    shapes: Callable[[], Shapes]
    model: str
    has_tensors: bool = True

    @property
    def place(self) -> str:
        """Path of the file, for error messages."""
        return str(Path(self.model) / self.file.name)


def find_config(source: Path) -> PublishedConfig | None:
    """Return the location of a source's config.json; None if the source has no config.json.

    Args:
        source: folder with a config.json, the file, or a name on huggingface.co (only this file is downloaded).
    """
    if source.is_dir():
        file = source / CONFIG
        return _local_config(file) if file.is_file() else None
    if source.is_file():
        # a specification may be JSON, too, but has no model_type
        is_published = source.suffix == ".json" and "model_type" in read_mapping(source)
        return _local_config(source) if is_published else None
    if not hub.is_name(source) or source.suffix in SUFFIXES:
        return None
    name = source.as_posix()
    file = hub.download(name, [CONFIG]) / CONFIG
    if not file.is_file():
        raise SpecError(name, "has no config.json", "is it a model for transformers?")
    return PublishedConfig(file, lambda: _shapes(hub.header(name), file), name)


def _local_config(file: Path) -> PublishedConfig:
    return PublishedConfig(file, partial(_shapes_beside, file), str(file.parent), _has_tensors(file))


def without_weights(source: str | Path) -> CheckpointError:
    """Return the error for a path without weights. It states what the path is and how to get a model from it."""
    is_preset = str(source) in preset_facts()
    if is_preset or (Path(source).is_file() and Path(source).suffix in SUFFIXES):
        kind = "a preset" if is_preset else "a specification"
        remedy = f"train it: archetype train TEXT --spec {source} --to RUN, and use RUN"
        return CheckpointError(str(source), f"is {kind}, which has no weights", remedy)
    cause = "is neither a folder nor a GGUF file" if Path(source).is_file() else "there is no such folder"
    return CheckpointError(str(source), cause, "pass a run directory, a Hugging Face folder or a GGUF file")


def read_hf_spec(
    folder: Path,
    shapes: Callable[[], Shapes] | None = None,
    warn: bool = True,
    settings: Mapping[str, Any] = MappingProxyType({}),
) -> tuple[Family, ModelSpec]:
    """Return the family and the specification of a folder with a config.json; see `read_config`."""
    config = _local_config(folder / CONFIG)
    return read_config(config if shapes is None else config._replace(shapes=shapes), warn, settings)


def read_config(
    config: PublishedConfig, warn: bool = True, settings: Mapping[str, Any] = MappingProxyType({})
) -> tuple[Family, ModelSpec]:
    """Return the family and the specification described by a published config.json.

    An unregistered family is inferred from its keys and tensors. Its `reading` lists the assumptions.

    Args:
        warn: whether to warn about unregistered families and keys.
        settings: layouts of an unregistered family that neither keys nor tensors determine, by name. They override
            layouts found by a proof.

    Warns:
        UnknownFamily: the family is not registered.
        UnreadKeys: the transformers class of a registered family ignores some keys of the file.
        ReadOtherwise: the installed transformers, or the version that wrote the file, reads a key differently.
    """
    # imported here, since presets and files need neither
    from archetype.convert.infer import read_unknown
    from archetype.convert.infer.proofs import find_proof, with_proof

    values, place = without_settings(read_mapping(config.file)), config.place
    family = family_of(values, place)
    tensors = config.shapes() if family is None else {}
    if family is not None and settings:
        cause = f"is a layout of families that are not registered, but {family.name} is registered"
        raise SpecError(next(iter(settings)), cause, "remove it")
    try:
        if warn:
            warn_of_releases(values, place, family is not None)
        if family is None:
            proof = find_proof(values, settings)
            taken = {} if proof is None else proof.taken
            family = with_proof(read_unknown(values, tensors, place, {**taken, **settings}), proof)
        if family.reading is not None and warn:
            warnings.warn(UnknownFamily(f"{config.model}: {family.reading.summary(family.name)}"), stacklevel=2)
        return family, family.format.spec_from(values, place)
    except ArchetypeError as error:
        raise error if error.place.startswith(config.model) else error.at(place) from None


def _has_tensors(file: Path) -> bool:
    # a file of another name may describe another model than the safetensors next to it
    return file.name == CONFIG and weight_files.has_weights(file.parent)


def _shapes_beside(file: Path) -> Shapes:
    if _has_tensors(file):
        return _shapes(weight_files.header(file.parent), file)
    from archetype.convert.reference import shapes_by_class  # imported here, since it loads torch

    try:
        return shapes_by_class(without_settings(read_mapping(file)), str(file))
    except DataError as error:
        cause = "a type that is not registered is inferred from its tensors, and there are none here"
        remedy = "use owner/name, or put its safetensors there"
        raise CheckpointError(f"{file}: model_type", f"{cause}; the file {error.cause}", remedy) from None


def _shapes(header: Header, file: Path) -> Shapes:
    settings = read_settings(read_mapping(file), file.parent)
    plain = header if settings is None else plain_header(header, settings)
    return {name: tensor.shape for name, tensor in plain.items()}
