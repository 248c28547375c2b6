"""Quantization to GGUF's K-quants: 256 weights in groups of 16 or 32 with scales that are quantized as well.

Each group tries several scales (and minima), keeps the candidate with the smallest weighted squared error, and is
rounded again with the stored scale. The method is that of llama.cpp's reference functions without an importance matrix
(quantize_row_q4_K_ref and others in ggml-quants.c). float32 sums are taken in the same order, so that the bytes are
identical: a group is a column here, because numpy adds the rows of an array one after the other.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from archetype.errors import CheckpointError

SUPER = 256  # weights of a super-block
AT_ONCE = 256  # super-blocks per task; the intermediate results fit a core's cache
TINY = np.float32(1e-15)  # below this magnitude a group counts as zero

Array = np.ndarray


def quantize_k(rows: Float[Tensor, "n 256"], type: str) -> UInt8[Tensor, "n bytes"]:
    """Quantize each row to super-blocks of type q2_k, q3_k, q4_k, q5_k or q6_k."""

    def encode(piece: Tensor) -> Array:
        with np.errstate(all="ignore"):  # groups of zeros divide by zero and are set to zero afterwards
            return K_QUANTS[type](piece.float().numpy())

    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        return torch.from_numpy(np.concatenate(list(pool.map(encode, rows.split(AT_ONCE)))))


class Affine(NamedTuple):
    """Search parameters for quantization with a minimum: weight = scale * level - minimum.

    Attributes:
        width: weights per group.
        most: highest level.
        first: levels added to `most` for the range of the first candidate.
        steps: number of further candidates, each 0.1 levels wider than the previous candidate.
        most_scale: largest stored integer for a scale or minimum.
        by_magnitude: weight absolute errors by |w| instead of squared errors by |w| + root mean square.
    """

    width: int
    most: int
    first: float
    steps: int
    most_scale: int
    by_magnitude: bool = False


Q2_K = Affine(16, 3, -0.5, 15, 15, by_magnitude=True)
Q4_K = Affine(32, 15, -1.0, 20, 63)
Q5_K = Affine(32, 31, -0.5, 15, 63)


def _q2_k(blocks: Array) -> Array:
    levels, scales, minima, ends = _affine_blocks(blocks, Q2_K)
    # block_q2_K: scales[16], qs[64], d, dmin
    return np.concatenate((scales | minima << 4, _two_bits(levels), *ends), axis=1)


def _q4_k(blocks: Array) -> Array:
    levels, scales, minima, ends = _affine_blocks(blocks, Q4_K)
    # block_q4_K: d, dmin, scales[12], qs[128]
    return np.concatenate((*ends, _six_bits(scales, minima), _nibbles(levels)), axis=1)


def _q5_k(blocks: Array) -> Array:
    levels, scales, minima, ends = _affine_blocks(blocks, Q5_K)
    high = np.packbits(levels.reshape(-1, 8, 32) >> 4, axis=1, bitorder="little")[:, 0]  # as for q3_k
    # block_q5_K: d, dmin, scales[12], qh[32], qs[128]
    return np.concatenate((*ends, _six_bits(scales, minima), high, _nibbles(levels & 15)), axis=1)


def _q3_k(blocks: Array) -> Array:
    x = _columns(blocks, 16)
    scales, levels = _descent(x, 4)
    groups = scales.reshape(-1, 16)  # the 16 groups of each super-block
    largest = _largest(groups.T)
    inverse = np.where(largest == 0, 0, -32 / largest)  # scales are stored in six bits, -32 to 31
    quantized = np.clip(np.rint(inverse[:, None] * groups), -32, 31).astype(np.int32) + 32
    quantized[largest == 0] = 0
    scale = as_half(np.where(largest == 0, 0, 1 / inverse))
    divisor = (scale.astype(np.float32)[:, None] * (quantized - 32).astype(np.float32)).ravel()
    # rounded again with the scales as stored
    levels = np.where(divisor == 0, levels, np.clip(np.rint(x / divisor), -4, 3) + 4)
    final, quantized = _rows(levels), quantized.astype(np.uint8)
    # (n, 32): bit b of byte i belongs to weight 32 b + i
    high = np.packbits(final.reshape(-1, 8, 32) > 3, axis=1, bitorder="little")[:, 0]
    low, top = quantized & 15, (quantized >> 4).reshape(-1, 4, 4)
    tops = top[:, 0] | top[:, 1] << 2 | top[:, 2] << 4 | top[:, 3] << 6
    # block_q3_K: hmask[32], qs[64], scales[12] (six bits each: four low bits, then the two top bits), d
    parts = (high, _two_bits(final & 3), low[:, :8] | low[:, 8:] << 4, tops, _bytes(scale))
    return np.concatenate(parts, axis=1)


def _q6_k(blocks: Array) -> Array:
    x = _columns(blocks, 16)
    scales, levels = _symmetric(x, 32)
    groups = scales.reshape(-1, 16)
    largest = _largest(groups.T)
    empty = np.abs(largest) < TINY
    inverse = np.where(empty, 0, -128 / largest)  # scales are stored as int8
    quantized = np.minimum(127, np.rint(inverse[:, None] * groups)).astype(np.int8)
    scale = as_half(np.where(empty, 0, 1 / inverse))
    divisor = (scale.astype(np.float32)[:, None] * quantized.astype(np.float32)).ravel()
    levels = np.where(divisor == 0, levels, np.clip(np.rint(x / divisor), -32, 31) + 32)
    final = _rows(levels)
    final[empty] = 0
    halves = final.reshape(-1, 2, 4, 32)
    low, high = halves & 15, halves >> 4
    lows = np.stack((low[:, :, 0] | low[:, :, 2] << 4, low[:, :, 1] | low[:, :, 3] << 4), axis=2)
    highs = high[:, :, 0] | high[:, :, 1] << 2 | high[:, :, 2] << 4 | high[:, :, 3] << 6
    count = len(blocks)
    # block_q6_K: ql[128], qh[64], scales[16] as int8, d
    parts = (lows.reshape(count, -1), highs.reshape(count, -1), quantized.view(np.uint8), _bytes(scale))
    return np.concatenate(parts, axis=1)


def as_half(values: Array) -> Array:
    """Convert to float16.

    Raises:
        CheckpointError: a finite number overflows, which llama.cpp's converter would write as infinity.
    """
    with np.errstate(over="ignore"):
        half = values.astype(np.float16)
    if (np.isinf(half) & np.isfinite(values)).any():
        largest = float(np.abs(values[np.isfinite(values)]).max())
        cause = f"a scale or weight of {largest:.3g} exceeds the largest float16, 65,504"
        raise CheckpointError("weights", cause, "use --type bf16 or f32")
    return half


K_QUANTS: dict[str, Callable[[Array], Array]] = {
    "q2_k": _q2_k,
    "q3_k": _q3_k,
    "q4_k": _q4_k,
    "q5_k": _q5_k,
    "q6_k": _q6_k,
}


def _affine_blocks(blocks: Array, form: Affine) -> tuple[Array, Array, Array, tuple[Array, Array]]:
    # returns levels (n, 256), integer scales and minima (n, groups), and the float16 factors of both as bytes
    x = _columns(blocks, form.width)
    weights = np.abs(x)
    if not form.by_magnitude:
        weights += np.sqrt(np.add.reduce(x * x) / np.float32(form.width))
    scales, minima, levels = _affine(x, weights, form)
    quantized, factors = [], []
    for values in (scales, minima):
        groups = values.reshape(len(blocks), -1)
        largest = np.maximum(groups.max(1), 0)
        inverse = np.where(largest > 0, np.float32(form.most_scale) / largest, 0)
        rounded = np.rint(inverse[:, None] * groups).astype(np.int32) & 255
        quantized.append(np.minimum(rounded, form.most_scale).astype(np.uint8))
        factors.append(as_half(largest / np.float32(form.most_scale)))
    scale, minimum = (
        (factor.astype(np.float32)[:, None] * integers.astype(np.float32)).ravel()
        for factor, integers in zip(factors, quantized, strict=True)
    )
    rounded = np.clip(np.rint((x + minimum) / scale), 0, form.most)
    final = _rows(np.where(scale == 0, levels, rounded))
    return final, quantized[0], quantized[1], (_bytes(factors[0]), _bytes(factors[1]))


def _affine(x: Array, weights: Array, form: Affine) -> tuple[Array, Array, Array]:
    # x: (width, groups); returns scale and negated minimum (groups,), and levels (width, groups)
    max_level = np.float32(form.most)
    high, low = x.max(0), np.minimum(x.min(0), 0)
    flat = high == low
    sum_w, sum_x = np.add.reduce(weights), np.add.reduce(weights * x)

    def levels_of(inverse: Array, low: Array) -> Array:
        levels: Array = x - low
        levels *= inverse
        np.rint(levels, out=levels)
        np.clip(levels, 0, max_level, out=levels)
        return levels

    def error(levels: Array, scale: Array, low: Array) -> Array:
        difference = scale * levels
        difference += low
        difference -= x
        np.abs(difference, out=difference) if form.by_magnitude else np.square(difference, out=difference)
        difference *= weights
        total: Array = np.add.reduce(difference)
        return total

    inverse = max_level / (high - low)
    scale, minimum = 1 / inverse, low
    best = error(levels_of(inverse, low), scale, low)
    chosen = inverse, low
    for step in range(form.steps + 1):
        # the search is sequential: each candidate starts from the best minimum so far
        inverse = (np.float32(form.first) + np.float32(0.1) * np.float32(step) + max_level) / (high - minimum)
        # weighted least squares for scale and minimum, given these levels
        levels = levels_of(inverse, minimum)
        weighted = weights * levels
        sum_l, sum_xl = np.add.reduce(weighted), np.add.reduce(weighted * x)
        weighted *= levels
        sum_l2 = np.add.reduce(weighted)
        determinant = sum_w * sum_l2 - sum_l * sum_l
        new_scale = (sum_w * sum_xl - sum_x * sum_l) / determinant
        new_low = (sum_l2 * sum_x - sum_l * sum_xl) / determinant
        positive = new_low > 0
        new_scale, new_low = np.where(positive, sum_xl / sum_l2, new_scale), np.where(positive, 0, new_low)
        new = error(levels, new_scale, new_low)
        better = (determinant > 0) & (new < best)
        chosen = np.where(better, inverse, chosen[0]), np.where(better, minimum, chosen[1])
        best, scale = np.where(better, new, best), np.where(better, new_scale, scale)
        minimum = np.where(better, new_low, minimum)
    return np.where(flat, 0, scale), -np.where(flat, low, minimum), np.where(flat, 0, levels_of(*chosen))


def _symmetric(x: Array, max_level: int) -> tuple[Array, Array]:
    # scale and levels (from 0) of each column that minimize squared errors weighted by squared weights
    largest = _largest(x)
    empty = np.abs(largest) < TINY
    weights = x * x
    products = weights * x

    def sums(inverse: Array) -> tuple[Array, Array]:
        levels = _levels(x, inverse, max_level)
        sum_lx = np.add.reduce(products * levels)
        weighted = weights * levels
        weighted *= levels
        return sum_lx, np.add.reduce(weighted)

    # the value of largest magnitude gets level -max_level, the end of the range that has one level more
    chosen = -np.float32(max_level) / largest
    sum_lx, sum_l2 = sums(chosen)
    scale = np.where(sum_l2 != 0, sum_lx / sum_l2, 0)
    # the squared error is constant - sum_lx^2 / sum_l2, so a larger second term is better
    best = scale * sum_lx
    for step in (*range(-9, 0), *range(1, 10)):
        inverse = -(np.float32(max_level) + np.float32(0.1) * np.float32(step)) / largest
        sum_lx, sum_l2 = sums(inverse)
        # sum_lx^2 / sum_l2 > best, without the division
        better = (sum_l2 > 0) & (sum_lx * sum_lx > best * sum_l2)
        chosen, scale = np.where(better, inverse, chosen), np.where(better, sum_lx / sum_l2, scale)
        best = np.where(better, scale * sum_lx, best)
    return np.where(empty, 0, scale), np.where(empty, 0, _levels(x, chosen, max_level) + np.float32(max_level))


def _descent(x: Array, max_level: int) -> tuple[Array, Array]:
    # as `_symmetric`, by coordinate descent: each level in turn is set to its best value
    largest = _largest(x)
    empty = np.abs(largest) < TINY
    weights = x * x
    products = weights * x
    levels = _levels(x, -np.float32(max_level) / largest, max_level)
    sum_lx, sum_l2 = np.add.reduce(products * levels), np.add.reduce(weights * levels * levels)
    for _ in range(5):
        before = levels.copy()
        for x_i, weight, product, level in zip(x, weights, products, levels, strict=True):
            rest_lx, rest_l2 = sum_lx - product * level, sum_l2 - weight * level * level
            new = np.clip(np.rint(x_i * rest_l2 / rest_lx), -max_level, max_level - 1)
            new_lx, new_l2 = rest_lx + product * new, rest_l2 + weight * new * new
            better = (rest_lx > 0) & (new != level) & (new_l2 > 0)
            # the same comparison of new_lx^2 / new_l2 with sum_lx^2 / sum_l2
            better &= new_lx * new_lx * sum_l2 > sum_lx * sum_lx * new_l2
            np.copyto(level, new, where=better)
            sum_lx, sum_l2 = np.where(better, new_lx, sum_lx), np.where(better, new_l2, sum_l2)
        if np.array_equal(before, levels):
            break
    scale = np.where(sum_l2 > 0, sum_lx / sum_l2, 0)
    return np.where(empty, 0, scale), np.where(empty, 0, levels + np.float32(max_level))


def _levels(x: Array, inverse: Array, max_level: int) -> Array:
    levels: Array = inverse * x
    np.rint(levels, out=levels)
    np.clip(levels, -max_level, max_level - 1, out=levels)
    return levels


def _largest(x: Array) -> Array:  # the value of largest magnitude in each column, with its sign
    largest: Array = np.take_along_axis(x, np.abs(x).argmax(0)[None], 0)[0]
    return largest


def _columns(blocks: Array, width: int) -> Array:
    return np.ascontiguousarray(blocks.reshape(-1, width).T)


def _rows(levels: Array) -> Array:
    return np.ascontiguousarray(levels.astype(np.uint8).T).reshape(-1, SUPER)  # (n, 256)


def _six_bits(scales: Array, minima: Array) -> Array:
    # eight 6-bit scales and minima in 12 bytes: the first four of each also carry the high bits of the last four
    first = [values[:, :4] | values[:, 4:] >> 4 << 6 for values in (scales, minima)]
    return np.concatenate((*first, scales[:, 4:] & 15 | (minima[:, 4:] & 15) << 4), axis=1)


def _nibbles(levels: Array) -> Array:
    # of each 64 levels, the second half is stored in the high bits
    halves = levels.reshape(-1, 4, 2, 32)
    packed: Array = halves[:, :, 0] | halves[:, :, 1] << 4
    return packed.reshape(-1, SUPER // 2)


def _two_bits(levels: Array) -> Array:
    # of each 128 levels, the four quarters share bytes
    quarters = levels.reshape(-1, 2, 4, 32)
    packed: Array = quarters[:, :, 0] | quarters[:, :, 1] << 2 | quarters[:, :, 2] << 4 | quarters[:, :, 3] << 6
    return packed.reshape(-1, SUPER // 4)


def _bytes(scale: Array) -> Array:
    return scale[:, None].view(np.uint8)
