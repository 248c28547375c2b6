"""Hugging Face folders: config.json and safetensors, read and written."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from archetype.checkpoint import durable
from archetype.checkpoint.apply import exported, exported_bytes, fill, shapes
from archetype.checkpoint.rules import Rule, for_model
from archetype.checkpoint.tensors import INDEX, SHARD_BYTES, SINGLE, Tensors, save, shards
from archetype.errors import CheckpointError
from archetype.families import Family
from archetype.families.source import read_hf_spec
from archetype.model import Model, skeleton
from archetype.model.build import refuse_too_large


def read_model(folder: Path, dtype: torch.dtype | None = None, device: torch.device | None = None) -> Model:
    """The model in a folder, its weights mapped from the file wherever they need no change.

    Args:
        folder: holds config.json and model.safetensors, or an index with its shards.
        dtype: type of the weights (absent: as in the file).
        device: where they go (absent: CPU).
    """
    family, spec = read_hf_spec(folder)
    tensors = Tensors.open(folder)
    if dtype is not None:
        refuse_too_large(spec, dtype.itemsize)
    names = tensors.names()
    if spec.num_layers > len(names):  # said before so many layers are made
        cause = f"describes {spec.num_layers} layers, and there are only {len(names)} tensors"
        raise CheckpointError(str(folder / "config.json"), cause, "does it describe this checkpoint?")
    model = skeleton(spec)
    try:
        rules = _as_named(family, for_model(family.format.rules_for(spec), spec.num_layers, shapes(model)), names)
        copies = _tied_copies(model, rules, tensors)
        fill(model, tensors, rules, (*family.format.ignored, *copies), dtype, device)
    except CheckpointError as error:
        raise error.within(str(folder)) from None
    return model.eval()


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
    durable.write_json(folder / "config.json", written | (config or {}))
    rules = for_model(family.format.rules_for(model.spec), model.spec.num_layers, shapes(model))
    sizes = exported_bytes(model, rules)
    groups = shards(sizes, shard_bytes)
    by_name = {rule.theirs: rule for rule in rules}
    for number, group in enumerate(groups, start=1):
        save(folder / _shard_name(number, len(groups)), dict(exported(model, [by_name[name] for name in group])))
    if len(groups) > 1:
        places = {name: _shard_name(n, len(groups)) for n, group in enumerate(groups, start=1) for name in group}
        index = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": places}
        durable.write_json(folder / INDEX, index)


def _shard_name(number: int, count: int) -> str:
    return SINGLE if count == 1 else f"model-{number:05d}-of-{count:05d}.safetensors"


def _names(model: Model) -> list[str]:
    return list(model.state_dict())


def _as_named(family: Family, rules: list[Rule], names: list[str]) -> list[Rule]:
    """The rules for files that were saved without the head, whose names lack the family's prefix."""
    if any(name.startswith(family.format.prefix) for name in names):
        return rules
    return [replace(rule, theirs=rule.theirs.removeprefix(family.format.prefix)) for rule in rules]


def _tied_copies(model: Model, rules: list[Rule], tensors: Tensors) -> list[str]:
    """The head's table, where a file repeats it though it is tied; it must be the embedding's."""
    if "lm_head.weight" in _names(model) or "lm_head.weight" not in tensors.names():
        return []
    embedding = next(rule.theirs for rule in rules if rule.ours == ("embedding.token.weight",))
    if embedding not in tensors.names():
        return []  # it is the one that is missing
    ours, copy = tensors.mapped(embedding), tensors.mapped("lm_head.weight")
    if ours.dtype != copy.dtype or not torch.equal(ours, copy):
        cause = f"differs from {embedding}, though the configuration ties them"
        raise CheckpointError("lm_head.weight", cause, "set tie_word_embeddings to false")
    return [r"lm_head\.weight"]

