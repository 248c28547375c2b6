"""Read and write Hugging Face folders: config.json and safetensors."""

import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from archetype.convert.apply import export_sizes, export_tensors, load_tensors, published_shapes, shapes_of
from archetype.convert.infer.names import TABLES, prediction_tensors
from archetype.convert.infer.proofs import split_overrides
from archetype.convert.sentence_transformers.files import read_files
from archetype.convert.sentence_transformers.head import with_head_of
from archetype.convert.sentence_transformers.weights import attach_head
from archetype.convert.source import read_hf_spec
from archetype.errors import CheckpointError, LeftOut, Notice
from archetype.families import Family
from archetype.families.as_read import named_dtype, with_dtype, with_predictions, with_spec
from archetype.families.format import TIED
from archetype.families.prediction_layers import REMEDY
from archetype.families.rules import Rule, for_model
from archetype.io import atomic
from archetype.io.low_bit.settings import read_settings, without_settings
from archetype.io.low_bit.tensors import LowBitTensors
from archetype.io.tensors import DTYPES, SHARD_BYTES, Selected, Tensors, save
from archetype.io.weight_files import INDEX, unread_set
from archetype.io.yaml import read_mapping
from archetype.models.build import Model, build_on_meta, check_fits_memory
from archetype.models.spec import ModelSpec
from archetype.spec.edit import assign

# Names of norms in the files of other versions, or of other kernels, of a library.
OTHER_NAMES = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta", "g_norm_swish_gate": "g_norm"}


def read_model(
    folder: Path,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
    allow_pickle: bool = False,
    overrides: Sequence[str] = (),
    further_tokens: bool = False,
) -> tuple[Family, Model]:
    """Read a model from a folder. Weights that need no conversion are mapped from the file.

    Args:
        folder: folder with config.json and model.safetensors, or with an index and shards.
        dtype: dtype of the weights (default: as in the file).
        device: device of the weights (default: CPU).
        allow_pickle: whether to read pytorch_model.bin if there are no safetensors files.
        overrides: path=value changes to the specification, or LAYOUT=value for layouts that the files do not determine.
        further_tokens: whether to read the layers for multi-token prediction too.

    Raises:
        CheckpointError: a file, key or tensor is wrong.
    """
    settings, changes = split_overrides(overrides)
    family, spec = read_hf_spec(folder, lambda: open_tensors(folder, allow_pickle).shapes(), settings=settings)
    files = read_files(folder, allow_pickle)
    spec = assign(with_head_of(spec, files), changes)
    family = with_spec(family, bare := spec.without_sentence_head())
    if further_tokens:
        # keys and tensor names say which prediction layers there are
        values, names = (
            without_settings(read_mapping(folder / "config.json")),
            open_tensors(folder, allow_pickle).names(),
        )
        try:
            family = with_predictions(family, spec, values, names)
        except CheckpointError as error:
            raise error.at(str(folder)) from None
        spec = bare = family.format.spec_from(values)
    ignored = _head_tensors(folder, family, spec, allow_pickle)
    model = _read_weights(folder, family, bare, dtype, device, allow_pickle, ignored)
    if spec.head.embeds:
        attach_head(model, spec.head, files)
    return family, model


def _head_tensors(folder: Path, family: Family, spec: ModelSpec, allow_pickle: bool) -> list[str]:
    # tensors of the head in config.json, if modules.json replaces that head with a sentence head
    if not spec.head.embeds:
        return []
    tensors = open_tensors(folder, allow_pickle)
    described, names = read_hf_spec(folder, tensors.shapes, warn=False)[1], tensors.names()
    read = []
    for model in (described, spec.without_sentence_head()):
        rules = for_model(family.format.rules_for(model), model.num_layers, shapes_of(build_on_meta(model)))
        read.append({rule.hf for rule in with_names_of_file(family, rules, names)})
    copies = {copy for copy, parameter in family.format.copies.items() if parameter.startswith("lm_head.")}
    return sorted((copies | read[0] - read[1]) & set(names))


def read_left_out(folder: Path, family: Family, spec: ModelSpec, allow_pickle: bool = False) -> Mapping[str, Tensor]:
    """Return the weights in a folder that the model does not use, such as an image encoder. They are read on access.

    Warns:
        LeftOut: tensors of a registered family are unused. For other families, `read_model` has already warned.
    """
    tensors = open_tensors(folder, allow_pickle)
    names = prediction_tensors(tensors.names()) if family.reading is None else family.reading.left_out
    if family.reading is None and names:
        cause = f"{len(names)} tensors left out, such as {names[0]}, for multi-token prediction"
        warnings.warn(LeftOut(f"{folder}: {cause}; they are kept and written back"), stacklevel=2)
    names = (*names, *_head_tensors(folder, family, spec, allow_pickle))
    return Selected(tensors, (name for name in names if not TABLES.fullmatch(name)))


def open_tensors(folder: Path, allow_pickle: bool = False, dtype: torch.dtype | None = None) -> Tensors:
    """Open the tensors of a folder. Quantized tensors are dequantized on access.

    Args:
        dtype: dtype of dequantized tensors (default: dtype in config.json, or dtype of the other tensors).

    Raises:
        CheckpointError: the folder has no weights, or they are quantized with an unsupported method.
    """
    tensors, file = Tensors.open(folder, allow_pickle), folder / "config.json"
    config = read_mapping(file)
    if (settings := read_settings(config, folder)) is None:
        return tensors
    if dtype is None and (name := named_dtype(config)) in DTYPES:
        dtype = DTYPES[name]
    try:
        return LowBitTensors(tensors, settings, dtype)
    except CheckpointError as error:
        raise error.at(str(folder)) from None


def _read_weights(
    folder: Path,
    family: Family,
    spec: ModelSpec,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
    allow_pickle: bool = False,
    left_out: Iterable[str] = (),
) -> Model:
    tensors = open_tensors(folder, allow_pickle, dtype)
    if (unread := unread_set(folder)) is not None:
        warnings.warn(Notice(f"{folder}: {unread}"), stacklevel=2)
    names = tensors.names()
    if spec.num_layers > len(names):  # refuse before building that many layers
        cause = f"describes {spec.num_layers} layers, but there are only {len(names)} tensors"
        raise CheckpointError(str(folder / "config.json"), cause, "does it describe this checkpoint?")
    model = build_on_meta(spec)
    if dtype is not None:
        # without a dtype weights are mapped from the file, and need no memory of their own
        check_fits_memory(model.to(dtype), spec.name or str(folder))
    try:
        rules = for_model(family.format.rules_for(spec), spec.num_layers, shapes_of(model))
        rules = with_names_of_file(family, rules, names)
        copies = _tied_copies(family, rules, tensors)
        # patterns of tensors that may be in the file although no rule names them
        ignored = (*family.format.ignored, *copies, *map(re.escape, (*prediction_tensors(names), *left_out)))
        load_tensors(model, tensors, rules, ignored, dtype, device)
        _check_constants(family, spec, tensors)
    except CheckpointError as error:
        raise error.at(str(folder)) from None
    return model.eval()


def write_model(
    model: Model,
    family: Family,
    folder: Path,
    config: dict[str, Any] | None = None,
    shard_bytes: int = SHARD_BYTES,
    left_out: Mapping[str, Tensor] = MappingProxyType({}),
) -> None:
    """Write config.json and the weights into an existing folder.

    Args:
        model: model with a specification that the family's format can express.
        config: additional keys for config.json, such as the ids of bos and eos.
        shard_bytes: size above which the weights are split into several files with an index.
        left_out: additional tensors, written unchanged.
    """
    from huggingface_hub import split_state_dict_into_shards_factory

    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    keys = family.format.config_for(model.spec)
    if family.reading is not None:  # keep the keys as read, which include those in `config`
        keys = with_dtype(keys, dtype)
    else:
        keys |= {"dtype": dtype}
        # a null of the caller must not erase a key that the format has written
        keys |= {key: value for key, value in (config or {}).items() if value is not None or key not in keys}
    atomic.write_json(folder / "config.json", keys)
    rules = for_model(family.format.rules_for(model.spec), model.spec.num_layers, published_shapes(model))
    by_name, state = {rule.hf: rule for rule in rules}, model.state_dict()
    for rule in rules:  # of parameters that one tensor of the file stores, such as a norm that X-MOD applies twice
        mine, same = rule.params[0], by_name[rule.hf].params[0]
        if mine != same and not torch.equal(state[mine], state[same]):
            raise CheckpointError(mine, f"differs from {same}, and {rule.hf} stores both", "make them equal")
    # by sizes alone, so that only one shard's tensors are built at a time
    shards = split_state_dict_into_shards_factory(
        export_sizes(model, rules) | {name: tensor.nbytes for name, tensor in left_out.items()},
        get_storage_size=lambda size: size,
        filename_pattern="model{suffix}.safetensors",
        max_shard_size=shard_bytes,
    )
    for file, names in shards.filename_to_tensors.items():
        tensors = dict(export_tensors(model, [by_name[name] for name in names if name in by_name]))
        save(folder / file, tensors | {name: left_out[name] for name in names if name in left_out})
    if shards.is_sharded:
        atomic.write_json(folder / INDEX, {"metadata": shards.metadata, "weight_map": shards.tensor_to_filename})


def with_copies(model: Model, family: Family, left_out: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Return the unused tensors. Tensors that duplicate a parameter of the model get the parameter's current value."""
    state = model.state_dict()
    copies = {name: param for name, param in family.format.copies.items() if name in left_out and param in state}
    if not copies:
        return left_out
    return {**left_out, **{name: state[param].detach().clone() for name, param in copies.items()}}


def compare(model: Model, family: Family, folder: Path, left_out: Mapping[str, Tensor] = MappingProxyType({})) -> None:
    """Read a folder back and verify that every tensor is bit-identical.

    Raises:
        CheckpointError: a tensor differs.
    """
    registered = family.reading is None
    spec = with_head_of(read_hf_spec(folder)[1], read_files(folder)) if registered else model.spec
    # without the sentence head, which is stored in other files
    state = _read_weights(folder, family, spec.without_sentence_head(), left_out=left_out).state_dict()
    expected = {name: tensor.detach().to("cpu") for name, tensor in model.state_dict().items()}
    for mine, theirs in ((expected, state), (left_out, Selected(Tensors.open(folder), left_out))):
        for name, tensor in theirs.items():
            if not torch.equal(_bits(tensor), _bits(mine[name])):
                raise CheckpointError(name, "reads back differently than it was written", "check the disk, try again")


def _bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)  # as bytes, NaN equals NaN


def with_names_of_file(family: Family, rules: list[Rule], names: list[str]) -> list[Rule]:
    """Return the rules with the tensor names in the file: with or without the prefix, and with old names for norms."""
    present = set(names)

    def renamed(rule: Rule) -> Rule:
        spellings = (name for name in _spellings(rule.hf, family.format.prefix) if name in present)
        return replace(rule, hf=next(spellings, rule.hf))

    return [renamed(rule) for rule in rules]


def _spellings(name: str, prefix: str) -> Iterator[str]:
    # a file saved without the head has no prefix
    for spelling in (name, name.removeprefix(prefix), prefix + name):
        yield spelling
        for name_here, name_there in OTHER_NAMES.items():
            yield spelling.replace(name_here, name_there)


def _check_constants(family: Family, spec: ModelSpec, tensors: Tensors) -> None:
    # numbers that the model computes and a file repeats, perhaps rounded to bfloat16
    names = {*tensors.names()}
    for name, numbers in (family.format.constants(spec) if family.format.constants else {}).items():
        if name in names:
            stored, expected = tensors.mapped(name).double().flatten(), torch.tensor(numbers, dtype=torch.float64)
            if stored.shape != expected.shape or not torch.allclose(stored, expected, rtol=2**-8, atol=0.0):
                raise CheckpointError(name, "differs from what this family computes", "is the file complete?")


def _tied_copies(family: Family, rules: list[Rule], tensors: Tensors) -> list[str]:
    # patterns of tensors that duplicate a tied one, after checking that they are equal
    used, present = {rule.hf for rule in rules}, set(tensors.names())
    sources = {rule.params[0]: rule.hf for rule in rules if len(rule.params) == 1 and rule.rows is None}
    patterns = []
    for copy, parameter in family.format.copies.items():
        original = sources.get(parameter)
        if copy not in present - used or original is None or original not in present:
            continue  # the copy is not stored, or is stored instead of the original
        expected, duplicate = tensors.mapped(original), tensors.mapped(copy)
        if expected.dtype != duplicate.dtype or not torch.equal(expected, duplicate):
            if copy not in TIED:
                raise CheckpointError(copy, f"differs from {original}, of which it should be a copy", REMEDY)
            cause = f"differs from {original}, though the configuration ties them"
            raise CheckpointError(copy, cause, "set tie_word_embeddings to false")
        patterns.append(re.escape(copy))
    return patterns
