"""A model's parameters as the tensors of a GGUF file: in its names, order of features and types."""

import logging
from collections.abc import Iterator

import torch
from torch import Tensor

from archetype.convert.apply import export_tensors, shapes_of
from archetype.convert.gguf.keys import Gguf
from archetype.convert.gguf.quantize import BLOCK, BLOCKS, dequantize, own_blocks, quantize
from archetype.convert.gguf.rope import FACTORS, frequency_factors
from archetype.families.rules import for_model
from archetype.models.build import Model, build_on_meta
from archetype.models.spec import ModelSpec
from archetype.parts.experts.module import Experts
from archetype.weights.packed import PackedMatrix
from archetype.weights.quantized import QuantizedMatrix

# What llama.cpp wants in float32, whatever the type of the rest.
EXACT = (
    "_norm.weight", "ssm_conv1d.weight", "ffn_gate_inp.weight", "position_embd.weight", "token_types.weight",
    "attn_rel_b.weight",
)  # fmt: skip

# The types of a file by their names: of torch, or blocks in bytes.
TYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16} | dict.fromkeys(BLOCKS, torch.uint8)
log = logging.getLogger(__name__)


def gguf_tensors(model: Model, target: Gguf, type: str) -> dict[str, Tensor]:
    """The tensors of the file, by name: matrices in its type, norms and vectors in float32.

    A model of 8 or 4 bits gives q8_0 or q4_0 its own numbers and scales, and its other matrices as they are. In another
    type all are rounded again, and a warning says by how much.

    Args:
        model: whose parameters they are.
        target: how its family stands in GGUF.
        type: f32, f16, bf16; q8_0 and q4_0 in bytes, but in f16 where rows are no multiple of 32 weights.
    """
    tensors: dict[str, Tensor] = {}
    own, squares = own_type(model), torch.zeros(2)
    for name, stored in _stored(model, target, type if type == own and own in BLOCKS else None):
        tensor = stored.detach()
        if is_exact_in_file(name, tensor.dim()):
            tensors[name] = _numbers(tensor, type).contiguous()
        elif type == own:
            tensors[name] = tensor.contiguous()
        elif type not in BLOCKS:
            tensors[name] = tensor.to(TYPES[type]).contiguous()
        elif tensor.shape[-1] % BLOCK:
            log.info("%s: rows of %d weights are no multiple of %d: f16, not %s", name, tensor.shape[-1], BLOCK, type)
            tensors[name] = tensor.half().contiguous()
        else:
            tensors[name] = quantize(tensor, type)
        if own in BLOCKS and type != own:
            numbers = tensor.float()
            squares += torch.stack(((_numbers(tensors[name], type) - numbers).square().sum(), numbers.square().sum()))
    if squares[0]:
        error = float((squares[0] / squares[1]).sqrt())
        log.warning("%s became %s: its numbers were rounded again, with a relative error of %.2g", own, type, error)
    factors = frequency_factors(model.spec)
    return tensors if factors is None else tensors | {FACTORS: torch.tensor(factors)}


def file_shapes(model: ModelSpec, target: Gguf) -> dict[str, tuple[int, ...]]:
    """The names of a model's tensors in the file, with the shapes of parameters."""
    shapes = shapes_of(build_on_meta(model))
    rules = for_model(target.rules, model.num_layers, shapes)
    changes = ((rule, target.change(rule.hf)) for rule in rules)
    named = ((rule, [rule.hf] if change is None else change.names(rule.hf)) for rule, change in changes)
    stored = {name: shapes[rule.params[0]] for rule, names in named for name in names}
    factors = frequency_factors(model)
    return stored if factors is None else stored | {FACTORS: (len(factors),)}


def is_exact_in_file(name: str, dimensions: int) -> bool:
    """Whether a tensor is in float32, whatever the type of the rest."""
    return dimensions == 1 or name.endswith(EXACT) or not name.endswith(".weight")


def own_type(model: Model) -> str:
    """The type of a model's matrices, by its name in GGUF; empty where it has none there."""
    for module in model.modules():
        if isinstance(module, QuantizedMatrix):
            return {8: "q8_0", 4: "q4_0"}[module.bits]
        if isinstance(module, PackedMatrix):
            return "bf16"
    return next((name for name, known in TYPES.items() if known == model.dtype), "")


def _numbers(tensor: Tensor, type: str) -> Tensor:
    return dequantize(tensor, type) if tensor.dtype == torch.uint8 else tensor.float()


def _parameters(model: Model, in_blocks: bool) -> dict[str, Tensor]:
    """Each parameter by name; of 8 or 4 bits as blocks, of which rows may be put in order, or as numbers."""
    state = model.state_dict()
    for name, module in model.named_modules():
        if isinstance(module, PackedMatrix):
            for part in module._buffers:
                state.pop(f"{name}.{part}", None)  # one is not stored
            if in_blocks and isinstance(module, QuantizedMatrix):
                matrix = own_blocks(module)
            else:
                matrix = module.unpacked(module.unpacked_dtype)
            stacked = isinstance(model.get_submodule(name.rpartition(".")[0]), Experts)
            state[name] = matrix.unflatten(0, (-1, module.size)) if stacked else matrix
    return state


def _stored(model: Model, target: Gguf, blocks: str | None) -> Iterator[tuple[str, Tensor]]:
    """Each tensor as llama.cpp computes with it; in `blocks` of a type where the model has the numbers of such."""
    state = _parameters(model, blocks in BLOCKS)
    shapes = {name: tuple(tensor.shape) for name, tensor in state.items()}
    for name, tensor in export_tensors(model, for_model(target.rules, model.spec.num_layers, shapes), state):
        if (change := target.change(name)) is None:
            yield name, tensor
        else:
            yield from zip(change.names(name), change.write(tensor, model.spec, blocks), strict=True)
