"""Every native operation equals torch's own at each replay, for every set of instructions and number of threads."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from archetype.native.library import Library
from archetype.native.products import max_rows
from archetype.native.recorder import Recorder, Replay, TorchCall
from tests.helpers.cases import case
from tests.helpers.kernels import INSTRUCTIONS, kernels
from tests.helpers.weights import distance

Function = Callable[..., Tensor | tuple[Tensor, ...]]
GENERATOR = torch.Generator().manual_seed(0)


def floats(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=GENERATOR).to(dtype)


def whole(*shape: int, high: int = 7) -> Tensor:
    return torch.randint(-high, high, shape, generator=GENERATOR)


def results(output: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (output,) if isinstance(output, Tensor) else tuple(output)


def record(library: Library, function: Function, inputs: tuple[Tensor, ...]) -> tuple[Replay, tuple[Tensor, ...]]:
    with torch.inference_mode(), Recorder(library, inputs) as recorder:
        outputs = results(function(*inputs))
    return recorder.finish(outputs), outputs


def check(library: Library, function: Function, inputs: tuple[Tensor, ...], tolerance: float) -> None:
    """Record, change the inputs, replay by 1 and 3 threads: as torch gives it, with nothing left to torch."""
    inputs = tuple(value.clone() for value in inputs)
    replay, outputs = record(library, function, inputs)
    assert not [segment for segment in replay.segments if isinstance(segment, TorchCall)]
    for threads in (1, 3):
        for value in inputs:
            value.copy_(value.flip(0) if value.dim() and value.dtype != torch.float32 else value * 0.7 + 0.1)
        replay(threads)
        for output, expected in zip(outputs, results(function(*(value.clone() for value in inputs))), strict=True):
            assert output.dtype == expected.dtype
            if output.is_floating_point():
                assert distance(output, expected) <= tolerance
            else:
                assert torch.equal(output, expected)


POINTWISE: dict[str, Callable[[Tensor], Tensor]] = {
    "exp": torch.exp, "silu": F.silu, "sigmoid": torch.sigmoid, "tanh": torch.tanh, "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "relu": torch.relu, "softplus": F.softplus,
    "neg": torch.neg, "abs": torch.abs, "square": torch.square, "cube": lambda x: x**3,
    "reciprocal": lambda x: 1 / (x + 9),
    "rsqrt": lambda x: (x.abs() + 1).rsqrt(), "sqrt": lambda x: x.abs().sqrt(), "log": lambda x: (x.abs() + 0.1).log(),
    "cos": lambda x: (x * 1e4).cos(), "sin": lambda x: (x * 1e4).sin(), "clamp": lambda x: x.clamp(-0.3, 0.4),
    "clamp_min": lambda x: x.clamp(min=0.1), "scaled": lambda x: 0.5 * x + 2, "subtracted": lambda x: x - 0.25,
    "divided": lambda x: x / 3, "power": lambda x: 1e4**x, "compared": lambda x: (x > 0) & (x <= 0.5) | (x == 1),
    "masked": lambda x: x.masked_fill(~(x > 0), -1.0), "chosen": lambda x: torch.where(x > 0, x, x * 2),
    "cast": lambda x: (x * 8).to(torch.bfloat16).to(torch.float32), "swapped": lambda x: x.transpose(0, 1).contiguous(),
    "joined": lambda x: torch.cat((x, x[:, 1:] + 1), dim=1), "stacked": lambda x: torch.stack((x, -x), dim=1),
    "maximum": lambda x: torch.maximum(x, 0.3 - x), "minimum": lambda x: torch.minimum(x, 0.3 - x),
}  # fmt: skip
BROADCAST: dict[str, tuple[Function, tuple[Tensor, ...]]] = {
    "add": (lambda a, b: a + b, (floats(3, 1, 5), floats(4, 1))),
    "add 2 b": (lambda a, b: torch.add(a, b, alpha=2), (floats(3, 5), floats(5))),
    "subtract 3 b": (lambda a, b: torch.sub(a, b, alpha=3), (floats(3, 5), floats(5))),
    "product of views": (lambda a, b: a.transpose(0, 1) * b[:, ::2], (floats(3, 5), floats(5, 6))),
    "four dimensions": (lambda a, b: a * b.permute(3, 1, 0, 2), (floats(2, 3, 4, 5), floats(4, 3, 5, 2))),
    "whole numbers": (lambda a, b: (a + 2 * b - 1) // 3 % 5, (whole(4, 6), whole(6))),
    "compared whole numbers": (lambda a, b: (a[:, None] <= b) & (a[:, None] != 2**40), (whole(5), whole(7))),
    "positions times frequencies": (lambda a, b: a[:, None] * b, (whole(5), floats(8))),
    "in place": (lambda a, b: a.clone().add_(b).mul_(2), (floats(4, 5), floats(5))),
}
ROWS: dict[str, tuple[Function, tuple[Tensor, ...]]] = {
    "rms norm": (lambda x, w: F.rms_norm(x, (37,), w, 1e-5), (floats(3, 2, 37), floats(37))),
    "rms norm without weight": (lambda x: F.rms_norm(x, (16,), None, 1e-6), (floats(5, 16),)),
    "rms norm of heads": (
        lambda x: F.rms_norm(x.view(2, 3, 4, 8).transpose(1, 2)[:, :, 0], (8,), None, 1e-6),
        (floats(2, 96),),
    ),
    "layer norm": (lambda x, w, b: F.layer_norm(x, (37,), w, b, 1e-5), (floats(3, 37), floats(37), floats(37))),
    "softmax": (lambda x: x.softmax(-1), (floats(3, 2, 19),)),
    "log softmax": (lambda x: x.log_softmax(-1), (floats(3, 2, 19),)),
    "log sum exp": (lambda x: x.logsumexp(-1), (50 * floats(3, 2, 19),)),
    "log sum exp, kept": (lambda x: x.logsumexp(-1, keepdim=True), (floats(3, 2, 19),)),
    "sum": (lambda x: x.sum(-1), (floats(3, 19),)),
    "sum, kept": (lambda x: x.sum(-1, keepdim=True), (floats(3, 2, 19),)),
    "sum over tokens": (lambda x: x.sum(1), (floats(3, 4, 19),)),
    "mean": (lambda x: x.mean(-1), (floats(3, 19),)),
    "largest": (lambda x: x.topk(3), (floats(4, 11),)),
    "largest of many": (lambda x: x.topk(20), (floats(3, 3000),)),
    "gathered": (lambda x, i: x.gather(-1, i), (floats(3, 11), whole(3, 4, high=5).abs())),
}
PRODUCTS: dict[str, tuple[Function, tuple[Tensor, ...]]] = {
    "one vector": (F.linear, (floats(1, 1, 64), floats(96, 64))),
    "odd sizes": (F.linear, (floats(5, 37), floats(23, 37), floats(23))),
    "many rows": (F.linear, (floats(2, 17, 70), floats(50, 70), floats(50))),
    "large": (F.linear, (floats(3, 512), floats(700, 512))),
    "strided vectors": (lambda x, w: F.linear(x[:, 32:64], w), (floats(4, 96), floats(20, 32))),
    "matrix": (torch.matmul, (floats(5, 24), floats(24, 30))),
    "batched": (torch.matmul, (floats(3, 4, 24), floats(3, 24, 130))),
    "batched, transposed": (lambda a, b: a @ b.transpose(1, 2), (floats(3, 4, 24), floats(3, 130, 24))),
    "matrix times vector": (lambda a, b: (a @ b[..., None])[..., 0], (floats(2, 130, 16), floats(2, 16))),
    "einsum": (lambda a, b: torch.einsum("bhtp,hpc->bhtc", a, b), (floats(2, 3, 1, 8), floats(3, 8, 20))),
    "depthwise convolution": (
        lambda x, w, b: F.conv1d(x, w, b, groups=9),
        (floats(2, 9, 4), floats(9, 1, 4), floats(9)),
    ),
    "embedding": (lambda ids, table: F.embedding(ids.abs(), table), (whole(2, 3), floats(9, 13))),
}


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
def test_native_operations_equal_torch(instructions: str) -> None:
    library = kernels(instructions)
    for name, function in POINTWISE.items():
        for x in (floats(3, 7), floats(70, 129), floats(4, 6).T):
            with case(instructions, name, tuple(x.shape)):
                check(library, function, (x,), 2e-6)
    for table in (BROADCAST, ROWS, PRODUCTS):
        for name, (function, inputs) in table.items():
            with case(instructions, name):
                check(library, function, inputs, 2e-6)


def test_the_largest_of_equals_come_in_order_and_what_is_no_number_comes_first() -> None:
    x = torch.tensor([[1.0, 3.0, 3.0, -torch.inf, 3.0] + 40 * [2.0], 45 * [-torch.inf]])
    x[1, 40], x[1, 3] = torch.nan, 1.0
    for instructions in ("native", "x86-64-v2"):
        _, (values, places) = record(kernels(instructions), lambda x: x.topk(6), (x,))
        assert values[0].tolist() == [3, 3, 3, 2, 2, 2] and places[0].tolist() == [1, 2, 4, 5, 6, 7]
        assert values[1, 0].isnan() and values[1, 1:].tolist() == [1.0] + 4 * [-torch.inf]
        assert places[1].tolist() == [40, 3, 0, 1, 2, 4]


def test_bfloat16_is_computed_in_float32_and_rounded_once() -> None:
    library = kernels("native")
    unary: dict[str, Any] = {
        "exp": torch.exp,
        "silu": F.silu,
        "softmax": lambda x: x.softmax(-1),
        "norm": lambda x: F.rms_norm(x, (64,), None, 1e-6),
    }
    for name, function in unary.items():
        with case(name):
            check(library, function, (floats(3, 64, dtype=torch.bfloat16),), 0.009)
    x, w = floats(3, 96, dtype=torch.bfloat16), floats(40, 96, dtype=torch.bfloat16)
    replay, (y,) = record(library, F.linear, (x, w))
    replay(2)
    assert y.dtype == torch.bfloat16
    assert distance(y, F.linear(x.float(), w.float())) <= 2**-8


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
def test_a_row_of_many_equals_the_row_alone_bit_for_bit(instructions: str) -> None:
    library = kernels(instructions)
    for dtype in (torch.float32, torch.bfloat16):
        for rows, width in (
            (13, 200),
            (1, 96),
            (16, 224),
            (37, 224),
            (max_rows(dtype), 96),
        ):  # matrix tiles, where there are any, take whole 32
            x, w, bias = floats(rows, width, dtype=dtype), floats(77, width, dtype=dtype), floats(77, dtype=dtype)
            replay, (together,) = record(library, F.linear, (x, w, bias))
            replay(3)
            expected = F.linear(x.double(), w.double(), bias.double())
            assert distance(together, expected) <= (2**-8 if dtype == torch.bfloat16 else 1e-6)
            for row in range(rows):
                one, (alone,) = record(library, F.linear, (x[row : row + 1].clone(), w, bias))
                one(1)
                assert torch.equal(alone[0], together[row]), (dtype, rows, width, row)
