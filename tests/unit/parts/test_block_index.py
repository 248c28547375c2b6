"""The block index: what it selects, written out; dense attention where it selects all; one selection per key head."""

import itertools
import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

import archetype
from archetype import spec
from archetype.cost import total_parameters
from archetype.errors import SpecError
from archetype.generate.step import DecodeStep
from archetype.models.causal import CausalModel
from archetype.models.cost import model_cost
from archetype.nn.context import ForwardContext
from archetype.nn.place import Place
from archetype.nn.selection import EVERY_KEY
from archetype.nn.state import State
from archetype.parts.block_index.module import BlockIndex
from archetype.parts.block_index.spec import BlockIndex as BlockIndexSpec
from tests.helpers.examples import every
from tests.helpers.passes import forward_step
from tests.helpers.specs import mixed
from tests.helpers.weights import distance, randomize

D, T = 16, 19
ROTARY = {"kind": "rotary", "dim": 2}
INDEX: dict[str, Any] = {
    "kind": "blocks", "block": 3, "top_blocks": 3, "num_heads": 2, "head_dim": 4, "position": ROTARY,
}  # fmt: skip
ATTENTION = {"kind": "attention", "num_heads": 4, "num_kv_heads": 2, "position": {"kind": "rotary"}}
CHANGES: dict[str, dict[str, Any]] = {
    "max": {},
    "mean, one selection": {"pooling": "mean", "num_heads": 1, "local_blocks": 2},
    "a selection for each query head": {"num_heads": 4},
    "without positions and norms": {"position": None, "norm": {"kind": "none"}, "block": 1, "top_blocks": 4},
}

MOBA: dict[str, Any] = {
    "own_projections": False, "num_heads": 4, "position": None, "norm": {"kind": "none"}, "loss_weight": 0.0,
    "pooling": "mean",
}  # fmt: skip


def model(dtype: torch.dtype = torch.float64, mixer: dict[str, Any] = ATTENTION, **index: Any) -> CausalModel:
    built = archetype.build(mixed(**mixer, index=INDEX | index), dtype=dtype)
    assert isinstance(built, CausalModel)
    return randomize(built).requires_grad_(False).eval()


def tokens(rows: int = 2, length: int = T) -> Tensor:
    return torch.randint(31, (rows, length), generator=torch.Generator().manual_seed(length))


def state_of(model_spec: Any) -> State:
    built = archetype.build(model_spec)
    assert isinstance(built, CausalModel)
    return built.new_state(1, T)


def in_steps(model: CausalModel, texts: Tensor, cuts: list[int], capacity: int) -> Tensor:
    state, pieces = model.new_state(len(texts), capacity), []
    for start, end in pairwise([0, *cuts, texts.shape[1]]):
        piece, state = forward_step(model, texts[:, start:end], state)
        pieces.append(piece)
    return torch.cat(pieces, 1)


def selected_by_definition(index: BlockIndex, x: Tensor) -> Tensor:
    """Which keys each query of each head may see, one after the other, (B, H, T, T)."""
    part, context = index.spec, ForwardContext.of(x)
    chosen = torch.zeros(len(x), part.num_heads, x.shape[1], x.shape[1], dtype=torch.bool)
    q = index.rotated(index.heads(index.q(x), index.q_norm), context)
    k = index.rotated(index.heads(index.k(x), index.k_norm), context)[:, 0]
    for row in range(len(x)):
        for head in range(part.num_heads):
            for t in range(x.shape[1]):
                own, scores = t // part.block, {}
                for block in range(own + 1):
                    keys = range(block * part.block, min(t + 1, (block + 1) * part.block))
                    products = [float(q[row, head, t] @ k[row, s]) for s in keys]
                    pooled = max(products) if part.pooling == "max" else sum(products) / len(products)
                    scores[block] = math.inf if own - block < part.local_blocks else pooled
                for block in sorted(scores, key=lambda block: -scores[block])[: part.top_blocks]:
                    chosen[row, head, t, block * part.block : min(t + 1, (block + 1) * part.block)] = True
    return chosen


@pytest.mark.parametrize("change", CHANGES)
@torch.no_grad()
def test_the_selected_blocks_are_those_of_the_definition(change: str) -> None:
    part = BlockIndexSpec(**INDEX | CHANGES[change])
    index = randomize(BlockIndex(part, Place(D, 0), D)).double().eval()
    x = torch.randn(2, T, D, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    allowed = torch.ones(T, T, dtype=torch.bool).tril()[None, None]
    choice = index(x, x, allowed, ForwardContext.of(x))
    assert choice.keys is not None and choice.scores is None
    expected = selected_by_definition(index, x)
    assert torch.equal(choice.keys.expand_as(expected), expected)
    assert int(expected.sum(-1).max()) <= choice.most == part.top_blocks * part.block
    everything = BlockIndex(part.replace(top_blocks=-(-T // part.block)), Place(D, 0), D).double().eval()
    assert everything(x, x, allowed, ForwardContext.of(x)) is EVERY_KEY


@torch.no_grad()
def test_heads_of_attention_choose_the_blocks_whose_mean_key_fits_their_query() -> None:
    """MoBA (Lu 2025, section 2.2): the query's own block, and the best of the earlier ones."""
    part = BlockIndexSpec(**INDEX | MOBA)
    index = BlockIndex(part, Place(D, 0), D)
    assert not list(index.parameters())
    generator = torch.Generator().manual_seed(3)
    q, k = torch.randn(2, 4, T, 4, generator=generator), torch.randn(2, 2, T, 4, generator=generator)
    causal = torch.ones(T, T, dtype=torch.bool).tril()
    chosen = index.choose(q, k, causal[None, None], ForwardContext.of(torch.zeros(2, T, D))).keys
    expected = torch.zeros(2, 4, T, T, dtype=torch.bool)
    for row, head, t in itertools.product(range(2), range(4), range(T)):
        keys, own = k[row, head // 2], t // part.block
        fits = {block: float(q[row, head, t] @ keys[block * 3 : block * 3 + 3].mean(0)) for block in range(own)}
        for block in (own, *sorted(fits, key=lambda block: -fits[block])[: part.top_blocks - 1]):
            expected[row, head, t, block * 3 : block * 3 + 3] = True
    assert chosen is not None and torch.equal(chosen, expected & causal)


@pytest.mark.parametrize("change", [{}, MOBA], ids=["own projections", "heads of attention"])
def test_all_blocks_are_dense_attention_to_the_bit(change: dict[str, Any]) -> None:
    chosen = model(**{**change, "top_blocks": 7})
    plain = archetype.build(
        spec.parse(spec.assign(chosen.spec, ["layers[*].mixer.index=null"]).dump()), dtype=chosen.dtype
    )
    plain.load_state_dict({name: x for name, x in chosen.state_dict().items() if ".index." not in name})
    assert torch.equal(chosen(tokens()).logits, plain(tokens()).logits)
    assert distance(model(**change)(tokens()).logits, plain(tokens()).logits) > 1e-3  # control


@pytest.mark.parametrize("change", [*every(2, CHANGES), "heads of attention"])
def test_a_text_in_pieces_is_the_whole_text(change: str) -> None:
    built, texts = model(**CHANGES.get(change, MOBA)), tokens()
    whole = built(texts).logits
    for cuts in ([5, 6, 11], list(range(1, T))):
        for capacity in (T, T + 9):
            assert distance(in_steps(built, texts, cuts, capacity), whole) < 1e-9


def test_selections_of_each_key_head_with_a_bias_of_positions() -> None:
    built, texts = model(mixer=ATTENTION | {"position": {"kind": "alibi"}}), tokens()
    assert distance(in_steps(built, texts, list(range(1, T)), T), built(texts).logits) < 1e-9


@pytest.mark.parametrize("change", [{}, MOBA], ids=["own projections", "heads of attention"])
def test_a_decode_step_agrees(change: dict[str, Any]) -> None:
    built, texts = model(torch.float32, **change), tokens()
    state = built.new_state(2, T)
    _, state = forward_step(built, texts[:, :12], state)
    step = DecodeStep(built, state)
    for position in range(12, T):
        logits = step(texts[:, position : position + 1])
        assert distance(logits, built(texts[:, : position + 1]).logits[:, -1]) < 1e-5


def test_the_index_learns_and_its_loss_trains_nothing_else() -> None:
    built = archetype.build(mixed(**ATTENTION, index=INDEX), seed=0)
    loss = built(tokens()).aux_loss
    assert loss is not None
    loss.backward()
    trained = {name for name, parameter in built.named_parameters() if parameter.grad is not None}
    assert trained and all(".index." in name for name in trained)
    optimizer = torch.optim.SGD([p for name, p in built.named_parameters() if ".index." in name], lr=0.3)
    losses = []
    for _ in range(12):
        optimizer.zero_grad()
        loss = built(tokens()).aux_loss
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
    assert losses[-1] < 0.9 * losses[0]


@pytest.mark.parametrize("change", [{}, MOBA], ids=["own projections", "heads of attention"])
def test_the_cost_is_that_of_the_module(change: dict[str, Any]) -> None:
    built = model(**change)
    assert total_parameters(built.spec) == sum(parameter.numel() for parameter in built.parameters())
    plain = spec.parse(spec.assign(built.spec, ["layers[*].mixer.index=null"]).dump())
    sizes = [
        sum(x.numel() for layer in state_of(one).layers for _, _, x in layer.tensors()) for one in (built.spec, plain)
    ]
    assert sizes[0] - sizes[1] == (0 if change else len(built.spec.layers) * T * INDEX["head_dim"])
    assert model_cost(built.spec).state(T)[0] == sizes[0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"local_blocks": 4}, "local_blocks: 4 is more than top_blocks 3; use at most 3"),
        (
            {"num_heads": 3},
            "index.num_heads: 3 selecting heads do not divide num_heads 4; use 1, or as many as num_kv_heads",
        ),
        (MOBA | {"num_heads": 2}, "index.num_heads: 2 differs from attention's 4; use 4"),
        (
            MOBA | {"norm": {"kind": "rms"}},
            "norm: attention's queries and keys select; use norm: none",
        ),
        ({"position": {"kind": "rotary", "dim": 8}}, "position.dim: 8 is more than head_dim 4; use at most 4"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as refused:
        model(**change)
    assert str(refused.value).endswith(message)
