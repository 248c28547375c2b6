"""Read packed matrices from a weights file."""

import math
import re

import torch
from torch import Tensor, nn

from archetype.errors import CheckpointError
from archetype.io.tensors import Tensors
from archetype.native.products import LosslessRows
from archetype.weights.lossless import BUFFERS, CODES, LosslessMatrix, records_shape
from archetype.weights.packed import PackedMatrix, replace
from archetype.weights.quantized import BITS, GROUP, QuantizedMatrix

REMEDY = "use the weights of the run"
PARTS = {"quants": ("quants", "scales"), "records": BUFFERS}  # {first tensor of a matrix: all its tensors}


def install_packed(
    model: nn.Module, tensors: Tensors, dtype: torch.dtype | None, device: torch.device | None
) -> tuple[str, ...]:
    """Replace parameters of a model with the packed matrices of a file.

    Returns:
        Regular expressions that match the names of their tensors.

    Raises:
        CheckpointError: a matrix belongs to no parameter of the model, or does not fit it.
    """
    patterns = []
    for first, parts in PARTS.items():
        for name in [name.removesuffix(f".{first}") for name in tensors.names() if name.endswith(f".{first}")]:
            try:
                *rows, width = model.get_parameter(name).shape
            except AttributeError:
                cause = "belongs to no parameter of this model"
                raise CheckpointError(f"{name}.{first}", cause, REMEDY) from None
            stored = [_stored(tensors, f"{name}.{part}") for part in parts]
            size = (math.prod(rows), rows[-1], width)
            try:
                matrix = _quantized(stored, *size, dtype) if first == "quants" else _lossless(stored, *size, dtype)
            except ValueError as error:
                raise CheckpointError(f"{name}.{first}", str(error), REMEDY) from None
            replace(model, name, matrix.to(device))
            patterns.append(f"{re.escape(name)}\\.({'|'.join(parts)})")
    return tuple(patterns)


def _stored(tensors: Tensors, name: str) -> Tensor:
    if name not in tensors.names():
        raise CheckpointError(name, "is missing", REMEDY)
    return tensors.stored(name)


def _quantized(parts: list[Tensor], rows: int, size: int, width: int, dtype: torch.dtype | None) -> PackedMatrix:
    quants, scales = parts
    sizes = [(rows, width * bits // 8) for bits in BITS.values()]
    if tuple(quants.shape) not in sizes or tuple(scales.shape) != (rows, width // GROUP):
        shapes = f"{tuple(quants.shape)} and {tuple(scales.shape)}"
        raise ValueError(f"has the shapes {shapes}, which do not fit {rows} x {width}")
    if (quants.dtype, scales.dtype) != (torch.uint8, torch.float16):
        raise ValueError(f"has unexpected dtypes: {quants.dtype} and {scales.dtype}")
    return QuantizedMatrix(quants, scales, size, dtype or torch.float32)


def _lossless(parts: list[Tensor], rows: int, size: int, width: int, dtype: torch.dtype | None) -> PackedMatrix:
    records, high_bytes, starts, exceptions = parts
    records_there, num_exceptions = records_shape(rows, width), exceptions.numel()
    shapes = [records_there, (CODES,), (records_there[0] + 1,), (num_exceptions,)]
    if [tuple(part.shape) for part in parts] != shapes:
        shapes_there = ", ".join(str(tuple(part.shape)) for part in parts)
        raise ValueError(f"the parts have the shapes {shapes_there}, which do not fit {rows} x {width}")
    if [part.dtype for part in parts] != [torch.uint8, torch.uint8, torch.int32, torch.int32]:
        raise ValueError(f"the parts have unexpected dtypes: {', '.join(str(part.dtype) for part in parts)}")
    columns = exceptions >> 13
    # Kernels use these numbers as indices without a check.
    is_in_order = starts[0] == 0 and starts[-1] == num_exceptions and (starts.diff() >= 0).all()
    if not is_in_order or ((columns < 0) | (columns >= width)).any():
        raise ValueError("has exceptions outside its rows")
    return LosslessMatrix(LosslessRows(records, high_bytes, starts, exceptions, size, width), dtype or torch.bfloat16)
