"""Fused operations equal autograd's own and the plain bodies, whoever computes them and however many threads."""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from statistics import median
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.flop_counter import FlopCounterMode

from archetype.families import preset
from archetype.generate.step import prefill
from archetype.models.build import build
from archetype.native import fused
from archetype.native.arguments import Arguments
from archetype.native.kernels import FUSED, Fused, plain_operations
from archetype.nn.dropout import dropout
from archetype.parts.attention.core import attend
from archetype.parts.feedforward.module import GatedProduct
from archetype.parts.pattern.scores import ScoreFunction
from archetype.training.objectives.base import cross_entropy_loss
from tests.helpers.kernels import INSTRUCTIONS, kernels
from tests.helpers.weights import distance, randomize

GENERATOR = torch.Generator().manual_seed(0)
Function = Callable[..., Tensor | None]


def floats(*shape: int) -> Tensor:
    return torch.randn(shape, generator=GENERATOR)


def outputs_and_gradients(function: Function, inputs: list[Tensor], dy: Tensor) -> list[Tensor]:
    leaves = [tensor.detach().requires_grad_() for tensor in inputs]  # whose rows lie as they did
    y = function(*leaves)
    assert y is not None
    y.backward(dy.to(y.dtype))
    return [y, *(leaf.grad for leaf in leaves if leaf.grad is not None)]


def note(places: list[int], tensor: Tensor) -> Tensor:
    places.append(tensor.data_ptr())
    return tensor


def plainly_rotated(x: Tensor, cos: Tensor, sin: Tensor, is_interleaved: bool) -> Tensor:
    turned, rest = x[..., : 2 * cos.shape[-1]], x[..., 2 * cos.shape[-1] :]
    pairs = turned.unflatten(-1, (-1, 2)) if is_interleaved else turned.unflatten(-1, (2, -1)).transpose(-1, -2)
    turned = torch.view_as_real(torch.view_as_complex(pairs.contiguous()) * torch.complex(cos, sin))
    return torch.cat(((turned if is_interleaved else turned.transpose(-1, -2)).flatten(-2), rest), dim=-1)


def cases(dtype: torch.dtype) -> dict[str, tuple[Function, Function, list[Tensor], Tensor]]:
    """The fused operation, the plain one, their inputs and a gradient of their output."""
    angles = floats(2, 1, 5, 3)
    cos, sin, heads = (x.to(dtype) for x in (angles.cos(), angles.sin(), floats(2, 5, 4, 8)))
    heads = heads.transpose(1, 2)  # (B H T P), a view
    rows = floats(3, 70, 37).to(dtype)
    table: dict[str, tuple[Function, Function, list[Tensor], Tensor]] = {}
    exact = ("gelu",) if dtype == torch.float32 else ()  # not among the kernels: of bfloat16, torch rounds it twice
    for name in ("silu", "gelu_tanh", *exact):
        multiply: Function = lambda gate, up, name=name: GatedProduct.apply(gate, up, name, FUSED)  # noqa: E731  # type: ignore[no-untyped-call]
        plain = {"silu": nn.functional.silu, "gelu": nn.functional.gelu}.get(
            name, lambda x: nn.functional.gelu(x, approximate="tanh")
        )
        table[name] = (multiply, lambda gate, up, f=plain: f(gate) * up, [3 * rows, rows.flip(0)], rows.flip(1))
    weight = floats(8).to(dtype)
    for name, x in (
        ("norm", 3 * rows[..., :8].contiguous()),
        ("norm of a part", rows[..., 3:11]),
        ("norm of heads", heads),
        ("norm of one row for all", rows[:1, :1, :8].expand(5, 3, 8)),
    ):
        table[name] = (
            lambda x, weight: fused.rms_norm(x, weight, 1e-3, x.dtype),
            lambda x, weight: nn.functional.rms_norm(x, (8,), weight, 1e-3),
            [x, weight], x.flip(1),
        )  # fmt: skip
    for is_interleaved in (False, True):
        for number in (1, 2):  # one row of angles for all, and one for each of the batch
            tables = cos[:number], sin[:number]
            table[f"rotation, {is_interleaved}, {number}"] = (
                lambda x, c=tables, i=is_interleaved: fused.rotate(FUSED, x, *c, i),
                lambda x, c=tables, i=is_interleaved: plainly_rotated(x, *(t.to(x.dtype) for t in c), i),
                [heads], heads.flip(1),
            )  # fmt: skip
    return table


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
def test_fused_operations_equal_the_plain_ones(instructions: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("archetype.native.kernels.library", lambda: kernels(instructions))
    before = torch.get_num_threads()
    for dtype, tolerance in ((torch.float32, 2e-6), (torch.bfloat16, 2**-8)):  # rounded once
        for name, (operation, plain, inputs, dy) in cases(dtype).items():
            expected = outputs_and_gradients(plain, [tensor.double() for tensor in inputs], dy)
            results = []
            for threads in (1, 3):
                torch.set_num_threads(threads)
                try:
                    results.append(outputs_and_gradients(operation, inputs, dy))
                finally:
                    torch.set_num_threads(before)
            assert all(torch.equal(one, three) for one, three in zip(*results, strict=True)), name
            for result, other in zip(results[0], expected, strict=True):
                assert result.dtype == dtype and distance(result, other.float()) < tolerance, (dtype, name)


def test_a_norm_is_in_the_type_that_reads_it() -> None:
    kernels("native")
    x, weight = floats(4, 6), floats(6).requires_grad_()
    y = fused.rms_norm(x, weight, 1e-6, torch.bfloat16)
    assert y is not None
    expected = nn.functional.rms_norm(x, (6,), weight, 1e-6).to(torch.bfloat16)
    assert y.dtype == torch.bfloat16 and distance(y.float(), expected.float()) < 2**-8
    y.sum().backward()
    assert weight.grad is not None and weight.grad.dtype == torch.float32


def test_the_gradient_of_a_norm_keeps_its_type_where_its_strides_are_others() -> None:
    kernels("native")
    x, weight, dy = floats(4, 6).bfloat16().requires_grad_(), floats(6).bfloat16().requires_grad_(), floats(6, 4).t()
    y = fused.rms_norm(x, weight, 1e-6, torch.float32)
    assert y is not None
    y.backward(dy)
    whole = x.detach().float().requires_grad_()
    nn.functional.rms_norm(whole, (6,), weight.detach().float(), 1e-6).backward(dy)
    assert x.grad is not None and whole.grad is not None
    assert torch.equal(x.grad, whole.grad.bfloat16())  # rounded once


def philox(counter: int, key: int) -> list[int]:
    """Salmon 2011, section 3.3: four words of ten rounds."""
    a, b, c, d = counter, 0, 0, 0
    first, second = key & 0xFFFFFFFF, key >> 32
    for _ in range(10):
        p, q = a * 0xD2511F53, c * 0xCD9E8D57
        a, b, c, d = (q >> 32) ^ b ^ first, q & 0xFFFFFFFF, (p >> 32) ^ d ^ second, p & 0xFFFFFFFF
        first, second = (first + 0x9E3779B9) & 0xFFFFFFFF, (second + 0xBB67AE85) & 0xFFFFFFFF
    return [a, b, c, d]


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
def test_dropout_follows_philox_with_a_key_of_the_generator(instructions: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("archetype.native.kernels.library", lambda: kernels(instructions))
    assert philox(0, 0) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]  # as published with the algorithm
    for size, p in ((1, 0.5), (63, 0.25), (200, 0.1), (40_000, 0.7)):
        for dtype in (torch.float32, torch.bfloat16):
            x = (2 + floats(size).abs()).to(dtype).requires_grad_()
            torch.manual_seed(size)
            key = int(torch.randint(2**63 - 1, ()))
            torch.manual_seed(size)
            y = dropout(x, p)
            again = dropout(x, p)
            y.sum().backward()
            words = [philox(counter, key) for counter in range(16 * -(-size // 64))]
            number = [words[i // 64 * 16 + i % 16][i // 16 % 4] for i in range(size)]
            stays = torch.tensor([each >= round(p * 2**32) for each in number])
            assert torch.equal(y != 0, stays) and x.grad is not None
            torch.testing.assert_close(y, torch.where(stays, x.detach().float() / (1 - p), 0.0).to(dtype))
            torch.testing.assert_close(x.grad, torch.where(stays, 1 / (1 - p), 0.0).to(dtype))
            assert size < 64 or not torch.equal(y, again)
    assert torch.equal(dropout(x, 0.0), x) and torch.equal(dropout(x, 0.3, training=False), x)
    assert torch.equal(dropout(x, 1.0), torch.zeros_like(x))


@pytest.mark.parametrize("instructions", ["native", "x86-64-v4-bf16"])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "length", "features"), [(2, 2, 32, 32), (4, 2, 50, 64), (3, 3, 300, 128), (4, 1, 77, 32)]
)
def test_gradients_of_attention_in_bfloat16_are_those_of_the_formula(
    heads: int, kv_heads: int, length: int, features: int, causal: bool, instructions: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """By tiles or by vectors: as near as by torch, and of each row the same whatever stands beside it."""
    monkeypatch.setattr("archetype.native.kernels.library", partial(kernels, instructions))
    own = torch.Generator().manual_seed(0)  # whichever tests ran before

    def projected(number: int, scale: float = 1.0) -> Tensor:
        return (scale * torch.randn(3, length, number, features, generator=own)).to(torch.bfloat16).transpose(1, 2)

    wide = projected(2 * kv_heads, 1.5)  # keys and values that one projection gave
    inputs, dy = [projected(heads, 1.5), wide[:, :kv_heads], wide[:, kv_heads:]], projected(heads)
    score, before = ScoreFunction(features**-0.5), torch.get_num_threads()

    def gradients(inputs: list[Tensor], dy: Tensor) -> tuple[Tensor, ...]:
        leaves = [x.detach().requires_grad_() for x in inputs]
        return torch.autograd.grad(attend(*leaves, score, causal=causal), leaves, dy)

    expected = gradients([x.double() for x in inputs], dy.double())
    plain = gradients(inputs, dy)
    tiled = gradients(inputs, dy)
    alone = gradients([x[1:2] for x in inputs], dy[1:2])
    torch.set_num_threads(3)
    try:
        shared = gradients(inputs, dy)
    finally:
        torch.set_num_threads(before)
    for exact, theirs, ours, one, other in zip(expected, plain, tiled, alone, shared, strict=True):
        errors = [float((result.double() - exact).norm() / exact.norm()) for result in (ours, theirs)]
        assert errors[0] < 1.1 * errors[1] and errors[0] < 1.5 * 2**-8
        assert torch.equal(ours[1:2], one) and torch.equal(ours, other)


@pytest.mark.parametrize("instructions", ["native", "x86-64-v4-bf16"])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "queries", "keys", "features"),
    [(2, 2, 32, 32, 32), (4, 2, 50, 50, 64), (6, 3, 70, 333, 128), (4, 1, 2, 177, 64), (1, 1, 300, 301, 32)],
)
def test_attention_in_bfloat16_is_that_of_the_formula(
    heads: int, kv_heads: int, queries: int, keys: int, features: int, causal: bool, instructions: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Of the last queries of some keys too: as near as by torch, and of each row the same whatever stands beside it."""
    library = kernels(instructions)
    monkeypatch.setattr("archetype.native.kernels.library", lambda: library)
    if library is None or not library.has_attention_forward:
        pytest.skip("needs AVX512_BF16 without matrix tiles")
    own = torch.Generator().manual_seed(0)

    def projected(rows: int, number: int, scale: float) -> Tensor:
        return (scale * torch.randn(3, rows, number, features, generator=own)).to(torch.bfloat16).transpose(1, 2)

    q, k, v = projected(queries, heads, 3.0), projected(keys, kv_heads, 3.0), projected(keys, kv_heads, 1.0)
    mask = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries) if causal else None
    scale, before = features**-0.5, torch.get_num_threads()

    @torch.inference_mode()
    def attended(*inputs: Tensor) -> Tensor:
        y = fused.attention(*inputs, scale, causal)
        assert y is not None
        return y

    options: dict[str, Any] = {"attn_mask": mask, "scale": scale, "enable_gqa": True}
    expected = scaled_dot_product_attention(q.double(), k.double(), v.double(), **options)
    plain = scaled_dot_product_attention(q, k, v, **options)
    y, alone = attended(q, k, v), attended(q[1:2], k[1:2], v[1:2])
    torch.set_num_threads(5)
    try:
        shared = attended(q, k, v)
    finally:
        torch.set_num_threads(before)
    errors = [float((each.double() - expected).norm() / expected.norm()) for each in (y, plain)]
    assert errors[0] < 1.1 * errors[1] and errors[0] < 1.5 * 2**-8
    assert torch.equal(y[1:2], alone) and torch.equal(y, shared)


def test_queries_of_a_chunk_are_those_of_the_whole_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """To the bit, wherever it begins: a prompt of which the beginning is known gives the tokens that it gives alone."""
    library = kernels("native")
    if not library.has_attention_forward:
        pytest.skip("needs AVX512_BF16 without matrix tiles")
    monkeypatch.setattr("archetype.native.kernels.library", lambda: library)
    own = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, heads, 300, 64, generator=own).bfloat16() for heads in (4, 2, 2))
    with torch.inference_mode():
        whole = fused.attention(q, k, v, 0.125, causal=True)
        assert whole is not None
        for start, end in ((0, 37), (37, 165), (165, 167), (250, 300), (298, 300)):
            chunk = fused.attention(q[:, :, start:end], k[:, :, :end], v[:, :, :end], 0.125, causal=True)
            assert chunk is not None and torch.equal(chunk, whole[:, :, start:end])


@pytest.mark.parametrize(("heads", "kv_heads", "queries", "keys"), [(4, 2, 50, 333), (2, 2, 7, 8), (6, 1, 300, 301)])
def test_the_last_queries_need_no_mask_in_float32(heads: int, kv_heads: int, queries: int, keys: int) -> None:
    """Keys before the queries and keys of the queries, each in a part of its own, are what a mask gives."""
    own = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, *shape, 32, generator=own) for shape in ((heads, queries), *2 * ((kv_heads, keys),)))
    mask = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)
    options: dict[str, Any] = {"attn_mask": mask, "scale": 0.25, "enable_gqa": True}
    expected = scaled_dot_product_attention(q.double(), k.double(), v.double(), **options)
    with torch.inference_mode():
        y = fused.attention(q, k, v, 0.25, causal=True)
    masked = scaled_dot_product_attention(q, k, v, **options)
    assert y is not None
    errors = [float((each.double() - expected).norm() / expected.norm()) for each in (y, masked)]
    assert errors[0] < 1.1 * errors[1] and errors[0] < 1e-6
    assert fused.attention(q, k, v, 0.25, causal=True) is None  # with gradients


@pytest.mark.parametrize("shape", [(3, 50, 24, 40), (1, 200, 70, 33), (130, 16, 8)])
@pytest.mark.parametrize("has_bias", [False, True])
def test_products_of_many_vectors_by_onednn(
    shape: tuple[int, ...], has_bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And their gradients, of inputs whose rows stand apart; not of few vectors, nor under autocast."""
    monkeypatch.setattr(fused, "_prefers_onednn", lambda: True)
    *rows, D, F = shape
    x, weight, dy = floats(*rows, 2 * D)[..., :D], floats(F, D), floats(*rows, 2 * F)[..., F:]
    inputs = [x, weight, *([floats(F)] if has_bias else [])]

    def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor | None:
        return fused.linear(x, weight, bias)

    ours = outputs_and_gradients(product, inputs, dy)
    with torch.inference_mode():
        assert torch.equal(product(*inputs), ours[0])  # type: ignore[arg-type]
    assert product(x.flatten(0, -2)[: fused.MANY - 1], weight) is None
    with torch.autocast("cpu", torch.bfloat16):
        assert product(x, weight) is None
    assert product(x.bfloat16(), weight.bfloat16()) is None
    monkeypatch.setattr(fused, "_prefers_onednn", lambda: False)
    assert product(x, weight) is None
    assert product(x, weight) is None
    exact = outputs_and_gradients(nn.functional.linear, [tensor.double() for tensor in inputs], dy.double())
    for theirs, result in zip(exact, ours, strict=True):
        assert result.shape == theirs.shape and distance(result, theirs) < 1e-6


def test_onednn_reads_copies_of_a_gradient_that_repeats_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a sum: otherwise a reference path, which takes a thousand times as long, sums in another order."""
    monkeypatch.setattr(fused, "_prefers_onednn", lambda: True)
    x, weight = floats(2048, 64), floats(96, 64)
    repeated, copied = (
        outputs_and_gradients(lambda *inputs: fused.linear(*inputs, None), [x, weight], dy)
        for dy in (torch.full((), 0.3).expand(2048, 96), torch.full((2048, 96), 0.3))
    )
    assert all(torch.equal(*pair) for pair in zip(repeated, copied, strict=True))


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(
    ("rows", "size", "depth"), [(5, 40, 96), (70, 33, 512), (97, 100, 544), (300, 64, 1024), (1100, 77, 512)]
)
def test_products_of_many_vectors_by_tiles(
    rows: int, size: int, depth: int, has_bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of rows that stand apart, by any number of threads; each of them as it would be alone, to the bit."""
    library = kernels("native")
    monkeypatch.setattr("archetype.native.kernels.library", lambda: library)
    if not library.has_tiles:
        pytest.skip("needs matrix tiles")
    x, weight, bias = (floats(*shape).bfloat16() for shape in ((rows, 2 * depth), (size, depth), (size,)))
    x, threads = x[:, depth:], torch.get_num_threads()

    def product(x: Tensor) -> Tensor:
        y = fused.linear(x, weight, bias if has_bias else None)
        assert y is not None
        return y

    with torch.inference_mode():
        y = product(x)
        assert all(torch.equal(product(x[row : row + 1])[0], y[row]) for row in range(rows))
        assert torch.equal(product(x[3:]), y[3:]) and torch.equal(product(x.contiguous()), y)
        torch.set_num_threads(5)
        try:
            assert torch.equal(product(x), y)
        finally:
            torch.set_num_threads(threads)
        assert fused.linear(floats(129, 256).bfloat16(), floats(32, 256).bfloat16(), None) is None  # torch is faster
        assert fused.linear(floats(5, 40).bfloat16(), floats(32, 40).bfloat16(), None) is None  # no whole tiles
    exact = nn.functional.linear(x.double(), weight.double(), bias.double() if has_bias else None)
    assert distance(y, exact) <= 2**-8


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")  # torch's own, of its rules for forward mode
def test_gates_save_their_inputs_alone_and_can_be_differentiated_in_every_way() -> None:
    functions: list[Function] = [
        lambda gate, up, name=name: GatedProduct.apply(gate, up, name, FUSED) for name in ("silu", "gelu", "gelu_tanh")
    ]
    for function in functions:
        inputs = tuple(
            torch.randn(2, 3, 5, dtype=torch.float64, generator=GENERATOR, requires_grad=True) for _ in range(2)
        )
        assert torch.autograd.gradcheck(function, inputs, check_forward_ad=True, check_batched_grad=True)
        assert torch.autograd.gradgradcheck(function, inputs)
        saved: list[int] = []
        with torch.autograd.graph.saved_tensors_hooks(partial(note, saved), lambda x: x):
            function(*inputs)
        assert saved == [x.data_ptr() for x in inputs]


def test_a_training_step_is_the_same_with_fused_operations() -> None:
    """Gradients of models with gates of three kinds, partial and interleaved rotation, shared and offset norms."""
    names = ("llama-tiny", "gemma2-tiny", "phi3-tiny", "gpt-oss-tiny", "deepseek-v3-tiny", "mixtral-tiny", "t5-tiny")
    for name in names:
        model = randomize(build(preset(name)))
        tokens = torch.randint(0, 256, (2, 17), generator=GENERATOR)
        gradients: list[dict[str, Tensor]] = []
        for context in (plain_operations(), nullcontext()):
            with context:
                source = {"source": tokens} if name == "t5-tiny" else {}
                logits = model(tokens[:, :-1], **source).logits
                cross_entropy_loss(logits, tokens[:, 1:]).loss.backward()
            gradients.append({key: p.grad.clone() for key, p in model.named_parameters() if p.grad is not None})
            model.zero_grad()
        assert gradients[0].keys() == gradients[1].keys() and gradients[0]
        for key, gradient in gradients[0].items():
            assert distance(gradients[1][key], gradient) < 1e-4, (name, key)


def test_a_prompt_is_read_alike_with_fused_operations() -> None:
    """Norms with and without offsets and weights, gates, rotations, caches, experts; as plain bodies give it."""
    for name in ("llama-tiny", "gemma2-tiny", "phi3-tiny", "gpt-oss-tiny", "deepseek-v3-tiny", "mixtral-tiny"):
        for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 0.03)):
            model, distances = randomize(build(preset(name))).to(dtype).eval(), []
            for seed in range(5):
                generator = torch.Generator().manual_seed(seed)
                texts = [torch.randint(0, 256, (length,), generator=generator).tolist() for length in (19, 7)]
                fused_logits, _ = prefill(model, texts, model.new_state(2, 32))
                with plain_operations():
                    logits, _ = prefill(model, texts, model.new_state(2, 32))
                assert not torch.equal(fused_logits, logits), name  # they were used
                distances.append(distance(fused_logits, logits))
            # of one text in twenty a router in bfloat16 chooses another of two experts that are almost as good
            typical = max(distances) if dtype == torch.float32 else median(distances)
            assert typical < tolerance, (name, dtype)


def test_kernels_serve_only_the_tensors_that_they_know() -> None:
    kernels("native")
    x = floats(2, 8)
    assert fused.gated(FUSED, "silu", x, x) is not None
    assert (
        fused.gated(FUSED, "silu", x.half(), x.half()) is None and fused.gated(FUSED, "silu", x, x.bfloat16()) is None
    )
    assert fused.gated_backward("silu", x, x, x) is None  # gradients of which gradients may be asked
    with plain_operations():
        assert fused.gated(FUSED, "silu", x, x) is None
    assert fused.gated(FUSED, "silu", x, x) is not None


@pytest.mark.filterwarnings("ignore:.torch.jit.(trace|script). is deprecated")
def test_who_watches_the_operations_of_torch_sees_those_of_torch() -> None:
    """Counters of operations, transformations of functions, forward-mode gradients and traces see the plain body."""
    kernels("native")
    x, weight = floats(3, 8), floats(8)

    def norm(x: Tensor) -> Tensor:
        y = fused.rms_norm(x, weight, 1e-6, torch.float32)
        seen.append(y is None)
        return nn.functional.rms_norm(x, (8,), weight, 1e-6) if y is None else y

    seen: list[bool] = []
    with FlopCounterMode(display=False):
        norm(x)
    torch.func.vmap(norm)(x)
    torch.func.grad(lambda x: norm(x).sum())(x)
    torch.func.jvp(norm, (x,), (x,))
    torch.jit.trace(norm, x, check_trace=False)
    assert all(seen) and len(seen) == 5
    norm(x)
    assert not seen[-1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_can_be_differentiated_again(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each fused operation: the gradient of a function of its gradients is that of the formula in float64."""
    kernels("native")
    monkeypatch.setattr(fused, "_prefers_onednn", lambda: True)
    table = cases(dtype)
    if dtype == torch.float32:
        vectors, weight = floats(2, 80, 24), floats(40, 24)
        product: Function = lambda x, w: fused.linear(x, w, None)  # noqa: E731
        table["product"] = (product, nn.functional.linear, [vectors, weight], floats(2, 80, 40))
    elif FUSED.library.differentiates_attention:
        q, k, v = (floats(1, heads, 40, 32).to(dtype) for heads in (4, 2, 2))
        attention: Function = lambda q, k, v: fused.attention(q, k, v, 0.2, True)  # noqa: E731
        exact: Function = lambda q, k, v: scaled_dot_product_attention(  # noqa: E731
            q, k, v, is_causal=True, scale=0.2, enable_gqa=True
        )
        table["attention"] = (attention, exact, [q, k, v], floats(1, 4, 40, 32).to(dtype))
    for name, (operation, plain, inputs, dy) in table.items():
        results = []
        for function, width in ((operation, dtype), (plain, torch.float64)):
            *leaves, upstream = (tensor.to(width).detach().requires_grad_() for tensor in (*inputs, dy))
            with sdpa_kernel(SDPBackend.MATH):  # torch's others have no second derivative
                y = function(*leaves)
            assert y is not None
            first = torch.autograd.grad(y, leaves, upstream, create_graph=True)
            total = sum((g * g).sum() for g in first)
            again = torch.autograd.grad(total, (*leaves, upstream), allow_unused=True)
            results.append([*first, *(g for g in again if g is not None)])
        assert len(results[0]) == len(results[1]), name
        for ours, exactly in zip(*results, strict=True):
            error = distance(ours.double(), exactly)
            assert error < (1e-5 if dtype == torch.float32 else 0.04), (name, error)


def test_a_loop_of_a_users_own_computes_as_a_training_run_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing has to be asked for: `loss.backward()` alone goes through the kernels."""
    kernels("native")
    emitted: list[str] = []
    emit = Fused.emit

    def noted(self: Fused, arguments: Arguments, serial: bool = False) -> None:
        emitted.append(arguments.operation)
        emit(self, arguments, serial)

    monkeypatch.setattr(Fused, "emit", noted)
    model = build(preset("llama-tiny"))
    tokens = torch.randint(0, 256, (2, 17), generator=GENERATOR)
    cross_entropy_loss(model(tokens[:, :-1]).logits, tokens[:, 1:]).loss.backward()
    assert {"gated", "gated_backward", "rotate", "rows", "rms_norm_backward"} <= set(emitted)
    emitted.clear()
    with plain_operations():
        cross_entropy_loss(model(tokens[:, :-1]).logits, tokens[:, 1:]).loss.backward()
    assert not emitted
