"""Conversion of a model's parameters to the tensors of a GGUF file: names, order of features and types."""

import logging
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from archetype.convert.apply import export_tensors, file_shape, shapes_of
from archetype.convert.gguf.k_quants import as_half
from archetype.convert.gguf.keys import Gguf
from archetype.convert.gguf.limits import DIVIDED
from archetype.convert.gguf.quantize import dequantize, own_blocks, quantize
from archetype.convert.gguf.rope import FACTORS, frequency_factors
from archetype.convert.gguf.types import BLOCKS, FILE_TYPES
from archetype.errors import CheckpointError
from archetype.families.rules import for_model
from archetype.models.build import Model, build_on_meta
from archetype.models.spec import ModelSpec
from archetype.parts.experts.module import Experts
from archetype.weights.packed import PackedMatrix
from archetype.weights.quantized import QuantizedMatrix

NUMBERS = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "i32": torch.int32}
OWN_BLOCKS = {8: "q8_0", 4: "q4_0"}  # bits of a quantized matrix -> type with the same integers and scales
log = logging.getLogger(__name__)


class Stored(NamedTuple):
    """Tensor to be written to a file.

    Attributes:
        type: type name, such as f16 or q6_k.
        data: weights, or the bytes of the blocks in each row.
    """

    type: str
    data: Tensor


def gguf_tensors(model: Model, target: Gguf, type: str, types: Mapping[str, str]) -> dict[str, Stored]:
    """Return the file's tensors by name: matrices in the given types, norms and vectors in float32.

    An 8-bit or 4-bit model keeps its integers and scales in a file of the same type (q8_0, q4_0). Any other type
    rounds all weights again, and a warning states the relative error.

    Args:
        type: file type.
        types: types of the file's tensors, by name.
    """
    tensors: dict[str, Stored] = {}
    native, squares = own_type(model), torch.zeros(2)
    of_blocks = native in OWN_BLOCKS.values()
    block = BLOCKS[FILE_TYPES[type]][0]
    for name, stored in _stored(model, target, type if type == native and of_blocks else None):
        tensor, kind = stored.detach(), types[name]
        if type == native and kind not in ("f32", "i32"):
            # bytes are blocks that stay as they are; matrices that were not quantized keep their type
            stored_type = native if tensor.dtype == torch.uint8 else _name_of(tensor.dtype)
            tensors[name] = Stored(stored_type, tensor.contiguous())
        else:
            weights = dequantize(tensor, native) if tensor.dtype == torch.uint8 else tensor
            tensors[name] = Stored(kind, _in_type(name, weights, kind))
        if kind not in ("f32", "i32") and stored.shape[-1] % block and type != native:
            width = stored.shape[-1]
            log.info(
                "%s: rows of %d weights are not a multiple of %d: stored as %s instead of %s",
                name,
                width,
                block,
                kind,
                type,
            )
        if of_blocks and type != native:
            weights = tensor.float()
            squares += torch.stack(((_numbers(tensors[name]) - weights).square().sum(), weights.square().sum()))
    if squares[0]:
        error = float((squares[0] / squares[1]).sqrt())
        log.warning("%s weights were rounded again to %s, with a relative error of %.2g", native, type, error)
    vectors = constants(model.spec, target)
    return tensors | {name: Stored("f32", torch.tensor(vector)) for name, vector in vectors.items()}


def numbers_of_layers(model: Model, target: Gguf) -> dict[str, list[float]]:
    """Return the keys that hold a parameter of each layer."""
    state, values = model.state_dict(), {key: [0.0] * model.spec.num_layers for key in target.numbers}
    for rule in for_model(target.rules_of(model.spec), model.spec.num_layers, shapes_of(model)) if values else ():
        key, _, layer = rule.hf.rpartition(".")
        if key in values:
            values[key][int(layer)] = float(state[rule.params[0]])
    return values


def file_shapes(
    model: ModelSpec, target: Gguf, shapes: Mapping[str, tuple[int, ...]] | None = None
) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the file's tensors by name.

    Args:
        shapes: shapes of the model's parameters, if they are known.
    """
    shapes = shapes_of(build_on_meta(model)) if shapes is None else shapes
    stored: dict[str, tuple[int, ...]] = {}
    for rule in for_model(target.rules_of(model), model.num_layers, shapes):
        param_shapes = [rule.shape_in(shapes[name]) for name in rule.params]
        shape, change = file_shape(rule, param_shapes), target.change(rule.hf)
        if change is None:
            stored[rule.hf] = shape
        else:
            stored |= zip(change.names(rule.hf), change.shapes(shape, model), strict=True)
    return stored | {name: (len(vector),) for name, vector in constants(model, target).items()}


def constants(model: ModelSpec, target: Gguf) -> dict[str, list[float]]:
    """Return the vectors of the file that hold no parameters, by name."""
    factors = frequency_factors(model) if target.architecture in DIVIDED else None
    return {**target.constants(model), **({} if factors is None else {FACTORS: factors})}


def own_type(model: Model) -> str:
    """Return the GGUF type of a model's matrices; empty if GGUF has no such type."""
    for module in model.modules():
        if isinstance(module, QuantizedMatrix):
            return OWN_BLOCKS[module.bits]
        if isinstance(module, PackedMatrix):
            return "bf16"
    return _name_of(model.dtype)


def _name_of(dtype: torch.dtype) -> str:
    return next((name for name, known in NUMBERS.items() if known == dtype), "")


def _in_type(name: str, weights: Tensor, kind: str) -> Tensor:
    try:
        if kind == "f16" and weights.dtype != torch.float16:
            return torch.from_numpy(as_half(weights.float().contiguous().numpy()))
        return weights.to(NUMBERS[kind]).contiguous() if kind in NUMBERS else quantize(weights, kind)
    except CheckpointError as error:
        raise error.at(name) from None


def _numbers(stored: Stored) -> Tensor:
    return stored.data.float() if stored.type in NUMBERS else dequantize(stored.data, stored.type)


def _parameters(model: Model, in_blocks: bool) -> dict[str, Tensor]:
    # by name; quantized matrices are dequantized unless `in_blocks`
    state = model.state_dict()
    for name, module in model.named_modules():
        if isinstance(module, PackedMatrix):
            for part in module._buffers:
                state.pop(f"{name}.{part}", None)  # not every buffer is part of the state
            if in_blocks and isinstance(module, QuantizedMatrix):
                matrix = own_blocks(module)
            else:
                matrix = module.unpacked(module.unpacked_dtype)
            # a packed stack of experts is one matrix of all their rows: (E rows, D) to (E, rows, D)
            stacked = isinstance(model.get_submodule(name.rpartition(".")[0]), Experts)
            state[name] = matrix.unflatten(0, (-1, module.size)) if stacked else matrix
    return state


def _stored(model: Model, target: Gguf, blocks: str | None) -> Iterator[tuple[str, Tensor]]:
    # in llama.cpp's layout; quantized matrices stay in blocks if `blocks` names their type
    state = _parameters(model, blocks is not None)
    shapes = {name: tuple(tensor.shape) for name, tensor in state.items()}
    for name, tensor in export_tensors(
        model, for_model(target.rules_of(model.spec), model.spec.num_layers, shapes), state
    ):
        if (change := target.change(name)) is None:
            yield name, tensor
        else:
            yield from zip(change.names(name), change.write(tensor, model.spec, blocks), strict=True)
