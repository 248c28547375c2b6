"""Cross-attention against its formula, row by row."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from archetype import spec
from archetype.nn.context import EncoderOutput, ForwardContext
from archetype.parts.attention.cross import CrossAttention
from tests.helpers.weights import distance, randomize

D, S, T = 12, 6, 4
COUNTS = [6, 1, 4]
CPU = torch.device("cpu")


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


X, VECTORS = random(3, T, D), random(3, S, D, seed=1)


def build(**fields: Any) -> CrossAttention:
    part = CrossAttention(spec.Attention(**({"num_heads": 4} | fields)), D)
    randomize(part)
    return part


def run(part: CrossAttention, x: Tensor = X, vectors: Tensor = VECTORS, num_tokens: list[int] | None = None) -> Tensor:
    source = EncoderOutput(vectors, None if num_tokens is None else torch.tensor(num_tokens))
    return part(x, ForwardContext.of(x), part.project(source, ForwardContext.of(vectors)))


def linear(projection: torch.nn.Linear, x: Tensor) -> Tensor:
    y = x @ projection.weight.double().T
    return y if projection.bias is None else y + projection.bias.double()


def rms(x: Tensor, norm: torch.nn.Module) -> Tensor:
    return x / (x.square().mean() + norm.eps).sqrt() * norm.weight.double()


@torch.no_grad()
def reference(part: CrossAttention, num_tokens: list[int]) -> Tensor:
    """Query by query, key by key, in double precision."""
    heads, kv_heads, size, *_ = part.sizes
    x, vectors = X.double(), VECTORS.double()
    q, k, v = linear(part.q, x), linear(part.k, vectors), linear(part.v, vectors)
    mixed = torch.zeros(3, T, heads * size, dtype=torch.float64)
    for row, count in enumerate(num_tokens):
        for head in range(heads):
            own = slice(head * size, (head + 1) * size)
            read = head * kv_heads // heads
            shared = slice(read * size, (read + 1) * size)
            for i in range(T):
                scores = []
                for j in range(count):
                    query, key = q[row, i, own], k[row, j, shared]
                    if not part.spec.qk_norm.is_absent:
                        query, key = rms(query, part.q_norm), rms(key, part.k_norm)
                    if part.score is not None:
                        scores.append(part.score[head].double() @ torch.tanh(query + key))
                    else:
                        scores.append(query @ key * (part.spec.scale or 1 / math.sqrt(size)))
                sinks = [] if part.sinks is None else [part.sinks[head].double()]
                mixed[row, i, own] = torch.stack(scores + sinks).softmax(0)[:count] @ v[row, :count, shared]
    if part.gate is not None:
        mixed = mixed * torch.sigmoid(linear(part.gate, x))
    return linear(part.o, mixed)


CHOICES: dict[str, dict[str, Any]] = {
    "plain": {},
    "biases": {"bias": True},
    "scale": {"scale": 0.9, "head_dim": 5},
    "additive": {"score": "additive"},
    "qk_norm": {"qk_norm": spec.RMSNorm(eps=0.1)},
    "sinks": {"sinks": True},
    "gate": {"gate": spec.OutputGate(), "sinks": True},
    "additive qk_norm": {"score": "additive", "qk_norm": spec.RMSNorm()},
}
choices = pytest.mark.parametrize("choice", CHOICES)


@choices
@pytest.mark.parametrize("num_kv_heads", [1, 2, 4])
@pytest.mark.parametrize("num_tokens", [None, COUNTS])
def test_cross_attention_is_its_formula(choice: str, num_kv_heads: int, num_tokens: list[int] | None) -> None:
    part = build(num_kv_heads=num_kv_heads, **CHOICES[choice])
    assert distance(run(part, num_tokens=num_tokens), reference(part, num_tokens or [S] * 3)) < 2e-6


@choices
def test_a_sources_padding_is_not_seen(choice: str) -> None:
    part = build(**CHOICES[choice])
    garbage = torch.where((torch.arange(S) < torch.tensor(COUNTS)[:, None])[..., None], VECTORS, 1e3)
    together = run(part, vectors=garbage, num_tokens=COUNTS)
    assert torch.equal(together, run(part, num_tokens=COUNTS))
    for row, count in enumerate(COUNTS):
        here = slice(row, row + 1)
        assert distance(together[here], run(part, X[here], VECTORS[here, :count])) < 2e-6


def test_in_a_source_of_nothing_a_number_is_found() -> None:
    for part in (build(), build(score="additive"), build(softcap=1.0)):
        for x in (X, X[:, :1]):
            y = run(part, x, num_tokens=[6, 0, 4])
            assert y.isfinite().all()
            assert distance(y[[0, 2]], run(part, x, num_tokens=[6, 1, 4])[[0, 2]]) < 1e-6


@choices
@pytest.mark.parametrize("num_tokens", [None, COUNTS])
def test_a_source_that_was_projected_once_serves_every_token(choice: str, num_tokens: list[int] | None) -> None:
    """Each alone, and rows chosen from it; the positions of the target make no difference."""
    part = build(num_kv_heads=2, **CHOICES[choice])
    whole = run(part, num_tokens=num_tokens)
    source = EncoderOutput(VECTORS, None if num_tokens is None else torch.tensor(num_tokens))
    state = part.project(source, ForwardContext.of(VECTORS))
    assert state.keys.shape == state.values.shape == (3, 2, S, part.sizes.head_dim)
    assert state.num_tokens.tolist() == (num_tokens or [S] * 3)
    for place in range(T):
        x = X[:, place : place + 1]
        context = ForwardContext.of(x, torch.tensor([place, 0, 7]))
        assert distance(part(x, context, state), whole[:, place : place + 1]) < 2e-6
    rows = torch.tensor([2, 0])
    assert distance(part(X[rows], ForwardContext.of(X[rows]), state.select(rows)), whole[rows]) < 2e-6


def test_every_layer_of_a_pass_has_its_own_keys_and_the_same_padding() -> None:
    first, second, context = build(), build(num_kv_heads=1), ForwardContext.of(X)
    source = EncoderOutput(VECTORS, torch.tensor(COUNTS))
    ours = [part(X, context, part.project(source, context)) for part in (first, second)]
    assert torch.equal(ours[0], run(first, num_tokens=COUNTS))
    assert torch.equal(ours[1], run(second, num_tokens=COUNTS))


@choices
def test_lower_precision_and_gradients(choice: str) -> None:
    part = build(num_kv_heads=2, **CHOICES[choice])
    exact = run(part, num_tokens=COUNTS)
    vectors = VECTORS.clone().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        y = run(part, vectors=vectors, num_tokens=COUNTS)
    assert distance(y, exact) < 0.03
    y.float().sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in part.parameters())
    seen = vectors.grad.abs().amax(-1) > 0
    assert torch.equal(seen, torch.arange(S) < torch.tensor(COUNTS)[:, None])


def test_dropout_falls_on_weights_in_training_only() -> None:
    part = build(dropout=0.5)
    assert torch.equal(run(part), run(part))
    part.train()
    torch.manual_seed(0)
    assert not torch.equal(run(part), run(part))
