"""A model from GGUF files: its weights mapped where they need no change, else made tensor by tensor."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from archetype.convert.apply import load_tensors, shapes_of
from archetype.convert.gguf.contents import PLAIN, FileTensors
from archetype.convert.gguf.header import Header, read_header
from archetype.convert.gguf.specification import describe
from archetype.convert.gguf.tokenizer import read_chat_template, read_tokenizer, special_ids
from archetype.convert.gguf.types import is_exact_in_file
from archetype.errors import CheckpointError
from archetype.families import Family
from archetype.families.rules import for_model
from archetype.models.build import Model, build_on_meta, check_fits_memory
from archetype.spec.edit import assign
from archetype.tokenizers import Tokenizer
from archetype.tokenizers.chat_template import ChatTemplate

# Settings of generation, by the keys of llama.cpp's own.
SAMPLING = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}


@dataclass(frozen=True)
class Contents:
    """What GGUF files hold.

    Attributes:
        family: the published family of the model.
        model: with its weights, in evaluation mode.
        tokenizer: None for a model of ids alone.
        template: how a conversation is written; None for a model that only continues texts.
        special: ids of special tokens, by the names of config.json.
        sampling: settings of generation that the file advises.
    """

    family: Family
    model: Model
    tokenizer: Tokenizer | None
    template: ChatTemplate | None
    special: dict[str, int]
    sampling: dict[str, Any]


def read_gguf(
    path: Path,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
    overrides: Sequence[str] = (),
) -> Contents:
    """All that GGUF files hold.

    Args:
        path: of the file, or of any part of several.
        dtype: of the weights (absent: the matrices' own, where it holds every number of the file, else float32).
        device: where they go (absent: CPU).
        overrides: path=value, applied to the specification that the file describes.

    Raises:
        ArchetypeError: names the file, key or tensor that is wrong or not understood.
    """
    header = read_header(path)
    family, target, spec, rest = describe(header)
    spec = assign(spec, list(overrides))
    if spec.num_layers > len(rest.entries):  # refused before so many layers are made
        cause = f"describes {spec.num_layers} layers, and there are only {len(rest.entries)} tensors"
        raise CheckpointError(header.place, cause, "is it the whole file?")
    model = build_on_meta(spec)
    try:
        rules = for_model(target.rules, spec.num_layers, shapes_of(model))
        names = [rule.hf for rule in rules]
        if dtype is None:
            dtype = _own_type(rest)
            if dtype != torch.float32 and not FileTensors(rest, target, spec, names, torch.float32).is_exact(dtype):
                dtype = torch.float32
        check_fits_memory(model.to(dtype), spec.name or header.place)
        load_tensors(model, FileTensors(rest, target, spec, names, dtype), rules, dtype=dtype, device=device)
    except CheckpointError as error:
        place = error.place if error.place.startswith(header.place) else f"{header.place}: {error.place}"
        raise CheckpointError(place, error.cause, "is it a whole file of this architecture?") from None
    metadata, prefix = header.metadata, "general.sampling."
    tokenizer = read_tokenizer(metadata, header.place)
    template = read_chat_template(metadata, tokenizer)
    special = special_ids(metadata, target.architecture)
    sampling = {SAMPLING[key]: metadata[f"{prefix}{key}"] for key in SAMPLING if f"{prefix}{key}" in metadata}
    return Contents(family, model.eval(), tokenizer, template, special, sampling)


def _own_type(header: Header) -> torch.dtype:
    """The type of the matrices, where all have the same one of 16 bits; else float32."""
    types = {entry.type for name, entry in header.entries.items() if not is_exact_in_file(name, len(entry.shape))}
    return PLAIN[types.pop()] if types in ({"F16"}, {"BF16"}) else torch.float32
