"""A row of every operation that steps record is the row alone, to the bit, however many rows there are.

What deterministic models promise rests on this.
"""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from archetype.native import attention, fused
from archetype.native.kernels import without_context
from archetype.native.products import product
from archetype.native.recorder import Recorder
from archetype.weights.linear import project
from archetype.weights.lossless import LosslessMatrix, compress
from archetype.weights.packed import PackedMatrix
from archetype.weights.quantized import QuantizedMatrix, quantize
from tests.helpers.cases import case
from tests.helpers.kernels import kernels

COUNTS = (2, 3, 7, 16, 33, 128)
WIDTH, HEADS, PLACES = 96, 3, 33
GENERATOR = torch.Generator().manual_seed(0)
# by the kernels of the recording in which they are called
attend_to_cache, multiply = without_context(attention.attend), without_context(product)
gate, rotate = without_context(fused.gated), without_context(fused.rotate)
Operation = Callable[[Tensor, Tensor], Tensor]  # of vectors (rows, WIDTH) and a number below PLACES of each (rows,)


def floats(*shape: int) -> Tensor:
    return torch.randn(shape, generator=GENERATOR)


KEYS, MATRIX, BIAS, STACK = (
    floats(2, 1, HEADS, PLACES, WIDTH // HEADS),
    floats(77, WIDTH),
    floats(77),
    floats(9, 64, WIDTH),
)
PACKED: dict[str, PackedMatrix | None] = {
    "int8": QuantizedMatrix(*quantize(MATRIX, 8), 77),
    "int4": QuantizedMatrix(*quantize(MATRIX, 4), 77),
}


def attend(x: Tensor, numbers: Tensor, **others: Tensor) -> Tensor:
    """The places of one cache up to the number, or of all where a mask says which."""
    q, (keys, values) = x.view(len(x), HEADS, 1, -1), KEYS.to(x.dtype).expand(-1, len(x), -1, -1, -1)
    positions = None if others else numbers[:, None]
    y = attend_to_cache(q, keys, values, 0.2, positions, **others)
    assert y is not None
    return y


def attend_masked(x: Tensor, numbers: Tensor) -> Tensor:
    return attend(x, numbers, mask=(torch.arange(PLACES) <= numbers[:, None])[:, None, None])


def experts(x: Tensor, numbers: Tensor) -> Tensor:
    y = multiply(x, STACK.to(x.dtype), None, torch.stack((numbers % 9, numbers % 4), 1))
    assert y is not None
    return y


def memory(x: Tensor, numbers: Tensor) -> Tensor:
    """A step of a recurrence: each row's own matrix fades, is written to, and answers."""
    k, v, q = (part.float().view(len(x), HEADS, -1) for part in (x, -x, x * 0.3))
    s = numbers.float()[:, None, None, None] * torch.ones(1, HEADS, WIDTH // HEADS, WIDTH // HEADS)
    s = (-k).exp()[..., None] * s + k[..., None] * v[..., None, :]
    return (q[..., None, :] @ s).squeeze(-2)


def convolution(x: Tensor, numbers: Tensor) -> Tensor:
    return F.conv1d(x.view(len(x), 24, 4), MATRIX[:24, None, :4].to(x.dtype), BIAS[:24].to(x.dtype), groups=24)


def packed_product(matrix: PackedMatrix, x: Tensor, numbers: Tensor) -> Tensor:
    return project(x, matrix)


def gated(x: Tensor, numbers: Tensor) -> Tensor:
    y = gate("silu", x, -x)
    assert y is not None
    return y


def rotated(x: Tensor, numbers: Tensor) -> Tensor:
    angles = numbers[:, None, None, None] * MATRIX[0, :16].to(x.dtype)
    y = rotate(x.view(len(x), HEADS, 1, -1), angles.cos(), angles.sin(), is_interleaved=False)
    assert y is not None
    return y


OPERATIONS: dict[str, Operation] = {
    "linear": lambda x, numbers: F.linear(x, MATRIX.to(x.dtype), BIAS.to(x.dtype)),
    "product with a transposed matrix": lambda x, numbers: x @ MATRIX.T.contiguous().to(x.dtype),
    "attention": attend, "attention with a mask": attend_masked, "experts": experts, "memory": memory,
    "convolution": convolution, "gate": gated, "rotation": rotated,
    "rms norm": lambda x, numbers: F.rms_norm(x, (WIDTH,), MATRIX[0].to(x.dtype), 1e-5),
    "layer norm": lambda x, numbers: F.layer_norm(x, (WIDTH,), MATRIX[0].to(x.dtype), MATRIX[1].to(x.dtype)),
    "softmax": lambda x, numbers: x.float().softmax(-1), "log softmax": lambda x, numbers: x.float().log_softmax(-1),
    "sum": lambda x, numbers: x.float().sum(-1), "log sum": lambda x, numbers: x.float().logsumexp(-1),
    "largest": lambda x, numbers: x.float().topk(7).values,
    "powers": lambda x, numbers: x.float().abs().pow(0.7) * x.float().square().rsqrt(),
    "curves": lambda x, numbers: F.gelu(x) + F.gelu(x, approximate="tanh") * F.silu(x) + x.sigmoid().log() * x.tanh(),
    "turns": lambda x, numbers: x.float().cos() * x.float().sin() + F.softplus(x.float()) / x.float().exp(),
    **{f"{name} product": partial(packed_product, matrix) for name, matrix in PACKED.items()},
}  # fmt: skip


def computed(operation: Operation, x: Tensor, numbers: Tensor) -> Tensor:
    """As a deterministic model's step records it, replayed by three threads, with nothing left to torch."""
    with torch.inference_mode(), Recorder(kernels("native"), (x, numbers), any_rows=True) as recorder:
        y = operation(x, numbers)
    replay = recorder.finish([y])
    assert not replay.foreign
    replay(3)
    return y


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_is_the_row_alone(dtype: torch.dtype) -> None:
    x, numbers = floats(max(COUNTS), WIDTH).to(dtype), torch.arange(max(COUNTS)) % PLACES
    for name, operation in OPERATIONS.items():
        alone = [computed(operation, x[row : row + 1].clone(), numbers[row : row + 1].clone()) for row in range(33)]
        for count in COUNTS:
            together = computed(operation, x[:count].clone(), numbers[:count].clone())
            with case(name, dtype, count):
                for row in range(min(count, 33)):
                    assert torch.equal(together[row], alone[row][0])


def test_a_row_times_a_lossless_matrix_is_the_row_alone() -> None:
    stored = compress(floats(64, 256).bfloat16())
    assert stored is not None
    x, operation = floats(33, 256).bfloat16(), partial(packed_product, LosslessMatrix(stored))
    together = computed(operation, x, torch.zeros(33))
    for row in range(33):
        assert torch.equal(together[row], computed(operation, x[row : row + 1].clone(), torch.zeros(1))[0])


def test_places_behind_the_last_change_no_bit_where_they_are_whole_vectors() -> None:
    """A kernel that reads all places under a mask sums those of a longer cache in the same order."""
    for dtype in (torch.float32, torch.bfloat16):
        q, keys, values = (floats(1, HEADS, places, 32).to(dtype) for places in (1, 64, 64))

        def step(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            mask = (torch.arange(keys.shape[2]) < 21)[None, None, None]
            y = attend_to_cache(q, keys, values, 0.2, mask=mask)
            assert y is not None
            return y

        results = []
        for places in (32, 48, 64):
            inputs = (q, keys[:, :, :places].clone(), values[:, :, :places].clone())
            with torch.inference_mode(), Recorder(kernels("native"), inputs):
                results.append(step(*inputs))
        assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])
