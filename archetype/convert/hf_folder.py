"""Hugging Face folders: config.json and safetensors, read and written."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from archetype.convert.apply import exported, exported_bytes, fill, shapes
from archetype.convert.source import read_hf_spec
from archetype.errors import CheckpointError
from archetype.families import Family
from archetype.families.rules import Rule, for_model
from archetype.io import atomic
from archetype.io.tensors import SHARD_BYTES, Tensors, save, shards
from archetype.io.weight_files import INDEX, SINGLE
from archetype.models import Model, build_on_meta
from archetype.models.build import check_fits_memory
from archetype.spec import assign


def read_model(
    folder: Path,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
    pickled: bool = False,
    changes: Sequence[str] = (),
) -> tuple[Family, Model]:
    """The family and the model in a folder, its weights mapped from the file wherever they need no change.

    Args:
        folder: holds config.json and model.safetensors, or an index with its shards.
        dtype: type of the weights (absent: as in the file).
        device: where they go (absent: CPU).
        pickled: also read pytorch_model.bin where there are no safetensors.
        changes: path=value, of the specification that the folder describes.
    """
    family, spec = read_hf_spec(folder, lambda: Tensors.open(folder, pickled).shapes())
    spec = assign(spec, list(changes))
    tensors = Tensors.open(folder, pickled)
    names = tensors.names()
    if spec.num_layers > len(names):  # said before so many layers are made
        cause = f"describes {spec.num_layers} layers, and there are only {len(names)} tensors"
        raise CheckpointError(str(folder / "config.json"), cause, "does it describe this checkpoint?")
    model = build_on_meta(spec)
    if dtype is not None:
        check_fits_memory(model.to(dtype), spec.name or str(folder))
    try:
        rules = _as_named(family, for_model(family.format.rules_for(spec), spec.num_layers, shapes(model)), names)
        copies = _copies(family, rules, tensors)
        fill(model, tensors, rules, (*family.format.ignored, *copies), dtype, device)
    except CheckpointError as error:
        raise error.at(str(folder)) from None
    return family, model.eval()


def write_model(
    model: Model, family: Family, folder: Path, config: dict[str, Any] | None = None, shard_bytes: int = SHARD_BYTES
) -> None:
    """Write config.json and the weights into an existing folder.

    Args:
        config: further keys of config.json, such as the ids that start and end a text.
        shard_bytes: the size above which the weights go into several files with an index.
    """
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    written = family.format.config_for(model.spec) | {"dtype": dtype}
    given = {key: value for key, value in (config or {}).items() if value is not None or key not in written}
    atomic.write_json(folder / "config.json", written | given)
    rules = for_model(family.format.rules_for(model.spec), model.spec.num_layers, shapes(model))
    sizes = exported_bytes(model, rules)
    groups = shards(sizes, shard_bytes)
    by_name = {rule.theirs: rule for rule in rules}
    for number, group in enumerate(groups, start=1):
        save(folder / _shard_name(number, len(groups)), dict(exported(model, [by_name[name] for name in group])))
    if len(groups) > 1:
        places = {name: _shard_name(n, len(groups)) for n, group in enumerate(groups, start=1) for name in group}
        index = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": places}
        atomic.write_json(folder / INDEX, index)


def compare(model: Model, folder: Path) -> None:
    """Read a folder that was just written, and compare it with the model to the bit.

    Raises:
        CheckpointError: names the tensor that differs.
    """
    kept = model.state_dict()
    for name, tensor in read_model(folder)[1].state_dict().items():
        if not torch.equal(_bytes(tensor), _bytes(kept[name].detach().to("cpu"))):
            raise CheckpointError(name, "does not read back as it was written", "is the disk sound? try again")


def _bytes(tensor: Tensor) -> Tensor:
    """Its bits as they are, so that what is no number equals itself."""
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def _shard_name(number: int, count: int) -> str:
    return SINGLE if count == 1 else f"model-{number:05d}-of-{count:05d}.safetensors"


def _as_named(family: Family, rules: list[Rule], names: list[str]) -> list[Rule]:
    """The rules with the names of this file: with or without the family's prefix, and older ones of norms."""
    present = set(names)

    def named(rule: Rule) -> Rule:
        found = (name for name in _spellings(rule.theirs, family.format.prefix) if name in present)
        return replace(rule, theirs=next(found, rule.theirs))

    return [named(rule) for rule in rules]


def _spellings(name: str, prefix: str) -> Iterator[str]:
    """What a tensor may be called: a file that was saved without the head has no prefix."""
    for spelt in (name, name.removeprefix(prefix), prefix + name):
        yield spelt
        yield spelt.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")


def _copies(family: Family, rules: list[Rule], tensors: Tensors) -> list[str]:
    """Patterns of the tensors that a file repeats although the model has them once; they must be the same."""
    wanted, present = {rule.theirs for rule in rules}, set(tensors.names())
    sources = {rule.ours[0]: rule.theirs for rule in rules if len(rule.ours) == 1}
    found = []
    for copy, parameter in family.format.copies.items():
        original = sources.get(parameter)
        if copy not in present - wanted or original is None or original not in present:
            continue  # not there, or the original is what is missing
        one, other = tensors.mapped(original), tensors.mapped(copy)
        if one.dtype != other.dtype or not torch.equal(one, other):
            cause = f"differs from {original}, though the configuration ties them"
            raise CheckpointError(copy, cause, "set tie_word_embeddings to false")
        found.append(re.escape(copy))
    return found
