"""Torch's private names do what the package takes them for, and are asked in one file."""

import ast
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.utils.flop_counter import FlopCounterMode

import archetype
from archetype.native.torch_hooks import (
    COMPOSITE,
    attention_with_log_sums,
    constant_when_compiled,
    is_watched,
    without_onednn,
)

PACKAGE = Path(archetype.__file__).parent
# of the package, that may compute in a forward pass
COMPUTING = ("native", "nn", "parts", "weights", "models")
PRIVATE = {
    "_C", "_current_level", "_functorch", "_dynamo_marked_constant", "_scaled_dot_product_flash_attention_for_cpu",
}  # fmt: skip
X = torch.ones(2)


def transformed(transform: Callable[..., Callable[..., object]]) -> bool:
    """Whether the function sees that it is transformed."""
    seen = []

    def function(x: Tensor) -> Tensor:
        seen.append(is_watched())
        return x.sum()

    transform(function)(X)
    return seen == [True]


def test_plain_lines_are_not_watched_with_or_without_gradients() -> None:
    assert not is_watched()
    for mode in (torch.no_grad(), torch.inference_mode(), torch.autocast("cpu")):
        with mode:
            assert not is_watched()


@pytest.mark.parametrize("mode", [FlopCounterMode(display=False), forward_ad.dual_level()], ids=["dispatch", "forward"])
def test_modes_are_seen_and_end(mode: AbstractContextManager[object]) -> None:
    with mode:
        assert is_watched()
    assert not is_watched()


@pytest.mark.parametrize("transform", [torch.func.grad, torch.func.vmap], ids=["grad", "vmap"])
def test_transformations_are_seen_and_end(transform: Callable[..., Callable[..., object]]) -> None:
    assert transformed(transform) and not is_watched()


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace")
def test_the_tracer_is_seen() -> None:
    assert transformed(lambda function: lambda x: torch.jit.trace(function, x, check_trace=False))


@pytest.mark.parametrize("causal", [True, False])
def test_attention_tells_the_log_sums_of_its_scores(causal: bool) -> None:
    q, k, v = (torch.randn(2, heads, 5, 8, dtype=torch.float64) for heads in (4, 2, 2))
    y, log_sums = attention_with_log_sums(q, k, v, 0.5, causal)
    k, v = (x.repeat_interleave(2, dim=1) for x in (k, v))
    scores = 0.5 * q @ k.transpose(-2, -1)
    scores = scores.masked_fill(torch.ones(5, 5, dtype=torch.bool).triu(1), -torch.inf) if causal else scores
    torch.testing.assert_close(y, scores.softmax(-1) @ v)
    torch.testing.assert_close(log_sums.double(), scores.logsumexp(-1), rtol=0, atol=1e-5)


@pytest.mark.slow  # which imports torch's compiler
def test_the_compiler_is_seen() -> None:
    compiled = torch.compile(lambda x: x + 1 if is_watched() else x, backend="eager", fullgraph=True)
    assert torch.equal(compiled(X), X + 1)


@pytest.mark.slow  # as well
def test_a_function_of_constants_is_called_while_the_compiler_traces() -> None:
    called = []

    @constant_when_compiled
    def table(length: int) -> Tensor:
        called.append(max((n for n in range(length)), default=0))  # which cannot be traced
        return torch.arange(length)

    compiled = torch.compile(lambda x: x + table(len(x)), backend="eager", fullgraph=True)
    assert compiled(X).tolist() == [1, 2] and compiled(2 * X).tolist() == [2, 3] and called == [1]


def test_an_operation_decomposes_by_the_composite_key() -> None:
    a, b = torch.randn(2, 3), torch.randn(3, 4)
    assert torch.equal(torch.ops.aten.matmul.default._op_dk(COMPOSITE, a, b), a @ b)


def test_onednn_is_switched_off_and_on_again_also_after_an_error() -> None:
    with torch.no_grad(), pytest.raises(ZeroDivisionError), without_onednn():
        assert not torch.backends.mkldnn.enabled
        nn.LSTM(2, 2)(torch.ones(1, 1, 2))
        raise ZeroDivisionError
    assert torch.backends.mkldnn.enabled


def test_no_other_file_asks_torchs_private_names() -> None:
    asked = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if any(word in (text := path.read_text(encoding="utf-8")) for word in PRIVATE)
        and any(isinstance(node, ast.Attribute) and node.attr in PRIVATE for node in ast.walk(ast.parse(text)))
    }
    assert asked == {"native/torch_hooks.py"}


def test_no_forward_pass_asks_its_thread() -> None:
    """What a line computes is said by the context, or by torch's own modes."""
    asking = [
        path.relative_to(PACKAGE).as_posix()
        for folder in COMPUTING
        for path in (PACKAGE / folder).rglob("*.py")
        if any(word in path.read_text(encoding="utf-8") for word in ("ContextVar", "threading", "get_ident"))
    ]
    assert not asking
