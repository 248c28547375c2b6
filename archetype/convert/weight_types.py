"""Dtypes of weights that differ between tensors: in GGUF files, and in models as published."""

import re
from collections.abc import Mapping
from fractions import Fraction
from math import prod
from pathlib import Path
from typing import Any

from archetype.convert.gguf.header import is_gguf
from archetype.convert.gguf.types import FILE_TYPES
from archetype.convert.source import PublishedConfig, find_config, read_config
from archetype.dtypes import WeightTypes
from archetype.errors import CheckpointError, SpecError
from archetype.families.index import preset_facts
from archetype.families.registry import FAMILIES
from archetype.io import hub, weight_files
from archetype.io.low_bit.header import low_bit_tensors
from archetype.io.low_bit.settings import read_settings
from archetype.io.weight_files import Header, TensorHeader
from archetype.io.yaml import read_mapping
from archetype.models.spec import ModelSpec

PUBLISHED = "published"


def weight_types(name: str, model: ModelSpec, source: Any) -> str | WeightTypes:
    """Return the dtypes of a model's weights for `--dtype`.

    Args:
        name: one dtype for all weights, a GGUF file type such as q4_k_m, or `published`.
        source: source of the specification.

    Raises:
        SpecError: llama.cpp does not support the model, or the published dtypes are unknown.
    """
    if name.lower() in FILE_TYPES:
        from archetype.convert.gguf.sizes import gguf_weights  # imported here, since no other type needs torch

        try:
            return gguf_weights(model, name.lower())
        except CheckpointError as error:
            cause = f"{name} is a type of GGUF files, but {error.place}: {error.cause}"
            raise SpecError("dtype", cause, "use a type that is not GGUF's, such as int4") from None
    return _published(model, source) if name == PUBLISHED else name


def _published(model: ModelSpec, source: Any) -> WeightTypes:
    path = Path(source) if isinstance(source, str | Path) else Path()
    if str(source) in preset_facts():
        preset = FAMILIES[preset_facts()[str(source)].family].presets[str(source)]
        if preset.weights:
            return _by_module(model, preset.weights)
    elif is_gguf(path):
        return _of_gguf(path)
    elif path != Path() and (config := find_config(path)) is not None:
        return _of_header(config, _header(config, path))
    cause = f"the dtypes in which {model.name or 'the model'} was published are unknown"
    raise SpecError("dtype", cause, "pass a folder with its safetensors, owner/name, or a dtype such as bfloat16")


def _by_module(model: ModelSpec, weights: Mapping[str, str]) -> WeightTypes:
    from archetype.estimate.rows import module_rows
    from archetype.models.cost import model_cost

    parameters = []
    for row in module_rows(model_cost(model), 1, 1, phases=()):
        dtype = next(dtype for pattern, dtype in weights.items() if re.fullmatch(pattern, row.module))
        bits = WeightTypes.uniform(dtype).weight_bits(row.parameters, row.module)
        parameters.append((row.module, row.parameters, Fraction(bits, 8)))
    return WeightTypes.mixed(PUBLISHED, parameters)


def _of_gguf(path: Path) -> WeightTypes:
    from archetype.convert.gguf.header import read_header
    from archetype.convert.gguf.sizes import types_of_file
    from archetype.convert.gguf.specification import describe

    header = read_header(path)
    read = describe(header)
    sizes = {name: entry.num_bytes for name, entry in header.entries.items()}
    return types_of_file(PUBLISHED, read.model, read.target, sizes)


def _header(config: PublishedConfig, path: Path) -> Header:
    folder = config.file.parent
    if not path.exists():
        return hub.header(path.as_posix())
    if weight_files.has_weights(folder):
        return weight_files.header(folder)
    cause = "has no safetensors next to it to read the types from"
    raise SpecError(str(config.file), cause, "put them there, or name a type such as bfloat16")


def _of_header(config: PublishedConfig, header: Header) -> WeightTypes:
    from archetype.convert.apply import shapes_of, shares
    from archetype.convert.hf_folder import with_names_of_file
    from archetype.families.rules import for_model
    from archetype.models.build import build_on_meta

    settings = read_settings(read_mapping(config.file), config.file.parent)
    sizes = {name: _bytes(tensor) for name, tensor in header.items()}
    for name, tensor in ({} if settings is None else low_bit_tensors(header, settings)).items():
        sizes[name] = sum(_bytes(header[part]) for part in tensor.stored.values())
    family, model = read_config(config, warn=False)
    shapes = shapes_of(build_on_meta(model))
    rules = with_names_of_file(family, for_model(family.format.rules_for(model), model.num_layers, shapes), list(sizes))
    if missing := next((rule.hf for rule in rules if rule.hf not in sizes), None):
        raise SpecError(f"{config.place}: {missing}", "is missing from its folder's tensors", "is the folder complete?")
    return WeightTypes.mixed(PUBLISHED, shares(rules, shapes, sizes.__getitem__))


def _bytes(tensor: TensorHeader) -> int:
    # names of types contain their bits: BF16, F8_E4M3, U8
    bits = re.search(r"\d+", tensor.dtype)
    return prod(tensor.shape) * (8 if bits is None else int(bits[0])) // 8
