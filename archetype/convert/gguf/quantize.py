"""The block formats of GGUF: 32 weights of a row share a scale in float16 (ggml's ggml-quants.c).

q8_0: weight = scale * q, with q of 8 bits and the scale max |weight| / 127.
q4_0: weight = scale * (q - 8), with q of 4 bits; the scale takes the weight of the largest magnitude to q = 0.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from archetype.weights.quantized import QuantizedMatrix

BLOCK = 32  # weights
WEIGHTS_AT_ONCE = 2**22

Blocks = Float[Tensor, "n 32"]


def quantize(tensor: Float[Tensor, "*rows D"], type: str) -> UInt8[Tensor, "*rows bytes"]:
    """A tensor's rows as blocks, each its scale and then its weights.

    Args:
        tensor: whose rows have a multiple of 32 weights.
        type: q8_0 or q4_0.
    """
    blocks = tensor.reshape(-1, BLOCK)
    pieces = [BLOCKS[type](piece.float()) for piece in blocks.split(WEIGHTS_AT_ONCE // BLOCK)]
    return torch.cat(pieces).view(*tensor.shape[:-1], -1)


def _q8_0(blocks: Blocks) -> UInt8[Tensor, "n 34"]:
    scale = blocks.abs().amax(1, keepdim=True) / 127
    scaled = blocks * _inverse(scale)
    rounded = (scaled.abs().floor() + (2 * (scaled.abs() % 1)).floor()) * scaled.sign()  # halves away from zero
    return torch.cat((_bytes(scale.half()), _bytes(rounded.to(torch.int8))), dim=1)


def _q4_0(blocks: Blocks) -> UInt8[Tensor, "n 18"]:
    largest = blocks.gather(1, blocks.abs().argmax(1, keepdim=True))
    scale = largest / -8
    shifted = (blocks * _inverse(scale) + 8.5).clamp(0, 15).to(torch.uint8)  # the fraction is cut off
    low, high = shifted[:, : BLOCK // 2], shifted[:, BLOCK // 2 :]
    return torch.cat((_bytes(scale.half()), low | high << 4), dim=1)


BLOCKS: dict[str, Callable[[Blocks], Tensor]] = {"q8_0": _q8_0, "q4_0": _q4_0}


def own_blocks(matrix: QuantizedMatrix) -> UInt8[Tensor, "rows bytes"]:
    """A matrix of 8 or 4 bits in blocks of q8_0 or q4_0, with its own numbers and scales."""
    quants, scales = matrix.canonical()
    groups = quants.unflatten(1, (scales.shape[1], -1))  # (rows, K / 32, 32 or 16)
    if matrix.bits == 8:
        groups = groups ^ 128  # q - 128 as a signed byte
    else:
        numbers = torch.stack((groups & 15, groups >> 4), dim=-1).flatten(-2)
        groups = numbers[..., : BLOCK // 2] | numbers[..., BLOCK // 2 :] << 4
    return torch.cat((_bytes(scales[..., None]), groups), dim=-1).flatten(1)


def dequantize(blocks: UInt8[Tensor, "*rows bytes"], type: str) -> Float[Tensor, "*rows D"]:
    """The weights of blocks, in float32."""
    parts = blocks.unflatten(-1, (-1, 34 if type == "q8_0" else 18))
    scale = parts[..., :2].contiguous().view(torch.float16).float()
    if type == "q8_0":
        q = parts[..., 2:].contiguous().view(torch.int8).float()
    else:
        q = torch.cat((parts[..., 2:] & 15, parts[..., 2:] >> 4), dim=-1).float() - 8
    numbers: Tensor = scale * q
    return numbers.flatten(-2)


def _inverse(scale: Tensor) -> Tensor:
    """1 / scale; 0 where a block is all zeros."""
    return torch.where(scale == 0, 0.0, 1 / scale)


def _bytes(numbers: Tensor) -> Tensor:
    return numbers.view(torch.uint8)
