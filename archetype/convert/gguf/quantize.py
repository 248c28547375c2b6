"""Quantization to GGUF's block formats: 32 weights with a common float16 scale (ggml's ggml-quants.c), or K-quants.

q8_0: weight = scale * q with 8-bit q and scale = max |weight| / 127.
q4_0: weight = scale * (q - 8) with 4-bit q; the weight of largest magnitude has q = 0.
q5_0: same as q4_0, with 5-bit q and 16 instead of 8.
q5_1: weight = scale * q + minimum with 5-bit q.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from archetype.convert.gguf.header import gguf_library
from archetype.convert.gguf.k_quants import K_QUANTS, SUPER, as_half, quantize_k
from archetype.weights.quantized import QuantizedMatrix

BLOCK = 32  # weights
WEIGHTS_AT_ONCE = 2**22

Blocks = Float[Tensor, "n 32"]


def quantize(tensor: Float[Tensor, "*rows D"], type: str) -> UInt8[Tensor, "*rows bytes"]:
    """Quantize each row to blocks. Each block stores its scale, then its weights.

    Args:
        tensor: matrix whose row length D is a multiple of 32, or of 256 for K-quants.
        type: q8_0, q5_1, q5_0, q4_0, or q2_k to q6_k.
    """
    if type in K_QUANTS:
        return quantize_k(tensor.reshape(-1, SUPER), type).view(*tensor.shape[:-1], -1)
    blocks = tensor.reshape(-1, BLOCK)
    pieces = [BLOCKS[type](piece.float()) for piece in blocks.split(WEIGHTS_AT_ONCE // BLOCK)]
    return torch.cat(pieces).view(*tensor.shape[:-1], -1)


def _q8_0(blocks: Blocks) -> UInt8[Tensor, "n 34"]:
    scale = blocks.abs().amax(1, keepdim=True) / 127
    scaled = blocks * _inverse(scale)
    rounded = (scaled.abs().floor() + (2 * (scaled.abs() % 1)).floor()) * scaled.sign()  # round half away from zero
    return torch.cat((_half_bytes(scale), _bytes(rounded.to(torch.int8))), dim=1)


def _q4_0(blocks: Blocks) -> UInt8[Tensor, "n 18"]:
    scale, levels = _around_zero(blocks, 8)
    return torch.cat((_half_bytes(scale), _halves(levels)), dim=1)


def _q5_0(blocks: Blocks) -> UInt8[Tensor, "n 22"]:
    scale, levels = _around_zero(blocks, 16)
    return torch.cat((_half_bytes(scale), _fifth_bits(levels), _halves(levels & 15)), dim=1)


def _q5_1(blocks: Blocks) -> UInt8[Tensor, "n 24"]:
    least = blocks.amin(1, keepdim=True)
    most = blocks.amax(1, keepdim=True)
    scale = (most - least) / 31
    # the conversion cuts off the fraction, so this rounds
    levels = ((blocks - least) * _inverse(scale) + 0.5).to(torch.uint8)
    return torch.cat((_half_bytes(scale), _half_bytes(least), _fifth_bits(levels), _halves(levels & 15)), dim=1)


def _around_zero(blocks: Blocks, middle: int) -> tuple[Float[Tensor, "n 1"], UInt8[Tensor, "n 32"]]:
    # the weight of largest magnitude gets level 0
    largest = blocks.gather(1, blocks.abs().argmax(1, keepdim=True))
    scale = (largest + 0.0) / -middle  # + 0.0 drops the sign of a zero, as llama.cpp does
    levels = (blocks * _inverse(scale) + (middle + 0.5)).clamp(0, 2 * middle - 1)
    return scale, levels.to(torch.uint8)  # the fraction is cut off


def _halves(levels: UInt8[Tensor, "n 32"]) -> UInt8[Tensor, "n 16"]:
    # 4-bit levels; the second half of a block is stored in the high bits
    return levels[:, : BLOCK // 2] | levels[:, BLOCK // 2 :] << 4


def _fifth_bits(levels: UInt8[Tensor, "n 32"]) -> UInt8[Tensor, "n 4"]:
    # the fifth bit of eight levels per byte, lowest bit first
    return (levels.view(-1, 4, 8) >> 4 << torch.arange(8, dtype=torch.uint8)).sum(2, dtype=torch.uint8)


BLOCKS: dict[str, Callable[[Blocks], Tensor]] = {"q8_0": _q8_0, "q5_1": _q5_1, "q5_0": _q5_0, "q4_0": _q4_0}


def own_blocks(matrix: QuantizedMatrix) -> UInt8[Tensor, "rows bytes"]:
    """Convert an 8-bit or 4-bit matrix to q8_0 or q4_0 blocks with the same integers and scales."""
    quants, scales = matrix.canonical()
    groups = quants.unflatten(1, (scales.shape[1], -1))  # (rows, K / 32, 32 or 16)
    if matrix.bits == 8:
        groups = groups ^ 128  # q - 128 as a signed byte
    else:
        # ours pairs neighbours in a byte; q4_0 pairs weight i with weight i + 16
        unpacked = torch.stack((groups & 15, groups >> 4), dim=-1).flatten(-2)
        groups = unpacked[..., : BLOCK // 2] | unpacked[..., BLOCK // 2 :] << 4
    return torch.cat((_bytes(scales[..., None]), groups), dim=-1).flatten(1)


def dequantize(blocks: UInt8[Tensor, "*rows bytes"], type: str) -> Float[Tensor, "*rows D"]:
    """Dequantize blocks to float32 weights."""
    library = gguf_library()
    return torch.from_numpy(library.quants.dequantize(blocks.numpy(), library.GGMLQuantizationType[type.upper()]))


def _inverse(scale: Tensor) -> Tensor:
    return torch.where(scale == 0, 0.0, 1 / scale)


def _half_bytes(values: Tensor) -> Tensor:
    return _bytes(torch.from_numpy(as_half(values.numpy())))


def _bytes(values: Tensor) -> Tensor:
    return values.view(torch.uint8)
