"""Position biases that each query computes are those of Inkling's equations, pair by pair."""

import math

import torch
from torch import Tensor

from archetype import spec
from archetype.nn.context import ForwardContext
from archetype.nn.place import Place
from archetype.parts.attention.module import Attention
from tests.helpers.published import EXACT, WRONG
from tests.helpers.weights import distance, randomize

D, H, K, P, T, RANK, EXTENT, WINDOW = 12, 4, 2, 5, 9, 3, 4, 6
X = torch.randn(2, T, D, generator=torch.Generator().manual_seed(0))
SCALE = spec.QueryScale(beta=0.4, length=3, offset=1, form="log_ratio")


def attention() -> Attention:
    part = spec.Attention(
        num_heads=H,
        num_kv_heads=K,
        head_dim=P,
        scale=1 / P,
        query_scale=SCALE,
        pattern=spec.Window(size=WINDOW),
        position=spec.RelativeLogits(rank=RANK, extent=EXTENT),
    )
    return randomize(Attention(part, Place(D, causal=True))).eval()


def by_the_equation(part: Attention) -> Tensor:
    """tau_i (q_i^T k_j / P + r_i^T B_(i-j)), and no bias from `EXTENT` on."""
    bank = part.score_bias.bank  # type: ignore[union-attr]
    q, k, v = (projection(X).unflatten(-1, (-1, P)) for projection in (part.q, part.k, part.v))
    r = part.position_query(X).unflatten(-1, (H, RANK))  # type: ignore[misc]
    k, v = (heads.repeat_interleave(H // K, dim=2) for heads in (k, v))
    scores = torch.full((2, H, T, T), -math.inf)
    for i in range(T):
        factor = 1 + 0.4 * math.log(max(1.0, (i + 1) / 3))
        for j in range(max(0, i - WINDOW + 1), i + 1):
            bias = r[:, i] @ bank[:, i - j] if i - j < EXTENT else 0.0
            scores[:, :, i, j] = factor * ((q[:, i] * k[:, j]).sum(-1) / P + bias)
    y: Tensor = part.o(torch.einsum("bhij,bjhp->bihp", scores.softmax(-1), v).flatten(2))
    return y


@torch.no_grad()
def test_scores_are_those_of_the_equation() -> None:
    part = attention()
    expected = by_the_equation(part)
    assert distance(part(X, ForwardContext.of(X)), expected) < EXACT
    part.score_bias.bank.copy_(part.score_bias.bank.flip(1))  # type: ignore[union-attr, operator]
    assert distance(part(X, ForwardContext.of(X)), expected) > WRONG


@torch.no_grad()
def test_steps_are_as_the_whole() -> None:
    part = attention()
    whole, state, steps = part(X, ForwardContext.of(X)), part.new_state(2, T + 3, X.dtype, X.device), []
    for start, end in ((0, 4), (4, 5), (5, 6), (6, 9)):
        x = X[:, start:end]
        steps.append(part(x, ForwardContext.of(x, torch.full((2,), start)), state))
    assert distance(torch.cat(steps, dim=1), whole) < EXACT
