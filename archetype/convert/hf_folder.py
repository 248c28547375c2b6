"""Hugging Face folders: config.json and safetensors, read and written."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from archetype.convert.apply import export_sizes, export_tensors, load_tensors, shapes_of
from archetype.convert.source import read_hf_spec
from archetype.errors import CheckpointError
from archetype.families import Family
from archetype.families.rules import Rule, for_model
from archetype.io import atomic
from archetype.io.tensors import SHARD_BYTES, Tensors, save
from archetype.io.weight_files import INDEX
from archetype.models import Model, build_on_meta
from archetype.models.build import check_fits_memory
from archetype.spec import assign


def read_model(
    folder: Path,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
    allow_pickle: bool = False,
    overrides: Sequence[str] = (),
) -> tuple[Family, Model]:
    """The family and the model in a folder, its weights mapped from the file wherever they need no change.

    Args:
        folder: holds config.json and model.safetensors, or an index with its shards.
        dtype: type of the weights (absent: as in the file).
        device: where they go (absent: CPU).
        allow_pickle: also read pytorch_model.bin where there are no safetensors.
        overrides: path=value, applied to the specification that the folder describes.

    Raises:
        CheckpointError: names the file, key or tensor that is wrong.
    """
    family, spec = read_hf_spec(folder, lambda: Tensors.open(folder, allow_pickle).shapes())
    spec = assign(spec, list(overrides))
    tensors = Tensors.open(folder, allow_pickle)
    names = tensors.names()
    if spec.num_layers > len(names):  # refused before so many layers are made
        cause = f"describes {spec.num_layers} layers, and there are only {len(names)} tensors"
        raise CheckpointError(str(folder / "config.json"), cause, "does it describe this checkpoint?")
    model = build_on_meta(spec)
    if dtype is not None:
        check_fits_memory(model.to(dtype), spec.name or str(folder))
    try:
        rules = for_model(family.format.rules_for(spec), spec.num_layers, shapes_of(model))
        rules = _with_names_of_file(family, rules, names)
        copies = _tied_copies(family, rules, tensors)
        load_tensors(model, tensors, rules, (*family.format.ignored, *copies), dtype, device)
    except CheckpointError as error:
        raise error.at(str(folder)) from None
    return family, model.eval()


def write_model(
    model: Model, family: Family, folder: Path, config: dict[str, Any] | None = None, shard_bytes: int = SHARD_BYTES
) -> None:
    """Write config.json and the weights into an existing folder.

    Args:
        model: whose specification the family's format can express.
        family: whose format is written.
        folder: exists.
        config: further keys of config.json, such as the ids that start and end a text.
        shard_bytes: the size above which the weights go into several files with an index.
    """
    from huggingface_hub import split_state_dict_into_shards_factory

    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    keys = family.format.config_for(model.spec) | {"dtype": dtype}
    keys |= {key: value for key, value in (config or {}).items() if value is not None or key not in keys}
    atomic.write_json(folder / "config.json", keys)
    rules = for_model(family.format.rules_for(model.spec), model.spec.num_layers, shapes_of(model))
    by_name = {rule.hf: rule for rule in rules}
    shards = split_state_dict_into_shards_factory(
        export_sizes(model, rules),
        get_storage_size=lambda size: size,
        filename_pattern="model{suffix}.safetensors",
        max_shard_size=shard_bytes,
    )
    for file, names in shards.filename_to_tensors.items():
        save(folder / file, dict(export_tensors(model, [by_name[name] for name in names])))
    if shards.is_sharded:
        atomic.write_json(folder / INDEX, {"metadata": shards.metadata, "weight_map": shards.tensor_to_filename})


def compare(model: Model, folder: Path) -> None:
    """Read a folder that was just written, and compare it with the model to the bit.

    Raises:
        CheckpointError: names the tensor that differs.
    """
    state = model.state_dict()
    for name, tensor in read_model(folder)[1].state_dict().items():
        if not torch.equal(_bits(tensor), _bits(state[name].detach().to("cpu"))):
            raise CheckpointError(name, "does not read back as it was written", "is the disk sound? try again")


def _bits(tensor: Tensor) -> Tensor:
    """The bytes of a tensor, so that a NaN equals itself."""
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def _with_names_of_file(family: Family, rules: list[Rule], names: list[str]) -> list[Rule]:
    """The rules with the names of this file: with or without the family's prefix, and older ones of norms."""
    present = set(names)

    def renamed(rule: Rule) -> Rule:
        spellings = (name for name in _spellings(rule.hf, family.format.prefix) if name in present)
        return replace(rule, hf=next(spellings, rule.hf))

    return [renamed(rule) for rule in rules]


def _spellings(name: str, prefix: str) -> Iterator[str]:
    """What a tensor may be called: a file that was saved without the head has no prefix."""
    for spelling in (name, name.removeprefix(prefix), prefix + name):
        yield spelling
        yield spelling.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")


def _tied_copies(family: Family, rules: list[Rule], tensors: Tensors) -> list[str]:
    """Patterns of the tensors that a file repeats although the model has them once; they must be the same."""
    used, present = {rule.hf for rule in rules}, set(tensors.names())
    sources = {rule.params[0]: rule.hf for rule in rules if len(rule.params) == 1}
    patterns = []
    for copy, parameter in family.format.copies.items():
        original = sources.get(parameter)
        if copy not in present - used or original is None or original not in present:
            continue  # not there, or the original is what is missing
        one, other = tensors.mapped(original), tensors.mapped(copy)
        if one.dtype != other.dtype or not torch.equal(one, other):
            cause = f"differs from {original}, though the configuration ties them"
            raise CheckpointError(copy, cause, "set tie_word_embeddings to false")
        patterns.append(re.escape(copy))
    return patterns
