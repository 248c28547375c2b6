"""Attention of a step over a cache, for every set of instructions: the formula's, and a row's own in any company."""

from typing import Any

import pytest
import torch
from torch import Tensor

from archetype.native import attention as native
from archetype.native.kernels import without_context
from archetype.nn.cache import quantized
from tests.helpers.cases import case
from tests.helpers.kernels import INSTRUCTIONS, kernels
from tests.helpers.weights import distance
from tests.unit.native.test_kernels import record

NARROW = (torch.bfloat16, torch.float16)  # data types of a cache of keys and values of float32
LENGTHS = torch.tensor([[0], [15], [16], [70], [37]])  # of each row's query; a cache has 80 places
GENERATOR = torch.Generator().manual_seed(0)
append_by_kernels = without_context(native.append)
attend_by_kernels = without_context(native.attend)  # of the recording in which it is called


def floats(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(shape, generator=GENERATOR).to(dtype)


def formula(q: Tensor, keys: Tensor, values: Tensor, positions: Tensor, scale: float) -> Tensor:
    groups = q.shape[1] // keys.shape[1]
    keys, values = (x.double().repeat_interleave(groups, 1) for x in (keys, values))
    scores = scale * q.double() @ keys.transpose(2, 3)
    later = torch.arange(keys.shape[2]) > positions[:, None, :, None]
    return scores.masked_fill(later, -torch.inf).softmax(-1) @ values


def attend(name: str, *inputs: Tensor, threads: int = 2, **settings: Any) -> Tensor:
    def step(q: Tensor, keys: Tensor, values: Tensor, positions: Tensor, *second: Tensor) -> Tensor:
        pair = (second[0], second[1]) if second else None
        y = attend_by_kernels(q, keys, values, 0.3, positions, second=pair, **settings)
        assert y is not None
        return y

    replay, (y,) = record(kernels(name), step, inputs)
    replay(threads)
    return y


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("instructions", INSTRUCTIONS)
def test_it_is_the_formula_and_a_row_is_as_alone(instructions: str, dtype: torch.dtype) -> None:
    tolerance = 2e-6 if dtype == torch.float32 else 2**-8
    for heads, kv_heads in ((6, 2), (3, 3), (4, 1)):
        for key_dim, value_dim in ((64, 64), (80, 80), (24, 40), (7, 5), (128, 96)):
            with case(instructions, dtype, heads, kv_heads, key_dim, value_dim):
                q = floats(5, heads, 1, key_dim, dtype=dtype)
                keys, values = (floats(5, kv_heads, 80, size, dtype=dtype) for size in (key_dim, value_dim))
                y = attend(instructions, q, keys, values, LENGTHS)
                assert distance(y, formula(q, keys, values, LENGTHS, 0.3)) <= tolerance
                for row in range(5):
                    own = (tensor[row : row + 1].clone() for tensor in (q, keys, values, LENGTHS))
                    assert torch.equal(attend(instructions, *own)[0], y[row])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_scores_of_keys_in_two_parts_are_added(dtype: torch.dtype) -> None:
    q, keys, values = (floats(5, heads, size, 48, dtype=dtype) for heads, size in ((4, 1), (1, 80), (1, 80)))
    q2, keys2 = floats(5, 4, 1, 16, dtype=dtype), floats(5, 1, 80, 16, dtype=dtype)
    y = attend("native", q, keys, values, LENGTHS, q2, keys2)
    expected = formula(torch.cat((q, q2), -1), torch.cat((keys, keys2), -1), values, LENGTHS, 0.3)
    assert distance(y, expected) <= (2e-6 if dtype == torch.float32 else 2**-8)


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_long_cache_is_summed_in_parts(instructions: str, dtype: torch.dtype) -> None:
    """Several queries equal a single one, two threads one thread, and all are near the formula."""
    length, heads, dim = 2 * native.PART + 200, 6, 32
    q = floats(2, heads, 3, dim, dtype=dtype)
    keys, values = (floats(2, 2, length, dim, dtype=dtype) for _ in range(2))
    positions = torch.tensor([[length - 50, length - 49, length - 48], [native.PART - 2, native.PART - 1, native.PART]])
    settings: dict[str, Any]
    for settings in ({}, {"window": 900}, {"softcap": 2.0, "sinks": floats(heads, dtype=torch.float32)},
                     {"slopes": torch.rand(heads, generator=GENERATOR) / 100},
                     {"mask": torch.rand(2, 1, 3, length, generator=GENERATOR) < 0.5},
                     {"mask": floats(2, heads, 3, length, dtype=torch.float32)}):  # fmt: skip
        with case(instructions, dtype, settings):
            y = attend(instructions, q, keys, values, positions, **settings)
            assert torch.equal(y, attend(instructions, q, keys, values, positions, threads=1, **settings))
            for token in range(3):
                this = slice(token, token + 1)
                own = settings | ({"mask": settings["mask"][:, :, this].clone()} if "mask" in settings else {})
                alone = (q[:, :, this].clone(), keys, values, positions[:, this].clone())
                assert torch.equal(attend(instructions, *alone, **own), y[:, :, this])
            expected = long_formula(q, keys, values, positions, **settings)
            assert distance(y, expected) <= (4e-6 if dtype == torch.float32 else 2**-8)


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("instructions", INSTRUCTIONS)
def test_a_narrow_cache_is_read_as_its_rounded_numbers(instructions: str, dtype: torch.dtype) -> None:
    """Keys and values of a narrow type, queries of float32: the sums are those of the same numbers in float32."""
    length = native.PART + 100
    positions = torch.tensor([[length - 50, length - 49, length - 48], [70, 71, 72]])
    settings: dict[str, Any]
    for settings in ({}, {"window": 90}, {"softcap": 2.0, "sinks": floats(6, dtype=torch.float32)},
                     {"mask": torch.rand(2, 1, 3, length, generator=GENERATOR) < 0.5}):  # fmt: skip
        for key_dim, value_dim in ((64, 64), (24, 40), (7, 5)):
            with case(instructions, dtype, settings, key_dim, value_dim):
                q = floats(2, 6, 3, key_dim, dtype=torch.float32)
                keys, values = (floats(2, 2, length, size, dtype=dtype) for size in (key_dim, value_dim))
                y = attend(instructions, q, keys, values, positions, **settings)
                assert distance(y, long_formula(q, keys, values, positions, **settings)) <= 4e-6
                wide = attend(instructions, q, keys.float(), values.float(), positions, **settings)
                assert distance(y, wide) <= 4e-6
                assert torch.equal(y, attend(instructions, q, keys, values, positions, threads=1, **settings))
    latents, turned = floats(2, 1, length, 48, dtype=dtype), floats(2, 1, length, 16, dtype=dtype)
    q, q2 = floats(2, 4, 1, 48, dtype=torch.float32), floats(2, 4, 1, 16, dtype=torch.float32)
    y = attend(instructions, q, latents, latents, positions[:, :1], q2, turned)
    expected = long_formula(torch.cat((q, q2), -1), torch.cat((latents, turned), -1), latents, positions[:, :1])
    assert distance(y, expected) <= 4e-6


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("instructions", INSTRUCTIONS)
def test_numbers_are_rounded_into_a_cache_as_torch_rounds(instructions: str, dtype: torch.dtype) -> None:
    """Ties, subnormal numbers, numbers beyond the range of float16, infinities and NaN; rows that fill no vector."""
    bits = torch.randint(-(2**31), 2**31 - 1, (6000,), generator=GENERATOR, dtype=torch.int64).to(torch.int32)
    halves = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.float16).float()
    ties = halves.view(torch.int32) | 0x1000  # halfway between two numbers of float16
    edges = torch.tensor([0.0, -0.0, 65504.0, 65519.99, 65520.0, -1e9, 2.0**-24, 2.0**-25, 1.5 * 2.0**-25, torch.inf])
    numbers = torch.cat((bits.view(torch.float32), halves, ties.view(torch.float32), edges, -edges))
    for features in (5, 61):
        new = numbers[: len(numbers) // (2 * features) * 2 * features].view(1, 2, -1, features)
        with case(instructions, dtype, features):

            def step(new: Tensor, buffer: Tensor, positions: Tensor) -> Tensor:
                y = append_by_kernels(new, buffer, positions)
                assert y is not None
                return y

            length = new.shape[2]
            buffer = torch.zeros(1, 2, length, features, dtype=dtype)
            replay, _ = record(kernels(instructions), step, (new, buffer, torch.arange(length)[None]))
            replay(2)
            assert torch.equal(buffer.isnan(), new.isnan())
            expected = new.to(dtype)
            assert torch.equal(buffer.nan_to_num(7.0), expected.nan_to_num(7.0))


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
def test_a_cache_of_int8_is_read_with_its_scales(instructions: str) -> None:
    """The same sums as of the numbers in float32, which are codes times scales; views of longer buffers, too."""
    length = native.PART + 100
    positions = torch.tensor([[length - 50, length - 49, length - 48], [70, 71, 72]])
    settings: dict[str, Any]
    for settings in ({}, {"window": 90}, {"softcap": 2.0, "sinks": floats(6, dtype=torch.float32)},
                     {"mask": torch.rand(2, 1, 3, length, generator=GENERATOR) < 0.5}):  # fmt: skip
        for key_dim, value_dim, dtype in ((64, 64, torch.float32), (24, 40, torch.bfloat16), (7, 5, torch.float32)):
            with case(instructions, settings, key_dim, value_dim, dtype):
                q = floats(2, 6, 3, key_dim, dtype=dtype)
                keys, values = (quantized(floats(2, 2, length + 9, size, dtype=dtype)) for size in (key_dim, value_dim))
                (k, k_scales), (v, v_scales) = ([x[:, :, :length] for x in pair] for pair in (keys, values))
                y = attend(instructions, q, k, v, positions, scales=(k_scales, v_scales), **settings)
                expected = long_formula(q, k * k_scales, v * v_scales, positions, **settings)
                assert distance(y, expected) <= (4e-6 if dtype == torch.float32 else 2**-8)
    latents, turned = (quantized(floats(2, 1, length, size, dtype=torch.float32)) for size in (48, 16))
    q, q2 = floats(2, 4, 1, 48, dtype=torch.float32), floats(2, 4, 1, 16, dtype=torch.float32)
    scales = (latents[1], latents[1], turned[1])
    y = attend(instructions, q, latents[0], latents[0], positions[:, :1], q2, turned[0], scales=scales)
    wide, wide2 = latents[0] * latents[1], turned[0] * turned[1]
    expected = long_formula(torch.cat((q, q2), -1), torch.cat((wide, wide2), -1), wide, positions[:, :1])
    assert distance(y, expected) <= 4e-6


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
def test_numbers_are_rounded_to_int8_as_torch_rounds(instructions: str) -> None:
    """Also rows of zeros, of subnormal numbers and of NaN or infinity, which only the scale shows."""
    for features in (5, 64):
        with case(instructions, features):
            new = floats(1, 2, 40, features, dtype=torch.float32) * torch.logspace(-44, 38, 40)[None, None, :, None]
            new[:, :, 0], new[:, :, 7, 0], new[:, :, 9, 1] = 0.0, torch.nan, torch.inf
            codes, scales = torch.ones(1, 2, 40, features, dtype=torch.int8), torch.ones(1, 2, 40, 1)

            def step(new: Tensor, buffer: Tensor, scales: Tensor, positions: Tensor) -> Tensor:
                y = append_by_kernels(new, buffer, positions, scales)
                assert y is not None
                return y

            replay, _ = record(kernels(instructions), step, (new, codes, scales, torch.arange(40)[None]))
            replay(2)
            expected, expected_scales = quantized(new)
            assert torch.equal(codes, expected)
            assert torch.equal(scales.nan_to_num(7.0), expected_scales.nan_to_num(7.0))
            wide = (codes * scales)[:, :, 10:35]
            assert bool(((wide - new[:, :, 10:35]).abs() <= 0.5001 * scales[:, :, 10:35]).all())


@pytest.mark.parametrize("length", [80, 2 * native.PART])
@pytest.mark.parametrize("instructions", INSTRUCTIONS)
def test_a_number_that_is_not_finite_is_not_hidden(instructions: str, length: int) -> None:
    q = floats(1, 4, 1, 16, dtype=torch.float32)
    keys, values = (floats(1, 2, length, 16, dtype=torch.float32) for _ in range(2))
    position = torch.tensor([[length - 10]])
    for tensor, slots in ((keys, slice(5, 6)), (keys, slice(None)), (values, slice(5, 6)), (q, slice(None))):
        damaged = [other.clone() for other in (q, keys, values)]
        place = next(index for index, other in enumerate((q, keys, values)) if other is tensor)
        damaged[place][:, :, slots] = torch.nan
        y = attend(instructions, *damaged, position)
        assert y[..., :1].isnan().all(), (place, slots)
    keys[:, :, length - 9 :] = values[:, :, length - 9 :] = torch.nan  # slots that no query sees
    assert attend(instructions, q, keys, values, position).isfinite().all()


def long_formula(
    q: Tensor, keys: Tensor, values: Tensor, positions: Tensor, window: int = 0, softcap: float = 0.0,
    sinks: Tensor | None = None, slopes: Tensor | None = None, mask: Tensor | None = None,
) -> Tensor:  # fmt: skip
    keys, values = (x.double().repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (keys, values))
    scores = 0.3 * q.double() @ keys.transpose(2, 3)
    distances = positions[:, None, :, None] - torch.arange(keys.shape[2])
    if softcap:
        scores = softcap * (scores / softcap).tanh()
    if slopes is not None:
        scores = scores - slopes.double()[:, None, None] * distances
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
    scores = scores.masked_fill((distances < 0) | (distances >= (window or keys.shape[2])), -torch.inf)
    if sinks is None:
        return scores.softmax(-1) @ values
    columns = sinks.double()[:, None, None].expand(*scores.shape[:3], 1)
    return torch.cat((scores, columns), -1).softmax(-1)[..., :-1] @ values
