"""The pool index: what it selects, written out; dense attention where it selects all pools."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import archetype
from archetype.models.causal import CausalModel
from archetype.nn.context import ForwardContext
from archetype.nn.place import Place
from archetype.nn.selection import EVERY_KEY
from archetype.parts.pool_index.module import PoolIndex
from archetype.parts.pool_index.spec import PoolIndex as PoolIndexSpec
from archetype.parts.position.spec import Rotary
from tests.helpers.specs import mixed
from tests.helpers.weights import randomize

D, T = 16, 19
INDEX: dict[str, Any] = {"kind": "pools", "pool": 3, "top_pools": 2, "num_heads": 8, "head_dim": 4}
ATTENTION = {"kind": "attention", "num_heads": 4, "num_kv_heads": 2, "position": {"kind": "rotary"}}


def selected_by_definition(index: Any, x: Tensor) -> Tensor:
    """Which keys each query may see, one after the other, (B, T, T)."""
    part, size = index.spec, index.spec.pool
    chosen = torch.zeros(len(x), T, T, dtype=torch.bool)
    positions = torch.arange(T)[None]

    def rotated(y: Tensor, at: Tensor) -> Tensor:
        context = ForwardContext(at, None, False)
        return y if index.rotary is None else index.rotary(y, context.positions, context)

    q = rotated(index.q_norm(index.q(x).unflatten(-1, (part.num_heads, -1))).transpose(1, 2), positions)
    for row in range(len(x)):
        raw = index.k(x[row])
        for query in range(T):
            count = (query + 1) // size
            chosen[row, query, count * size : query + 1] = True
            scores = []
            for pool in range(count):
                mean = index.k_norm(raw[pool * size : (pool + 1) * size].mean(0))
                key = rotated(mean[None, None, None], torch.tensor([[pool * size]]))[0, 0, 0]
                scores.append(float((q[row, :, query] @ key).relu().sum()) / math.sqrt(part.head_dim))
            for pool in sorted(range(count), key=lambda pool: -scores[pool])[: part.top_pools]:
                chosen[row, query, pool * size : (pool + 1) * size] = True
    return chosen


@pytest.mark.parametrize("position", [None, Rotary(dim=2, theta=7.0)])
@torch.no_grad()
def test_complete_pools_compete_and_the_newest_keys_are_kept(position: Rotary | None) -> None:
    index = randomize(PoolIndex(PoolIndexSpec.parse(INDEX | {"position": position}), Place(D), D)).double().eval()
    x = torch.randn(2, T, D, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    causal = torch.ones(1, 1, T, T, dtype=torch.bool).tril()
    choice = index(x, x, causal, ForwardContext.of(x))
    assert choice.keys is not None
    assert torch.equal(choice.keys[:, 0], selected_by_definition(index, x))
    assert int(choice.keys.sum(-1).max()) <= choice.most == 8
    assert int(choice.keys.sum()) < 2 * int(causal.sum())  # some keys are left out


@torch.no_grad()
def test_an_index_that_selects_every_pool_is_dense_attention() -> None:
    tokens = torch.randint(31, (2, T), generator=torch.Generator().manual_seed(T))
    logits = {}
    for top in (6, 5):
        model = archetype.build(mixed(**ATTENTION, index=INDEX | {"top_pools": top}), dtype=torch.float64)
        assert isinstance(model, CausalModel)
        logits[top] = randomize(model).eval()(tokens).logits
    dense = archetype.build(mixed(**ATTENTION), dtype=torch.float64)
    names = dense.state_dict().keys()
    dense.load_state_dict({name: x for name, x in model.state_dict().items() if name in names})
    assert torch.equal(dense.eval()(tokens).logits, logits[6])
    assert not torch.equal(logits[5], logits[6])  # control: five of six pools
    index = PoolIndex(PoolIndexSpec.parse(INDEX | {"top_pools": 6}), Place(D), D).eval()
    x = torch.randn(1, T, D)
    assert index(x, x, torch.ones(1, 1, T, T, dtype=torch.bool).tril(), ForwardContext.of(x)) is EVERY_KEY
