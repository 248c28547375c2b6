"""Positions of Transformer-XL are those of the paper's equation, pair by pair, and of its authors' shifted product."""

import math

import pytest
import torch
from torch import Tensor

from archetype import spec
from archetype.errors import SpecError
from archetype.nn.context import ForwardContext
from archetype.nn.place import Place
from archetype.parts.attention.module import Attention
from archetype.parts.position.module import TransformerXL
from tests.helpers.published import EXACT, WRONG
from tests.helpers.weights import distance, randomize

D, H, P, T, THETA = 12, 4, 5, 9, 100.0
X = torch.randn(2, T, D, generator=torch.Generator().manual_seed(0))
CAUSAL = torch.ones(T, T).tril().bool()


def attention(num_kv_heads: int = H) -> Attention:
    part = spec.Attention(num_heads=H, num_kv_heads=num_kv_heads, head_dim=P, position=spec.TransformerXL(theta=THETA))
    return randomize(Attention(part, Place(D, causal=True))).eval()


def heads(part: Attention) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values (B, T, H, P), each key and value as often as it serves."""
    q, k, v = (projection(X).unflatten(-1, (-1, P)) for projection in (part.q, part.k, part.v))
    return q, k.repeat_interleave(H // k.shape[2], dim=2), v.repeat_interleave(H // v.shape[2], dim=2)


def result(part: Attention, scores: Tensor, v: Tensor) -> Tensor:
    weights = (scores / math.sqrt(P)).masked_fill(~CAUSAL, -math.inf).softmax(-1)
    y: Tensor = part.o(torch.einsum("bhij,bjhp->bihp", weights, v).flatten(2))
    return y


def by_the_equation(part: Attention) -> Tensor:
    """Dai 2019, section 3.3: (q_i + u)^T k_j + (q_i + v)^T W R_(i-j), one pair after the other."""
    bias = part.score_bias
    assert isinstance(bias, TransformerXL)
    q, k, v = heads(part)
    scores = torch.zeros(2, H, T, T)
    for i in range(T):
        for j in range(i + 1):
            angles = [(i - j) / THETA ** (2 * m / D) for m in range(D // 2)]
            waves = torch.tensor([math.sin(angle) for angle in angles] + [math.cos(angle) for angle in angles])
            key = (bias.projection.weight @ waves).unflatten(0, (-1, P))
            key = key.repeat_interleave(H // len(key), dim=0)
            for h in range(H):
                content = (q[:, i, h] + bias.content_bias[h]) @ k[:, j, h].T
                scores[:, h, i, j] = content.diagonal() + (q[:, i, h] + bias.position_bias[h]) @ key[h]
    return result(part, scores, v)


def by_the_shift(part: Attention) -> Tensor:
    """The same as TransfoXL computes it: distances from the farthest on, and a product whose rows are shifted."""
    bias = part.score_bias
    assert isinstance(bias, TransformerXL)
    q, k, v = heads(part)
    angles = torch.outer(torch.arange(T - 1, -1, -1.0), 1 / THETA ** (torch.arange(0.0, D, 2.0) / D))
    r = bias.projection(torch.cat((angles.sin(), angles.cos()), dim=-1)).unflatten(-1, (-1, P))
    content = torch.einsum("bihp,bjhp->bhij", q + bias.content_bias, k)
    positions = torch.einsum("bihp,jhp->bhij", q + bias.position_bias, r)
    padded = torch.cat((positions.new_zeros(2, H, T, 1), positions), dim=-1)
    shifted = padded.view(2, H, T + 1, T)[:, :, 1:].reshape(2, H, T, T)
    return result(part, content + shifted, v)


@pytest.mark.parametrize("num_kv_heads", [H, 2])
@torch.no_grad()
def test_scores_are_those_of_the_equation(num_kv_heads: int) -> None:
    part = attention(num_kv_heads)
    expected = by_the_equation(part)
    assert distance(part(X, ForwardContext.of(X)), expected) < EXACT
    if num_kv_heads == H:
        assert distance(by_the_shift(part), expected) < EXACT
    part.score_bias.position_bias.neg_()  # type: ignore[union-attr, operator]
    assert distance(part(X, ForwardContext.of(X)), expected) > WRONG


@torch.no_grad()
def test_steps_are_as_the_whole() -> None:
    part = attention()
    whole, state, steps = part(X, ForwardContext.of(X)), part.new_state(2, T + 3, X.dtype, X.device), []
    for start, end in ((0, 4), (4, 5), (5, 6), (6, 9)):
        x = X[:, start:end]
        steps.append(part(x, ForwardContext.of(x, torch.full((2,), start)), state))
    assert distance(torch.cat(steps, dim=1), whole) < EXACT


@torch.no_grad()
def test_without_its_numbers_it_is_plain_attention() -> None:
    part = attention()
    plain = Attention(spec.Attention(num_heads=H, head_dim=P), Place(D, causal=True)).eval()
    plain.load_state_dict({name: t for name, t in part.state_dict().items() if not name.startswith("score_bias")})
    for tensor in part.score_bias.parameters():  # type: ignore[union-attr]
        tensor.zero_()
    assert distance(part(X, ForwardContext.of(X)), plain(X, ForwardContext.of(X))) < EXACT


REFUSALS = {
    "score": ({"score": "additive"}, "score: transformer_xl positions need dot-product scores of all keys"),
    "pattern": ({"pattern": {"kind": "window", "size": 3}}, "pattern: transformer_xl positions need"),
    "keys_from": ({"keys_from": 0}, "keys_from: transformer_xl positions need"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_what_does_not_fit_is_refused(name: str) -> None:
    fields, message = REFUSALS[name]
    with pytest.raises(SpecError) as refused:
        spec.Attention.parse({"num_heads": H, "position": {"kind": "transformer_xl"}} | fields)
    assert str(refused.value).startswith(message)
