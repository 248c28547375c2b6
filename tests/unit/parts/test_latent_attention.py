"""Latent attention: its definition written out, its two forms, and what it remembers."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from archetype import spec
from archetype.nn.cache import KVCache
from archetype.nn.context import ForwardContext
from archetype.nn.place import Place
from archetype.parts.latent_attention.module import LatentAttention
from tests.helpers.examples import examples
from tests.helpers.weights import distance, randomize

D, HEADS = 20, 3
NOPE, ROPE, V, LATENT = 5, 4, 6, 7
B, T = 2, 9
SIZES: dict[str, Any] = {
    "num_heads": HEADS, "kv_lora_rank": LATENT, "qk_nope_head_dim": NOPE, "qk_rope_head_dim": ROPE, "v_head_dim": V,
}  # fmt: skip
LOW_RANK = spec.LowRankQuery(rank=11)
YARN = spec.YarnScaling(factor=4.0, original_context_length=8, mscale=0.7, mscale_all_dim=0.4)

CASES: dict[str, dict[str, Any]] = {
    "direct": {},
    "low rank": {"query": LOW_RANK},
    "biases": {"query": LOW_RANK, "bias": True},
    "half-split": {"position": spec.Rotary(theta=50.0)},
    "yarn": {"position": spec.Rotary(interleaved=True, scaling=YARN)},
    "scale": {"scale": 0.9},
    "layer norm": {"query": LOW_RANK, "norm": spec.LayerNorm()},
    "no norm": {"norm": spec.NoNorm()},
    "wide values": {"v_head_dim": 13},
    "scaled latents": {
        "query": LOW_RANK.replace(scale=1.7),
        "latent_scale": 0.6,
        "key_norm": spec.RMSNorm(),
    },
    "one head": {"num_heads": 1},
}


def build(causal: bool = True, **fields: Any) -> LatentAttention:
    part = LatentAttention(spec.LatentAttention(**(SIZES | fields)), Place(D, causal=causal)).double()
    randomize(part)
    return part


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


X = random(B, T, D)
FORMS = ("_plain", "_absorbed")


def force(part: LatentAttention, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the part take one of its forms, whatever is cheaper."""
    monkeypatch.setattr(spec.LatentAttention, "absorbs", lambda self, queries, keys: form == "_absorbed")


def read(part: LatentAttention, x: Tensor = X, num_tokens: Tensor | None = None) -> Tensor:
    return part(x, ForwardContext.of(x, num_tokens=num_tokens))


def read_in_chunks(part: LatentAttention, x: Tensor, chunks: list[int], capacity: int) -> Tensor:
    state = part.new_state(x.shape[0], capacity, x.dtype, x.device)
    outputs, start = [], 0
    for size in chunks:
        chunk = x[:, start : start + size]
        y = part(chunk, ForwardContext.of(chunk, torch.full((x.shape[0],), start)), state)
        outputs.append(y)
        start += size
    return torch.cat(outputs, dim=1)


def reference(part: LatentAttention, x: Tensor) -> Tensor:
    """Head by head and pair by pair, from section 2.1's equations; one row."""
    own = part.spec

    def affine(projection: torch.nn.Linear, y: Tensor) -> Tensor:
        y = y @ projection.weight.T
        return y if projection.bias is None else y + projection.bias

    def turned(y: Tensor, position: int) -> Tensor:
        out = y.clone()
        for p in range(ROPE // 2):
            angle = position * own.position.theta ** (-2 * p / ROPE)
            first, second = (2 * p, 2 * p + 1) if own.position.interleaved else (p, p + ROPE // 2)
            out[first] = y[first] * math.cos(angle) - y[second] * math.sin(angle)
            out[second] = y[second] * math.cos(angle) + y[first] * math.sin(angle)
        return out

    low_rank = isinstance(own.query, spec.LowRankQuery)
    if low_rank:
        queries = affine(part.q_up, own.query.scale * part.q_norm(affine(part.q_down, x)))
    else:
        queries = affine(part.q, x)
    queries = queries.view(len(x), own.num_heads, NOPE + ROPE)
    down = affine(part.kv_down, x)
    latents, keys = own.latent_scale * part.kv_norm(down[:, :LATENT]), down[:, LATENT:]
    keys = part.k_norm(keys)
    up = affine(part.kv_up, latents).view(len(x), own.num_heads, NOPE + own.v_head_dim)
    scale = own.scale or (NOPE + ROPE) ** -0.5
    mixed = torch.zeros(len(x), own.num_heads, own.v_head_dim, dtype=x.dtype)
    for head in range(own.num_heads):
        for i in range(len(x)):
            q, q_turned = queries[i, head, :NOPE], turned(queries[i, head, NOPE:], i)
            last = i + 1 if part.causal else len(x)
            scores = [q @ up[j, head, :NOPE] + q_turned @ turned(keys[j], j) for j in range(last)]
            weights = (scale * torch.stack(scores)).softmax(0)
            mixed[i, head] = weights @ up[:last, head, NOPE:]
    return affine(part.o, mixed.flatten(1))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("case", [name for name in CASES if name != "yarn"])
def test_it_is_the_written_out_definition(case: str, causal: bool, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    part = build(causal, **CASES[case])
    force(part, form, monkeypatch)
    expected = torch.stack([reference(part, row) for row in X])
    assert distance(read(part), expected) < 1e-6  # angles are float32


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("fields", CASES.values(), ids=CASES)
def test_absorbed_is_plain(fields: dict[str, Any], causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    part, results = build(causal, **fields), {}
    num_tokens = torch.tensor([T, 4])
    for form in FORMS:
        force(part, form, monkeypatch)
        results[form] = [read(part), read(part, num_tokens=num_tokens)[0], read(part, num_tokens=num_tokens)[1, :4]]
        if causal:
            results[form] += [read_in_chunks(part, X, [4, 2, 3], T + 2)]
    for plain, absorbed in zip(*results.values(), strict=True):
        assert distance(absorbed, plain) < 1e-10


@pytest.mark.parametrize("chunks", [[1] * T, [4, 1, 3, 1]])
@pytest.mark.parametrize("fields", CASES.values(), ids=CASES)
def test_absorbed_is_plain_token_by_token(
    fields: dict[str, Any], chunks: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """To float32's precision, in which `attend` takes the scores of a single query."""
    part, results = build(**fields), []
    for form in FORMS:
        force(part, form, monkeypatch)
        results.append(read_in_chunks(part, X, chunks, T + 2))
    assert distance(results[1], results[0]) < 1e-6
    assert distance(results[1], read(part)) < 1e-10


@pytest.mark.parametrize("fields", CASES.values(), ids=CASES)
def test_gradients_of_both_forms_agree(fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    part, results = build(**fields), []
    for form in FORMS:
        force(part, form, monkeypatch)
        x = X.clone().requires_grad_()
        results.append(torch.autograd.grad(read(part, x).square().sum(), [x, *part.parameters()]))
    for plain, absorbed in zip(*results, strict=True):
        assert distance(absorbed, plain) < 1e-10


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.sampled_from(list(CASES)), st.integers(0, 3))
@examples(15)
def test_a_state_changes_nothing(chunks: list[int], case: str, room: int) -> None:
    part, length = build(**CASES[case]), sum(chunks)
    x = random(B, length, D, seed=length)
    assert distance(read_in_chunks(part, x, chunks, length + room), read(part, x)) < 1e-9


@pytest.mark.parametrize("form", FORMS)
def test_rows_of_different_lengths_are_what_each_is_alone(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two passes, the first with three and no real tokens, the second with one and four."""
    part = build(query=LOW_RANK)
    force(part, form, monkeypatch)
    state = part.new_state(B, 5, X.dtype, X.device)
    first, second = random(B, 3, D, seed=1), random(B, 4, D, seed=2)
    early = part(first, ForwardContext.of(first, torch.tensor([0, 0]), torch.tensor([3, 0])), state)
    late = part(second, ForwardContext.of(second, torch.tensor([3, 0]), torch.tensor([1, 4])), state)
    assert early.isfinite().all() and late.isfinite().all()
    alone = read(part, torch.cat((first[:1], second[:1, :1]), dim=1))
    assert distance(early[:1], alone[:, :3]) < 1e-9
    assert distance(late[:1, :1], alone[:, 3:]) < 1e-9
    assert distance(late[1:], read(part, second[1:])) < 1e-9


@pytest.mark.parametrize("form", FORMS)
def test_a_reader_of_both_directions_does_not_see_padding(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    part = build(causal=False)
    force(part, form, monkeypatch)
    y = read(part, num_tokens=torch.tensor([T, 4]))
    assert distance(y[:1], read(part, X[:1])) < 1e-9
    assert distance(y[1:, :4], read(part, X[1:, :4])) < 1e-9


@pytest.mark.parametrize("form", FORMS)
@given(changed=st.integers(1, T - 1))
@settings(max_examples=T)
def test_the_past_does_not_see_the_future(form: str, changed: int) -> None:
    part, other = build(), X.clone()
    other[:, changed:] += 1
    with pytest.MonkeyPatch.context() as monkeypatch:
        force(part, form, monkeypatch)
        before, after = read(part), read(part, other)
    assert distance(after[:, :changed], before[:, :changed]) < 1e-12
    assert distance(after[:, changed], before[:, changed]) > 1e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_position_is_remembered_in_as_many_numbers_as_the_latent_and_the_turned_key(dtype: torch.dtype) -> None:
    state = build(num_heads=16).new_state(3, 10, dtype, torch.device("cpu"))
    assert state.nbytes == 3 * 10 * (LATENT + ROPE) * dtype.itemsize


def test_latents_are_remembered_after_their_norm_and_keys_after_their_turn() -> None:
    part = build()
    state = part.new_state(B, T, X.dtype, X.device)
    part(X, ForwardContext.of(X, torch.zeros(B, dtype=torch.long)), state)
    assert isinstance(state, KVCache)
    down = part.kv_down(X)
    torch.testing.assert_close(state.keys[:, 0], part.kv_norm(down[..., :LATENT]))
    torch.testing.assert_close(state.values[:, 0, 0], down[:, 0, LATENT:])  # position 0 is not turned
    assert distance(state.values[:, 0, 1:], down[:, 1:, LATENT:]) > 1e-2


def test_a_decoded_token_is_absorbed_and_a_long_text_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[str] = []

    def watched(form: str) -> Callable[..., Tensor]:
        compute = getattr(LatentAttention, form)

        def note(*inputs: Any) -> Tensor:
            taken.append(form)
            return compute(*inputs)

        return note

    for form in FORMS:
        monkeypatch.setattr(LatentAttention, form, watched(form))
    part = build(kv_lora_rank=32)
    read(part)
    read_in_chunks(part, X, [T - 1, 1], 64)
    assert taken == ["_plain", "_plain", "_absorbed"]


@pytest.mark.parametrize("form", FORMS)
def test_scores_are_bounded_by_no_overflow(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    part = build(scale=1e4).float()
    force(part, form, monkeypatch)
    assert read(part, X.float()).isfinite().all()


@pytest.mark.parametrize("form", FORMS)
def test_half_precision_is_near(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    part = build(query=LOW_RANK)
    force(part, form, monkeypatch)
    exact, part = read(part), part.float()
    with torch.autocast("cpu", torch.bfloat16):
        assert distance(read(part, X.float()), exact) < 0.05
        assert distance(read_in_chunks(part, X.float(), [5, 4], T), exact) < 0.05
    assert distance(read(part.bfloat16(), X.bfloat16()), exact) < 0.05


@pytest.mark.parametrize("form", FORMS)
def test_a_state_may_keep_fewer_bits(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    part = build().float()
    force(part, form, monkeypatch)
    x = X.float()
    state = part.new_state(B, T, torch.bfloat16, x.device)
    y = part(x, ForwardContext.of(x, torch.zeros(B, dtype=torch.long)), state)
    assert y.dtype == torch.float32
    assert 1e-5 < distance(y, read(part, x)) < 0.05


@pytest.mark.parametrize("form", FORMS)
def test_dropout_falls_on_weights_in_training_only(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    part = build(dropout=0.5)
    force(part, form, monkeypatch)
    still = read(part)
    assert torch.equal(read(part), still)
    part.train()
    torch.manual_seed(0)
    assert not torch.equal(read(part), read(part))
    assert distance(read(part, X[:1].expand(2000, -1, -1)).mean(0), still[0]) < 0.1


def test_names_and_shapes_are_the_file_format() -> None:
    width = HEADS * (NOPE + ROPE)
    common = {
        "kv_down.weight": (LATENT + ROPE, D),
        "kv_norm.weight": (LATENT,),
        "kv_up.weight": (HEADS * (NOPE + V), LATENT),
        "o.weight": (D, HEADS * V),
    }
    low = {"q_down.weight": (11, D), "q_norm.weight": (11,), "q_up.weight": (width, 11)}
    biases = {"q_down.bias": (11,), "kv_down.bias": (LATENT + ROPE,), "o.bias": (D,)}

    def shapes(part: LatentAttention) -> dict[str, tuple[int, ...]]:
        return {name: tuple(p.shape) for name, p in part.named_parameters()}

    assert shapes(build()) == common | {"q.weight": (width, D)}
    assert shapes(build(query=LOW_RANK)) == common | low
    assert shapes(build(query=LOW_RANK, bias=True)) == common | low | biases
