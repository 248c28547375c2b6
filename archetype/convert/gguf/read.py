"""Load a model, its tokenizer and its generation settings from GGUF files."""

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

# Generation settings: llama.cpp's keys and our names.
SAMPLING = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}


@dataclass(frozen=True)
class Contents:
    """Model, tokenizer and settings stored in GGUF files.

    Attributes:
        family: registered family of the model; None if there is none.
        model: model in evaluation mode.
        tokenizer: tokenizer; None if the file has no vocabulary.
        template: chat template.
        special: ids of special tokens, keyed by their names in config.json.
        sampling: recommended generation settings, keyed by Archetype's names.
    """

    family: Family | None
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
    """Load a model and everything else that GGUF files store.

    Args:
        path: the file, or any part of a split file.
        dtype: dtype of the weights (default: float16 or bfloat16 if it represents the file exactly, otherwise float32).
        device: device of the weights (default: CPU).
        overrides: path=value changes to the specification that the file describes.

    Raises:
        ArchetypeError: the file, a key or a tensor is wrong or unknown.
    """
    header = read_header(path)
    family, target, spec, rest = describe(header)
    spec = assign(spec, list(overrides))
    if spec.num_layers > len(rest.entries):  # refuse before building that many layers
        cause = f"describes {spec.num_layers} layers, but there are only {len(rest.entries)} tensors"
        raise CheckpointError(header.place, cause, "is the file complete?")
    model = build_on_meta(spec)
    try:
        rules = for_model(target.rules_of(spec), spec.num_layers, shapes_of(model))
        names = [rule.hf for rule in rules]
        if dtype is None:
            dtype = _own_type(rest)
            # norms are float32 in every file; a narrower type must hold them exactly
            if dtype != torch.float32 and not FileTensors(rest, target, spec, names, torch.float32).is_exact(dtype):
                dtype = torch.float32
        check_fits_memory(model.to(dtype), spec.name or header.place)
        load_tensors(model, FileTensors(rest, target, spec, names, dtype), rules, dtype=dtype, device=device)
    except CheckpointError as error:
        location = error.place if error.place.startswith(header.place) else f"{header.place}: {error.place}"
        raise CheckpointError(location, error.cause, "is the file complete, and of this architecture?") from None
    metadata, prefix = header.metadata, "general.sampling."
    tokenizer = read_tokenizer(metadata, header.place)
    template = read_chat_template(metadata, tokenizer)
    special = special_ids(metadata, target.architecture)
    sampling = {SAMPLING[key]: metadata[f"{prefix}{key}"] for key in SAMPLING if f"{prefix}{key}" in metadata}
    return Contents(family, model.eval(), tokenizer, template, special, sampling)


def _own_type(header: Header) -> torch.dtype:
    # float16 or bfloat16 if all matrices have that type, else float32
    types = {entry.type for name, entry in header.entries.items() if not is_exact_in_file(name, len(entry.shape))}
    return PLAIN[types.pop()] if types in ({"F16"}, {"BF16"}) else torch.float32
