"""Matrices as each low-bit method stores them, packed bit by bit, with the numbers that they stand for.

The numbers follow the published arithmetic of each method's library, written out here for one number at a time.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
Stored = dict[str, Tensor]  # by the ending of its name


@dataclass(frozen=True)
class Method:
    """A published method with its settings.

    Attributes:
        settings: the `quantization_config`.
        make: of a generator, rows and columns: what is stored, by ending, and the matrix in a type.
        beside: scales of activations, by ending.
    """

    settings: dict[str, Any]
    make: Callable[[torch.Generator, int, int, torch.dtype], tuple[Stored, Tensor]]
    beside: Stored = field(default_factory=dict)


def drawn(g: torch.Generator, most: int, *shape: int) -> Tensor:
    """Whole numbers from 0 to `most`."""
    return torch.randint(0, most + 1, shape, generator=g)


def scales(g: torch.Generator, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Positive numbers around 0.01."""
    return (torch.rand(shape, generator=g) * 0.02 + 1e-4).to(dtype)


def words(numbers: Tensor, bits: int) -> Tensor:
    """The numbers of each row one after the other, from the lowest bit of words of 32 on."""
    rows = []
    for row in numbers.tolist():
        whole = sum(number << (bits * place) for place, number in enumerate(row))
        count = -(-len(row) * bits // 32)
        rows.append([(whole >> (32 * word)) & 0xFFFFFFFF for word in range(count)])
    return torch.tensor(rows, dtype=torch.int64).to(torch.int32)


def float8(g: torch.Generator, *shape: int) -> Tensor:
    """All finite FP8 numbers, drawn."""
    octets = drawn(g, 255, *shape).to(torch.uint8)
    octets[(octets & 0x7F) == 0x7F] = 0  # not a number
    return octets.view(torch.float8_e4m3fn)


def spread(scale: Tensor, rows: int, columns: int, block: tuple[int, int]) -> Tensor:
    """Each scale over its block."""
    return torch.stack(
        [torch.stack([scale[row // block[0], column // block[1]] for column in range(columns)]) for row in range(rows)]
    )


def fp4_values(nibbles: Tensor) -> Tensor:
    """The numbers of four bits each: one of sign."""
    flat = [(-1.0 if nibble & 8 else 1.0) * E2M1[nibble & 7] for nibble in nibbles.flatten().tolist()]
    return torch.tensor(flat).view(nibbles.shape)


def fp4_octets(nibbles: Tensor) -> Tensor:
    """Two in a byte, the first in the lower half."""
    return (nibbles[..., 0::2] | nibbles[..., 1::2] << 4).to(torch.uint8)


def fp8_blocks(block: tuple[int, int], scale_dtype: torch.dtype = torch.float32) -> Any:
    def make(g: torch.Generator, rows: int, columns: int, dtype: torch.dtype) -> tuple[Stored, Tensor]:
        weight = float8(g, rows, columns)
        scale = scales(g, -(-rows // block[0]), -(-columns // block[1]), dtype=scale_dtype)
        numbers = weight.float() * spread(scale.float(), rows, columns, block)
        return {".weight": weight, ".weight_scale_inv": scale}, numbers.to(dtype)

    return make


def fp8_scale(ending: str, shape: Callable[[int, int], tuple[int, ...]], in_result_type: bool = False) -> Any:
    def make(g: torch.Generator, rows: int, columns: int, dtype: torch.dtype) -> tuple[Stored, Tensor]:
        weight, scale = float8(g, rows, columns), scales(g, *shape(rows, columns))
        each = scale.reshape(-1, 1).expand(rows, columns)
        numbers = weight.to(dtype) * each.to(dtype) if in_result_type else weight.float() * each
        return {".weight": weight, ending: scale}, numbers.to(dtype)

    return make


def mxfp8(g: torch.Generator, rows: int, columns: int, dtype: torch.dtype) -> tuple[Stored, Tensor]:
    weight, exponents = float8(g, rows, columns), (drawn(g, 20, rows, columns // 32) + 110).to(torch.uint8)
    numbers = weight.float() * spread(2.0 ** (exponents.float() - 127), rows, columns, (1, 32))
    return {".weight": weight, ".weight_scale_inv": exponents}, numbers.to(dtype)


def deepseek_v4(g: torch.Generator, rows: int, columns: int, dtype: torch.dtype) -> tuple[Stored, Tensor]:
    nibbles, exponents = drawn(g, 15, rows, columns), (drawn(g, 20, rows, columns // 32) + 110).to(torch.uint8)
    numbers = fp4_values(nibbles) * spread(2.0 ** (exponents.float() - 127), rows, columns, (1, 32))
    stored = {".weight": fp4_octets(nibbles).view(torch.int8), ".scale": exponents.view(torch.float8_e8m0fnu)}
    return stored, numbers.to(dtype)


def nvfp4_modelopt(g: torch.Generator, rows: int, columns: int, dtype: torch.dtype) -> tuple[Stored, Tensor]:
    nibbles, whole = drawn(g, 15, rows, columns), scales(g).reshape(())
    scale = float8(g, rows, columns // 16)
    numbers = fp4_values(nibbles) * spread(scale.float() * whole, rows, columns, (1, 16))
    return {".weight": fp4_octets(nibbles), ".weight_scale": scale, ".weight_scale_2": whole}, numbers.to(dtype)


def nvfp4_compressed(g: torch.Generator, rows: int, columns: int, dtype: torch.dtype) -> tuple[Stored, Tensor]:
    nibbles, whole = drawn(g, 15, rows, columns), 1 / scales(g, 1)
    scale = float8(g, rows, columns // 16)
    numbers = fp4_values(nibbles) * spread(scale.float() / whole, rows, columns, (1, 16))
    stored = {".weight_packed": fp4_octets(nibbles), ".weight_scale": scale, ".weight_global_scale": whole}
    return stored, numbers.bfloat16().to(dtype)


def mxfp4_compressed(g: torch.Generator, rows: int, columns: int, dtype: torch.dtype) -> tuple[Stored, Tensor]:
    nibbles, exponents = drawn(g, 15, rows, columns), (drawn(g, 20, rows, columns // 32) + 110).to(torch.uint8)
    numbers = fp4_values(nibbles) * spread(2.0 ** (exponents.float() - 127), rows, columns, (1, 32))
    return {".weight_packed": fp4_octets(nibbles), ".weight_scale": exponents}, numbers.to(dtype)


def packed(bits: int, group: int | None, symmetric: bool, scale_dtype: torch.dtype) -> Any:
    def make(g: torch.Generator, rows: int, columns: int, dtype: torch.dtype) -> tuple[Stored, Tensor]:
        width, most, half = group or columns, 2**bits - 1, 2 ** (bits - 1)
        numbers, zeros = drawn(g, most, rows, columns), drawn(g, most, rows, columns // width)
        scale = scales(g, rows, columns // width, dtype=scale_dtype)
        stored = {
            ".weight_packed": words(numbers, bits),
            ".weight_scale": scale,
            ".weight_shape": torch.tensor([rows, columns]),
        }
        if symmetric:
            zeros = torch.full_like(zeros, half)
        else:
            stored[".weight_zero_point"] = words(zeros.t(), bits).t().contiguous()
        differences = numbers - spread(zeros, rows, columns, (1, width))
        return stored, (differences.to(scale_dtype) * spread(scale, rows, columns, (1, width))).to(dtype)

    return make


def int8_rows(symmetric: bool) -> Any:
    def make(g: torch.Generator, rows: int, columns: int, dtype: torch.dtype) -> tuple[Stored, Tensor]:
        numbers, zeros = (drawn(g, 255, rows, count) - 128 for count in (columns, 1))
        scale = scales(g, rows, 1, dtype=torch.bfloat16)
        stored = {".weight": numbers.to(torch.int8), ".weight_scale": scale}
        if not symmetric:
            stored[".weight_zero_point"] = zeros.to(torch.int8)
            numbers = numbers - zeros
        return stored, (numbers.bfloat16() * scale).to(dtype)

    return make


def gptq(
    bits: int, group: int, by_activation: bool = False, offset: int = 1, dtype: torch.dtype = torch.float16
) -> Any:
    def make(g: torch.Generator, rows: int, columns: int, result: torch.dtype) -> tuple[Stored, Tensor]:
        most, groups = 2**bits - 1, columns // group
        numbers, zeros = drawn(g, most, rows, columns), drawn(g, most, rows, groups)
        scale = scales(g, rows, groups, dtype=dtype)
        order = torch.arange(columns) // group
        order = order[torch.randperm(columns, generator=g)] if by_activation else order
        stored = {
            ".qweight": words(numbers, bits).t().contiguous(),
            ".qzeros": words(((zeros - offset) % (most + 1)).t(), bits),
            ".scales": scale.t().contiguous(),
            ".g_idx": order.to(torch.int32),
        }
        return stored, (scale[:, order].float() * (numbers - zeros[:, order])).to(result)

    return make


def awq(group: int, dtype: torch.dtype = torch.float16) -> Any:
    def make(g: torch.Generator, rows: int, columns: int, result: torch.dtype) -> tuple[Stored, Tensor]:
        numbers, zeros = drawn(g, 15, columns, rows), drawn(g, 15, columns // group, rows)
        scale = scales(g, columns // group, rows, dtype=dtype)
        order = [8 * word + place for word in range(rows // 8) for place in (0, 2, 4, 6, 1, 3, 5, 7)]
        stored = {".qweight": words(numbers[:, order], 4), ".qzeros": words(zeros[:, order], 4), ".scales": scale}
        each = torch.arange(columns) // group
        return stored, ((numbers - zeros[each]) * scale[each].float()).t().to(result)

    return make


def compressed(form: str, **weights: Any) -> dict[str, Any]:
    group = {"format": form, "targets": ["Linear"], "weights": weights}
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": {"group_0": group}, "ignore": []}


def packed_method(bits: int, group: int | None, symmetric: bool, scale_dtype: torch.dtype = torch.bfloat16) -> Method:
    strategy = {"strategy": "group", "group_size": group} if group else {"strategy": "channel"}
    settings = compressed("pack-quantized", num_bits=bits, type="int", symmetric=symmetric, **strategy)
    return Method(settings, packed(bits, group, symmetric, scale_dtype))


STATIC = {".input_scale": torch.tensor(0.5)}
FLOAT = {"num_bits": 8, "type": "float"}
MODELOPT = {"producer": {"name": "modelopt"}, "quant_method": "modelopt"}
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic"}
METHODS: dict[str, Method] = {
    "fp8 blocks": Method(FP8 | {"weight_block_size": [128, 128]}, fp8_blocks((128, 128))),
    "fp8 small blocks": Method(FP8 | {"weight_block_size": [16, 32]}, fp8_blocks((16, 32), torch.bfloat16)),
    "fp8 per tensor": Method(FP8, fp8_scale(".weight_scale_inv", lambda rows, columns: ()), STATIC),
    "fp8 per tensor of AutoFP8": Method(FP8, fp8_scale(".weight_scale", lambda rows, columns: ()), STATIC),
    "fp8 with nvfp4": Method(FP8 | {"quant_algo": "MIXED_PRECISION"}, nvfp4_modelopt, STATIC),
    "mxfp8": Method({"quant_method": "mxfp8", "weight_block_size": [1, 32], "scale_fmt": "ue8m0"}, mxfp8),
    "fp8 with fp4": Method(FP8 | {"weight_block_size": [128, 128], "scale_fmt": "ue8m0"}, deepseek_v4),
    "fbgemm_fp8": Method(
        {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0},
        fp8_scale(".weight_scale", lambda rows, columns: (rows, 1)),
        {".input_scale_ub": torch.tensor([1200.0])},
    ),
    "modelopt fp8": Method(
        MODELOPT | {"quant_algo": "FP8"}, fp8_scale(".weight_scale", lambda rows, columns: (), True), STATIC
    ),
    "modelopt fp8 rows": Method(
        MODELOPT | {"quant_algo": "FP8_PER_CHANNEL_PER_TOKEN"},
        fp8_scale(".weight_scale", lambda rows, columns: (rows,), True),
    ),
    "modelopt nvfp4": Method(MODELOPT | {"quant_algo": "NVFP4", "group_size": 16}, nvfp4_modelopt, STATIC),
    "compressed fp8": Method(
        compressed("float-quantized", strategy="tensor", **FLOAT),
        fp8_scale(".weight_scale", lambda rows, columns: (1,)),
        STATIC,
    ),
    "compressed fp8 rows": Method(
        compressed("float-quantized", strategy="channel", **FLOAT),
        fp8_scale(".weight_scale", lambda rows, columns: (rows, 1)),
    ),
    "compressed int8": Method(
        compressed("int-quantized", num_bits=8, type="int", symmetric=True, strategy="channel"), int8_rows(True)
    ),
    "compressed int8 with zeros": Method(
        compressed("int-quantized", num_bits=8, type="int", symmetric=False, strategy="channel"), int8_rows(False)
    ),
    "compressed nvfp4": Method(
        compressed("nvfp4-pack-quantized", num_bits=4, type="float", strategy="tensor_group", group_size=16),
        nvfp4_compressed,
        {".input_global_scale": torch.tensor([2.0])},
    ),
    "compressed mxfp4": Method(
        compressed("mxfp4-pack-quantized", num_bits=4, type="float", strategy="group", group_size=32), mxfp4_compressed
    ),
    **{
        f"compressed int{bits} {'' if symmetric else 'with zeros '}{group or 'rows'}": packed_method(
            bits, group, symmetric
        )
        for bits, group, symmetric in (
            (4, 32, True), (4, 32, False), (4, None, True), (8, None, False), (3, 32, True), (2, 16, False)
        )
    },
    "compressed int4 in float16": packed_method(4, 32, False, torch.float16),
    **{
        f"gptq {bits}": Method({"quant_method": "gptq", "bits": bits, "group_size": 32}, gptq(bits, 32))
        for bits in (2, 3, 4, 8)
    },
    "gptq by activation": Method({"quant_method": "gptq", "bits": 4, "desc_act": True}, gptq(4, 16, True)),
    "gptq in bfloat16": Method({"quant_method": "gptq", "bits": 4}, gptq(4, 32, dtype=torch.bfloat16)),
    "gptq second convention": Method(
        {"quant_method": "gptq", "bits": 4, "checkpoint_format": "gptq_v2"}, gptq(4, 32, offset=0)
    ),
    **{
        f"auto-round {form}": Method(
            {"quant_method": "auto-round", "bits": bits, "packing_format": form, "data_type": "int"},
            gptq(bits, 32, offset=offset),
        )
        for form, bits, offset in (("auto_round:auto_gptq", 4, 1), ("auto_round:gptq", 2, 1), ("auto_round", 8, 0))
    },
    "auto-round awq": Method(
        {"quant_method": "auto-round", "bits": 4, "packing_format": "auto_round:auto_awq", "group_size": 32}, awq(32)
    ),
    "awq": Method({"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm"}, awq(32)),
}  # fmt: skip
