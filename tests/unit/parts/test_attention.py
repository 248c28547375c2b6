"""Attention against a softmax written out in double precision."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from archetype import spec
from archetype.nn.cache import KVCache, RingKVCache
from archetype.nn.context import ForwardContext
from archetype.nn.layer_state import LayerState
from archetype.nn.place import Place
from archetype.parts.attention.module import Attention
from archetype.parts.position.module import RelativeBias, Rotary
from archetype.roles.pattern import MaskContext, pattern_rule
from tests.helpers.examples import every
from tests.helpers.weights import distance, randomize

D = 24
B, T = 2, 7
CPU = torch.device("cpu")
ALL = spec.ProjectionBiases(q=True, k=True, v=True, o=True)


def build(causal: bool = True, layer: int = 0, **fields: Any) -> Attention:
    part = Attention(spec.Attention(**({"num_heads": 4} | fields)), Place(D, causal=causal, layer=layer))
    randomize(part)
    return part


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


X = random(B, T, D)


def run(part: Attention, x: Tensor = X, num_tokens: Tensor | None = None) -> Tensor:
    context = ForwardContext.of(x, num_tokens=num_tokens)
    if isinstance(part.spec.position, spec.RelativeBias):
        context.position_bias = randomize(RelativeBias(part.spec.position, 4, 1, part.pairs.causal))
    return part(x, context)


@torch.no_grad()
def reference(part: Attention, x: Tensor, scale: float | None = None, num_tokens: list[int] | None = None) -> Tensor:
    """Head by head, query by query, from the definition; every part of it that the specification names."""
    heads, kv_heads, size, *_ = part.sizes
    chosen, length = part.spec, x.shape[1]
    scale, setting = scale or 1 / math.sqrt(size), MaskContext(part.pairs.causal, length, part.pairs.layer)
    x = x.double()

    def project(projection: torch.nn.Linear, y: Tensor) -> Tensor:
        y = y @ projection.weight.double().T
        return y if projection.bias is None else y + projection.bias.double()

    def normed(norm: torch.nn.Module, y: Tensor) -> Tensor:
        if chosen.qk_norm.is_absent:
            return y
        y = y.unflatten(-1, (-1, size))
        y = y / (y.square().mean(-1, keepdim=True) + norm.eps).sqrt() * norm.weight.double()
        return y.flatten(-2)

    q, k, v = project(part.q, x), project(part.k, x), project(part.v, x)
    q, k = normed(part.q_norm, q), normed(part.k_norm, k)
    if chosen.clip_qkv is not None:
        q, k, v = (y.clamp(-chosen.clip_qkv, chosen.clip_qkv) for y in (q, k, v))
    mixed = torch.zeros(*x.shape[:2], heads * size, dtype=torch.float64)
    for row in range(x.shape[0]):
        end = length if num_tokens is None else num_tokens[row]
        for head in range(heads):
            read = math.floor(head * kv_heads / heads)
            own, shared = slice(head * size, (head + 1) * size), slice(read * size, (read + 1) * size)
            for i in range(end):
                seen = [j for j in range(end) if pattern_rule(chosen.pattern).allows(i, j, setting)]
                scores = []
                for j in seen:
                    if part.score is not None:
                        score = float(part.score[head].double() @ torch.tanh(q[row, i, own] + k[row, j, shared]))
                    else:
                        score = scale * float(q[row, i, own] @ k[row, j, shared])
                    if chosen.softcap is not None:
                        score = chosen.softcap * math.tanh(score / chosen.softcap)
                    if isinstance(chosen.position, spec.Alibi):
                        score -= 2 ** (-8 * (head + 1) / heads) * abs(i - j)
                    scores.append(score)
                weights = [math.exp(score - max(scores)) for score in scores]
                total = sum(weights) + (0 if part.sinks is None else math.exp(float(part.sinks[head]) - max(scores)))
                for j, weight in zip(seen, weights, strict=True):
                    mixed[row, i, own] += weight / total * v[row, j, shared]
    if part.gate is not None:
        gate = project(part.gate, x)
        gate = 1 / (1 + (-gate).exp()) if chosen.gate.activation == "sigmoid" else (1 + gate.exp()).log()
        mixed = mixed * gate.repeat_interleave(heads * size // gate.shape[-1], dim=-1)
    return project(part.o, mixed)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("num_kv_heads", [1, 2, 4])
@pytest.mark.parametrize("bias", [spec.ProjectionBiases(), ALL, spec.ProjectionBiases(q=True, k=True, v=True)])
def test_attention_is_the_written_out_softmax(num_kv_heads: int, bias: spec.ProjectionBiases, causal: bool) -> None:
    part = build(causal, num_kv_heads=num_kv_heads, bias=bias)
    assert distance(run(part), reference(part, X)) < 2e-6


@pytest.mark.parametrize("scale", [1.0, 0.1])
@pytest.mark.parametrize("head_dim", [6, 3, 10])
def test_scale_and_head_dim_are_what_the_specification_says(scale: float, head_dim: int) -> None:
    part = build(scale=scale, head_dim=head_dim)
    assert part.q.weight.shape == (4 * head_dim, D)
    assert distance(run(part), reference(part, X, scale)) < 2e-6


def test_without_a_scale_it_is_one_over_the_root_of_head_dim() -> None:
    assert build().score_function.scale == 1 / math.sqrt(6)
    assert build(head_dim=16).score_function.scale == 0.25


CHOICES: dict[str, dict[str, Any]] = {
    "additive": {"score": "additive"},
    "softcap": {"softcap": 0.5},
    "qk_norm": {"qk_norm": spec.RMSNorm(eps=0.1)},
    "clip_qkv": {"clip_qkv": 0.4},
    "alibi": {"position": spec.Alibi()},
    "additive alibi": {"score": "additive", "position": spec.Alibi()},
    "sinks": {"sinks": True},
    "sinks of joined pieces": {"sinks": True, "pattern": spec.Fixed(stride=3, num_summary=1)},
    "gate": {"gate": spec.OutputGate()},
    "gate of heads": {"gate": spec.OutputGate(per="head", activation="softplus")},
    "everything": {
        "softcap": 0.5,
        "qk_norm": spec.RMSNorm(),
        "position": spec.Alibi(),
        "pattern": spec.Window(size=5),
        "sinks": True,
        "gate": spec.OutputGate(),
    },
}


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("num_kv_heads", [1, 2, 4])
@pytest.mark.parametrize("choice", CHOICES)
def test_every_way_to_score_is_written_out(choice: str, num_kv_heads: int, causal: bool) -> None:
    part = build(causal, num_kv_heads=num_kv_heads, **CHOICES[choice])
    expected = reference(part, X)
    assert distance(run(part), expected) < 2e-6
    num_tokens = [T, 3]
    padded, expected = run(part, num_tokens=torch.tensor(num_tokens)), reference(part, X, num_tokens=num_tokens)
    for row, count in enumerate(num_tokens):
        assert distance(padded[row, :count], expected[row, :count]) < 2e-6


def test_a_layer_norm_may_stand_on_queries_and_keys() -> None:
    part = build(qk_norm=spec.LayerNorm())
    names = {name for name, _ in part.named_parameters() if "norm" in name}
    assert names == {"q_norm.weight", "q_norm.bias", "k_norm.weight", "k_norm.bias"}
    assert part.q_norm.weight.shape == part.k_norm.weight.shape == (6,)
    q = part.q_norm(part.q(X).unflatten(-1, (4, 6))).transpose(1, 2)
    assert torch.equal(part.queries(X), q)


def test_heads_are_normalized_before_they_are_turned() -> None:
    part = build(qk_norm=spec.RMSNorm(), position=spec.Rotary())
    q, k = part.queries(X), part.keys_and_values(X)[0]
    at = torch.arange(T).expand(B, -1)
    q, k = (Rotary(spec.Rotary(), part.sizes)(x, at, ForwardContext(at, None, starts_at_zero=True)) for x in (q, k))
    weights = (q @ k.transpose(2, 3) / math.sqrt(6)).masked_fill(~torch.ones(T, T).tril().bool(), -math.inf).softmax(-1)
    assert distance(run(part), part.merge_heads(weights @ part.keys_and_values(X)[1])) < 1e-6


def test_heads_are_normalized_after_they_are_turned_where_the_specification_says_so() -> None:
    part = build(qk_norm=spec.RMSNorm(), qk_norm_after_rope=True, position=spec.Rotary())
    at = torch.arange(T).expand(B, -1)
    context = ForwardContext(at, None, starts_at_zero=True)
    q, k = ((project(X).unflatten(-1, (4, 6)).transpose(1, 2)) for project in (part.q, part.k))
    turned = (Rotary(spec.Rotary(), part.sizes)(x, at, context) for x in (q, k))
    q, k = (norm(x) for norm, x in zip((part.q_norm, part.k_norm), turned, strict=True))
    weights = (q @ k.transpose(2, 3) / math.sqrt(6)).masked_fill(~torch.ones(T, T).tril().bool(), -math.inf).softmax(-1)
    assert distance(run(part), part.merge_heads(weights @ part.keys_and_values(X)[1])) < 1e-6


@pytest.mark.parametrize("offset", [0, 1])
def test_queries_grow_with_their_position(offset: int) -> None:
    growth = spec.QueryScale(beta=0.5, length=2, offset=offset)
    part, plain = (build(position=spec.Rotary(), query_scale=scale) for scale in (growth, None))
    with torch.no_grad():
        grown = run(part)
        for row in (0, 1, 2, 5, 6):
            factor = 1 + 0.5 * math.log(1 + (row + offset) // 2)
            plain.load_state_dict(part.state_dict())
            plain.q.weight.mul_(factor)
            assert distance(run(plain)[:, row], grown[:, row]) < 2e-6


def test_names_of_parameters() -> None:
    def names(**fields: Any) -> set[str]:
        return {name for name, _ in build(causal=False, **fields).named_parameters()}

    weights = {f"{name}.weight" for name in "qkvo"}
    assert names() == names(position=spec.Rotary()) == names(position=spec.Alibi(), softcap=1.0) == weights
    assert names(score="additive") == weights | {"score"}
    assert names(sinks=True, gate=spec.OutputGate()) == weights | {"sinks", "gate.weight"}
    assert names(qk_norm=spec.RMSNorm()) == weights | {"q_norm.weight", "k_norm.weight"}
    pattern = spec.GlobalWindow(size=4, global_projections=True)
    own = {f"{name}_global.{kind}" for name in "qkv" for kind in ("weight", "bias")}
    assert names(pattern=pattern, bias=ALL) == weights | {f"{name}.bias" for name in "qkvo"} | own


@pytest.mark.parametrize("num_kv_heads", [1, 2])
@pytest.mark.parametrize("position", [spec.NoPosition(), spec.Rotary()])
def test_shared_key_heads_are_the_same_as_repeated_ones(num_kv_heads: int, position: spec.MixerPosition) -> None:
    """Query head h reads key head floor(h K / H): what each group shares, multi-head attention holds G times."""
    shared, full = build(num_kv_heads=num_kv_heads, position=position, bias=ALL), build(position=position, bias=ALL)
    with torch.no_grad():
        for name in "qo":
            getattr(full, name).load_state_dict(getattr(shared, name).state_dict())
        for name in "kv":
            for kind in ("weight", "bias"):
                heads = getattr(getattr(shared, name), kind).unflatten(0, (num_kv_heads, 6))
                getattr(getattr(full, name), kind).copy_(heads.repeat_interleave(4 // num_kv_heads, 0).flatten(0, 1))
    assert distance(run(shared), run(full)) < 1e-6


def test_as_many_key_heads_as_query_heads_is_multi_head_attention() -> None:
    grouped, multi = build(num_kv_heads=4), build(num_kv_heads=None)
    assert torch.equal(run(grouped), run(multi))


@pytest.mark.parametrize("pattern", [spec.Full(), spec.Window(size=2)])
def test_dropout_falls_on_weights_in_training_only(pattern: spec.Pattern) -> None:
    part, x = build(dropout=0.5, pattern=pattern), random(1, 64, D)
    assert torch.equal(run(part, x), run(part, x))
    part.train()
    torch.manual_seed(0)
    assert not torch.equal(run(part, x), run(part, x))


# patterns


LONG = 40
PATTERNS: dict[str, spec.Pattern] = {
    "window": spec.Window(size=6),
    "strided": spec.Strided(stride=6),
    "fixed": spec.Fixed(stride=6, num_summary=2),
    "global": spec.GlobalWindow(size=6, num_global_tokens=2),
    "bigbird": spec.BigBird(block=4, random_blocks=2),
    "bigbird of few blocks": spec.BigBird(block=4, window_blocks=1, random_blocks=1, global_blocks=1),
}
DIRECTED = [(name, causal) for name in PATTERNS for causal in (True, False) if not (causal and "bigbird" in name)]


@pytest.mark.parametrize(("name", "causal"), every(3, (pytest.param(*one) for one in DIRECTED)))
@pytest.mark.parametrize("length", [T, 13, LONG])
def test_a_pattern_is_its_rule_with_and_without_padding(name: str, causal: bool, length: int) -> None:
    """A short text is computed at once, a long one by tiles. The layer chooses bigbird's random blocks."""
    part, x = build(causal, layer=1, pattern=PATTERNS[name], num_kv_heads=2), random(2, length, D)
    assert distance(run(part, x), reference(part, x)) < 2e-6
    num_tokens = [length, 3]
    padded, expected = run(part, x, torch.tensor(num_tokens)), reference(part, x, num_tokens=num_tokens)
    assert padded.isfinite().all()
    for row, count in enumerate(num_tokens):
        assert distance(padded[row, :count], expected[row, :count]) < 2e-6


@pytest.mark.parametrize(("name", "length"), [("bigbird", LONG), ("bigbird of few blocks", 13)])
def test_the_layer_chooses_the_random_blocks(name: str, length: int) -> None:
    """By tiles, and at once."""
    x, pattern = random(1, length, D), PATTERNS[name]
    first, again, other = (run(build(False, layer, pattern=pattern), x) for layer in (0, 0, 1))
    assert torch.equal(first, again) and not torch.allclose(first, other)


@pytest.mark.parametrize("causal", [True, False])
def test_a_window_as_long_as_the_text_is_full_attention(causal: bool) -> None:
    size = LONG if causal else 2 * LONG
    x = random(2, LONG, D)
    assert distance(run(build(causal, pattern=spec.Window(size=size)), x), run(build(causal), x)) < 1e-6


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("choice", ["full", "softcap", "window"])
def test_the_stacks_own_table_raises_scores(choice: str, causal: bool) -> None:
    """A table whose numbers are minus m_h |i - j|, as far as its buckets are exact, is alibi."""
    relative = spec.RelativeBias(num_buckets=96, max_distance=100)
    fields = {"full": {}, "softcap": {"softcap": 1.0}, "window": {"pattern": spec.Window(size=6)}}[choice]
    x = random(2, 20, D)
    table = RelativeBias(relative, 4, 1, causal)
    distances = torch.arange(96 if causal else 48)
    with torch.no_grad():
        slopes = torch.tensor([2.0 ** (-8 * (head + 1) / 4) for head in range(4)])
        table.weight.copy_((-distances[:, None] * slopes).repeat(1 if causal else 2, 1))
    context = ForwardContext.of(x)
    context.position_bias = table
    ours = build(causal, position=relative, **fields)(x, context)
    assert distance(ours, run(build(causal, position=spec.Alibi(), **fields), x)) < 1e-6


# the global tokens' own projections


def copied(part: Attention) -> None:
    """Let the global projections be the others."""
    with torch.no_grad():
        for name in "qkv":
            getattr(part, f"{name}_global").load_state_dict(getattr(part, name).state_dict())


OWN = spec.GlobalWindow(size=6, num_global_tokens=3, global_projections=True)
GLOBALS: dict[str, dict[str, Any]] = {
    "plain": {},
    "grouped": {"num_kv_heads": 2, "bias": ALL},
    "qk_norm": {"qk_norm": spec.RMSNorm()},
    "rotary": {"position": spec.Rotary()},
    "relative": {"position": spec.RelativeBias()},
}


@pytest.mark.parametrize("length", [2, T, LONG])
@pytest.mark.parametrize("choice", GLOBALS)
@pytest.mark.parametrize("padded", [False, True])
def test_equal_global_projections_change_nothing(choice: str, length: int, padded: bool) -> None:
    part, x = build(False, pattern=OWN, **GLOBALS[choice]), random(2, length, D)
    copied(part)
    plain = build(False, pattern=OWN.replace(global_projections=False), **GLOBALS[choice])
    plain.load_state_dict({n: p for n, p in part.state_dict().items() if "_global" not in n})
    num_tokens = torch.tensor([length, 2]) if padded else None
    ours, theirs = run(part, x, num_tokens), run(plain, x, num_tokens)
    assert distance(ours[0], theirs[0]) < 2e-6
    assert distance(ours[1, :2], theirs[1, :2]) < 2e-6


@pytest.mark.parametrize("choice", GLOBALS)
def test_the_global_tokens_and_no_others_look_through_their_own_projections(choice: str) -> None:
    part, x = build(False, pattern=OWN, **GLOBALS[choice]), random(2, LONG, D)
    before = run(part, x)
    every = build(False, **GLOBALS[choice])  # full attention through the global projections alone
    every.load_state_dict(
        {
            name: part.state_dict()[name.replace(".", "_global.") if name[0] in "qkv" and "norm" not in name else name]
            for name in every.state_dict()
        }
    )
    assert distance(before[:, :3], run(every, x)[:, :3]) < 2e-6
    copied(part)
    assert torch.equal(run(part, x)[:, 3:], before[:, 3:])
    assert distance(run(part, x)[:, :3], before[:, :3]) > 1e-2


# with a state


def empty(part: Attention, rows: int, capacity: int = LONG) -> LayerState:
    return part.new_state(rows, capacity, torch.float32, CPU)


def test_a_window_remembers_no_more_than_itself() -> None:
    ring = empty(build(pattern=spec.Window(size=6)), 2)
    assert isinstance(ring, RingKVCache) and ring.keys.shape == ring.values.shape == (2, 4, 6, 6)
    for part in (build(pattern=spec.Window(size=LONG)), build(pattern=PATTERNS["strided"]), build()):
        state = empty(part, 2)
        assert type(state) is KVCache and state.keys.shape[2] == LONG


STATEFUL: dict[str, dict[str, Any]] = {
    "full": {},
    "rotary": {"position": spec.Rotary()},
    "window": {"pattern": spec.Window(size=6), "position": spec.Rotary()},
    "window of one": {"pattern": spec.Window(size=1)},
    "window alibi": {"pattern": spec.Window(size=6), "position": spec.Alibi()},
    "dynamic window": {
        "pattern": spec.Window(size=6),
        "position": spec.Rotary(scaling=spec.DynamicScaling(factor=2.0, original_context_length=100)),
    },
    "strided": {"pattern": PATTERNS["strided"], "softcap": 1.0},
    "fixed": {"pattern": PATTERNS["fixed"], "qk_norm": spec.RMSNorm()},
    "global": {"pattern": PATTERNS["global"]},
    "additive": {"score": "additive", "position": spec.Alibi()},
    "sinks": {"sinks": True, "pattern": spec.Window(size=6), "gate": spec.OutputGate()},
    "norm after rope": {
        "qk_norm": spec.RMSNorm(),
        "qk_norm_after_rope": True,
        "position": spec.Rotary(scaling=spec.DynamicScaling(factor=2.0, original_context_length=100)),
    },
}
stateful = pytest.mark.parametrize("choice", STATEFUL)


@stateful
@pytest.mark.parametrize("sizes", [(LONG,), (1,) * 12, (3, 1, 1, 20, 2), (9, 9)])
def test_chunk_by_chunk_is_the_whole(choice: str, sizes: tuple[int, ...]) -> None:
    part, x = build(num_kv_heads=2, **STATEFUL[choice]), random(2, LONG, D)
    whole, state, start, outputs = run(part, x), empty(part, 2), 0, []
    for size in sizes:
        piece = x[:, start : start + size]
        outputs.append(part(piece, ForwardContext.of(piece, torch.full((2,), start)), state))
        start += size
    assert distance(torch.cat(outputs, 1), whole[:, :start]) < 2e-6


@pytest.mark.parametrize("num_kv_heads", [1, 2, 4])
def test_a_chunk_that_fills_the_cache_needs_no_mask(num_kv_heads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the bit what the mask gives, so that a text reads the same whatever room there is."""
    part, x = build(num_kv_heads=num_kv_heads, position=spec.Rotary()), random(2, LONG, D)
    context = ForwardContext.of(x, torch.zeros(2, dtype=torch.long))
    masked = part(x, replace(context, num_tokens=torch.full((2,), LONG)), empty(part, 2))
    monkeypatch.setattr(part.pairs, "allowed", lambda *arguments: pytest.fail("a mask is made"))
    assert torch.equal(part(x, context, empty(part, 2)), masked)


@stateful
def test_rows_of_different_lengths_are_what_each_is_alone(choice: str) -> None:
    """Also a row of which a chunk has nothing, first or later."""
    part, x = build(num_kv_heads=2, **STATEFUL[choice]), random(3, LONG, D)
    whole, state = run(part, x), empty(part, 3)
    lengths = torch.zeros(3, dtype=torch.long)
    for num_tokens in ([4, 0, 2], [1, 0, 1], [0, 7, 1], [1, 1, 0], [9, 3, 5], [1, 0, 1]):
        size = max(num_tokens)
        chunk = random(3, size, D, seed=99)
        for row, count in enumerate(num_tokens):
            chunk[row, :count] = x[row, lengths[row] : lengths[row] + count]
        y = part(chunk, ForwardContext.of(chunk, lengths, torch.tensor(num_tokens)), state)
        assert y.isfinite().all()
        for row, count in enumerate(num_tokens):
            if count:
                assert distance(y[row, :count], whole[row, lengths[row] : lengths[row] + count]) < 2e-6
        lengths = lengths + torch.tensor(num_tokens)


@stateful
def test_lower_precision(choice: str) -> None:
    """Under autocast in training, and with a state that keeps bfloat16."""
    part, x = build(num_kv_heads=2, **STATEFUL[choice]), random(2, LONG, D)
    exact = run(part, x)
    with torch.autocast("cpu", torch.bfloat16):
        y = run(part, x)
        state = part.new_state(2, LONG, torch.bfloat16, CPU)
        remembered = part(x, ForwardContext.of(x, torch.zeros(2, dtype=torch.long)), state)
    assert distance(y, exact) < 0.03 and distance(remembered, exact) < 0.03
    assert isinstance(state, KVCache) and state.keys.dtype == torch.bfloat16
    y.float().sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in part.parameters())
