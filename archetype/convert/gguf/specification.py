"""Read the family and the specification that a GGUF file describes. Imports no torch."""

import struct
import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from archetype.convert.gguf.architectures import GGUF, families_of
from archetype.convert.gguf.graph import SHIFTED
from archetype.convert.gguf.header import Entry, Header, read_header
from archetype.convert.gguf.keys import FileKeys, Gguf
from archetype.errors import ArchetypeError, CheckpointError, Notice
from archetype.families import FAMILIES, Family
from archetype.models.spec import ModelSpec

OF_MODEL = ("tokenizer.ggml.token_type_count", SHIFTED)  # facts about the model among keys of other subjects
FURTHER = "nextn_predict_layers"
MAX_VECTOR = 2**16  # largest length of a tensor that holds a setting


def read_spec(path: Path) -> ModelSpec:
    """Return the specification that a file describes.

    Raises:
        ArchetypeError: the file is wrong, or contains an unknown key or tensor.
    """
    return describe(read_header(path)).model


class Description(NamedTuple):
    """Specification that the keys of a file describe.

    Attributes:
        family: registered family of the model; None if there is none.
        header: header without the tensors that store settings.
    """

    family: Family | None
    target: Gguf
    model: ModelSpec
    header: Header


def describe(header: Header) -> Description:
    """Return family, architecture, specification, and the header without the tensors that store settings.

    Raises:
        CheckpointError: a key, a tensor or the architecture is unknown.
    """
    families = families_of(header.metadata.get("general.architecture"), header.place)
    target = GGUF[families[0]]
    prefix = f"{target.architecture}."
    values = {key.removeprefix(prefix): value for key, value in header.metadata.items() if key.startswith(prefix)}
    values |= {key: header.metadata[key] for key in OF_MODEL if key in header.metadata}
    header, values = _without_further_layers(header, values)
    shapes = {name: entry.shape for name, entry in header.entries.items()}
    keys = FileKeys(values, header.place, target.architecture, shapes, partial(_numbers, header))
    try:
        model = target.read(keys)
    except ArchetypeError as error:
        raise error if error.place.startswith(header.place) else error.at(header.place) from None
    name = header.metadata.get("general.name")
    model = model.replace(name=name) if isinstance(name, str) and not model.name else model
    entries = {name: entry for name, entry in header.entries.items() if name not in keys.used_tensors}
    # llama, mistral and mixtral share an architecture: the first family that can express the model
    registered = [FAMILIES[name] for name in families if name in FAMILIES and FAMILIES[name].published is not None]
    able = (family for family in registered if not family.format.lacking(model))
    family = next(able, registered[0] if registered else None)
    return Description(family, target, model, replace(header, entries=entries))


def _without_further_layers(header: Header, values: dict[str, Any]) -> tuple[Header, dict[str, Any]]:
    # the last layers of some files draft further tokens, which changes no logits
    further, layers = values.pop(FURTHER, 0), values.get("block_count")
    if not isinstance(further, int) or not isinstance(layers, int) or not 0 < further < layers:
        return header, values
    warnings.warn(f"{header.place}: {further} layers that predict further tokens are left out", Notice, stacklevel=2)
    dropped = tuple(f"blk.{layer}." for layer in range(layers - further, layers))
    entries = {name: entry for name, entry in header.entries.items() if not name.startswith(dropped)}
    return replace(header, entries=entries), values | {"block_count": layers - further}


def _numbers(header: Header, name: str) -> list[float]:
    entry: Entry = header.entries[name]
    if entry.type != "F32" or len(entry.shape) > 1 or entry.shape[0] > MAX_VECTOR:
        raise CheckpointError(f"{header.place}: {name}", f"must be an F32 vector, not {entry.type}", "convert it again")
    with entry.file.open("rb") as file:
        file.seek(entry.offset)
        return list(struct.unpack(f"<{entry.shape[0]}f", file.read(entry.row_bytes)))
