"""softmax(scores) v, at once and by tiles, against each other and against its bounds."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from archetype import spec
from archetype.parts.attention.core import attend, attend_tiles
from archetype.parts.pattern.scores import ScoreFunction
from archetype.parts.pattern.tiles import Bias, tiles
from archetype.parts.position.module import Alibi, RelativeBias
from archetype.roles.pattern import MaskContext, pattern_rule
from tests.helpers.examples import examples
from tests.helpers.weights import distance, randomize

HALF = ScoreFunction(0.5)
ALIBI = Alibi(spec.Alibi(), spec.AttentionSizes(num_heads=4, num_kv_heads=4, head_dim=4, rotary_dim=0))
CPU = torch.device("cpu")
P, Q = 6, 4


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


# all keys at once


@given(st.sampled_from([(4, 1), (4, 2), (4, 4), (6, 3)]), st.integers(1, 5), st.integers(1, 6), st.integers(0, 99))
@examples(12)
def test_what_is_mixed_lies_between_the_values(heads: tuple[int, int], queries: int, keys: int, seed: int) -> None:
    """Weights of a row are positive and sum to one: equal values come out as they are, others stay within bounds."""
    num_heads, kv_heads = heads
    q, k = 3 * random(2, num_heads, queries, 4, seed=seed), 3 * random(2, kv_heads, keys, 4, seed=seed + 1)
    allowed = torch.ones(2, 1, queries, keys, dtype=torch.bool)
    allowed[:, :, :, 1:] = random(2, 1, queries, keys, seed=seed + 2)[..., 1:] > 0
    constant = torch.full((2, kv_heads, keys, 4), 2.5)
    torch.testing.assert_close(attend(q, k, constant, HALF, allowed), torch.full((2, num_heads, queries, 4), 2.5))
    v = random(2, kv_heads, keys, 4, seed=seed + 3)
    mixed = attend(q, k, v, HALF, allowed).unflatten(1, (kv_heads, -1))
    assert (mixed <= v.amax(2)[:, :, None, None] + 1e-6).all()
    assert (mixed >= v.amin(2)[:, :, None, None] - 1e-6).all()


@given(st.sampled_from([(4, 1), (4, 2), (4, 4), (6, 3)]), st.integers(1, 9), st.integers(0, 99))
@examples(12)
def test_one_query_goes_another_way_to_the_same_result(heads: tuple[int, int], keys: int, seed: int) -> None:
    num_heads, kv_heads = heads
    q, k, v = random(3, num_heads, 2, 4, seed=seed), random(3, kv_heads, keys, 4), random(3, kv_heads, keys, 4, seed=9)
    allowed = random(3, 1, 2, keys, seed=seed + 1) > 0
    allowed[..., 0] = True
    together = attend(q, k, v, ScoreFunction(0.7), allowed)
    one = attend(q[:, :, :1].contiguous(), k, v, ScoreFunction(0.7), allowed[:, :, :1])
    assert distance(one, together[:, :, :1]) < 1e-6


def test_a_place_that_is_not_allowed_does_not_count_whatever_it_holds() -> None:
    q, k, v = random(1, 2, 1, 4), random(1, 2, 5, 4, seed=1), random(1, 2, 5, 4, seed=2)
    allowed = torch.tensor([True, True, True, False, False]).view(1, 1, 1, 5)
    before = attend(q, k, v, HALF, allowed)
    k[:, :, 3:], v[:, :, 3:] = 1e4, -1e4
    assert torch.equal(attend(q, k, v, HALF, allowed), before)
    assert distance(before, attend(q, k[:, :, :3], v[:, :, :3], HALF, allowed[..., :3])) < 1e-6


@pytest.mark.parametrize("queries", [1, 3])
def test_a_state_may_keep_fewer_bits_than_the_model_computes_with(queries: int) -> None:
    q, k, v = random(2, 4, queries, 4), random(2, 2, 5, 4, seed=1), random(2, 2, 5, 4, seed=2)
    allowed = torch.ones(2, 1, queries, 5, dtype=torch.bool)
    short_k, short_v = k.bfloat16(), v.bfloat16()
    expected = attend(q, short_k.float(), short_v.float(), HALF, allowed)
    assert torch.equal(attend(q, short_k, short_v, HALF, allowed), expected)


SCORINGS = {
    "plain": ScoreFunction(0.5),
    "softcap": ScoreFunction(0.5, softcap=1.5),
    "additive": ScoreFunction(1.0, additive=random(4, 4, seed=7, dtype=torch.float64)),
}
scorings = pytest.mark.parametrize("scoring", SCORINGS.values(), ids=SCORINGS)


@scorings
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("queries", [1, 5])
def test_double_precision_is_kept(scoring: ScoreFunction, kv_heads: int, queries: int) -> None:
    """Against the formula, key by key, with the causal triangle, with the same mask, and with minus infinities."""
    q = random(2, 4, queries, 4, dtype=torch.float64)
    k, v = (random(2, kv_heads, queries, 4, seed=s, dtype=torch.float64) for s in (1, 2))
    expected = torch.zeros_like(q)
    for row in range(2):
        for head in range(4):
            for i in range(queries):
                keys = [k[row, head * kv_heads // 4, j] for j in range(i + 1)]
                if scoring.additive is not None:
                    scores = [scoring.additive[head] @ torch.tanh(q[row, head, i] + key) for key in keys]
                else:
                    scores = [scoring.scale * (q[row, head, i] @ key) for key in keys]
                if scoring.softcap is not None:
                    scores = [scoring.softcap * torch.tanh(score / scoring.softcap) for score in scores]
                weights = torch.stack(scores).softmax(0)
                expected[row, head, i] = weights @ v[row, head * kv_heads // 4, : i + 1]
    allowed = torch.ones(1, 1, queries, queries, dtype=torch.bool).tril()
    numbers = torch.zeros(1, 1, queries, queries).masked_fill(~allowed, -math.inf)
    assert distance(attend(q, k, v, scoring, causal=True), expected) < 1e-12
    assert distance(attend(q, k, v, scoring, allowed), expected) < 1e-12
    assert distance(attend(q, k, v, scoring, numbers), expected) < 1e-12


@scorings
@pytest.mark.parametrize("queries", [1, 3])
@pytest.mark.parametrize("kind", [torch.bool, torch.float])
def test_a_query_that_may_see_nothing_finds_a_number(scoring: ScoreFunction, queries: int, kind: torch.dtype) -> None:
    """Padding does: no number there would become no number everywhere, one layer further."""
    q, k, v = (random(2, 4, queries, 4, seed=s, dtype=torch.float64).requires_grad_() for s in range(3))
    allowed = torch.zeros(2, 1, queries, queries, dtype=torch.bool)
    allowed[0, ..., 0] = True
    mask = allowed if kind == torch.bool else torch.zeros(allowed.shape).masked_fill(~allowed, -math.inf)
    y = attend(q, k, v, scoring, mask)
    assert y.isfinite().all()
    y.sum().backward()
    assert all(x.grad.isfinite().all() for x in (q, k, v))


# by tiles


PATTERNS: dict[str, spec.Pattern] = {
    "full": spec.Full(),
    "window": spec.Window(size=7),
    "narrow window": spec.Window(size=2),
    "strided": spec.Strided(stride=5),
    "fixed": spec.Fixed(stride=6, num_summary=2),
    "global": spec.GlobalWindow(size=6, num_global_tokens=3),
    "bigbird": spec.BigBird(block=4, random_blocks=2),
}
DIRECTED = [(name, causal) for name in PATTERNS for causal in (True, False) if not (causal and name == "bigbird")]
directed = pytest.mark.parametrize(("name", "causal"), DIRECTED)
LENGTH = 43


def bias_of(kind: str | None, causal: bool) -> Any:
    match kind:
        case "alibi":
            return ALIBI
        case "relative":
            return randomize(RelativeBias(spec.RelativeBias(num_buckets=8, max_distance=20), 4, 1, causal)).double()
        case _:
            return None


def at_once(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scoring: ScoreFunction,
    name: str,
    causal: bool,
    bias: Bias | None,
    valid: Tensor | None,
) -> Tensor:
    """The same pairs, as one mask of numbers."""
    places = torch.arange(q.shape[2])[None]
    setting = MaskContext(causal, q.shape[2])
    allowed = pattern_rule(PATTERNS[name]).allows(places[:, None, :, None], places[:, None, None, :], setting)
    if valid is not None:
        allowed = allowed & valid[:, None, None]
    numbers = torch.zeros(1, 4, q.shape[2], q.shape[2]) if bias is None else bias(places, places)
    return attend(q, k, v, scoring, numbers.masked_fill(~allowed, -math.inf))


def by_tiles(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scoring: ScoreFunction,
    name: str,
    causal: bool,
    bias: Bias | None,
    valid: Tensor | None,
) -> Tensor:
    pieces = tiles(PATTERNS[name], MaskContext(causal, q.shape[2]), CPU)
    return attend_tiles(q, k, v, scoring, pieces, bias, valid)


def inputs(dtype: torch.dtype, kv_heads: int, length: int = LENGTH) -> tuple[Tensor, Tensor, Tensor]:
    shapes = ((2, 4, length, P), (2, kv_heads, length, P), (2, kv_heads, length, Q))
    q, k, v = (random(*shape, seed=seed, dtype=dtype) for seed, shape in enumerate(shapes))
    return q, k, v


@directed
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("bias", [None, "alibi", "relative"])
@pytest.mark.parametrize("padded", [False, True])
def test_tiles_are_the_whole(name: str, causal: bool, kv_heads: int, bias: str | None, padded: bool) -> None:
    """To the last digits, and so are the gradients: of queries, keys, values and the table of biases."""
    num_tokens = torch.tensor([LENGTH, 17])
    valid = torch.arange(LENGTH) < num_tokens[:, None] if padded else None
    real = torch.ones(2, LENGTH, dtype=torch.bool) if valid is None else valid
    scoring, table = ScoreFunction(0.7, softcap=2.0 if kv_heads == 2 else None), bias_of(bias, causal)
    results = []
    for way in (at_once, by_tiles):
        tensors = [x.requires_grad_() for x in inputs(torch.float64, kv_heads)]
        y = way(*tensors, scoring, name, causal, table, valid)
        assert y.isfinite().all()
        y = y.masked_fill(~real[:, None, :, None], 0.0)
        learned = list(table.parameters()) if table is not None else []
        gradients = torch.autograd.grad((y * random(*y.shape, seed=5)).sum(), [*tensors, *learned])
        results.append((y, *gradients))
    for whole, tiled in zip(*results, strict=True):
        assert distance(tiled, whole) < 1e-12


@directed
@pytest.mark.parametrize("length", [1, 2, 16, 17, 64])
def test_tiles_of_other_lengths_in_single_precision(name: str, causal: bool, length: int) -> None:
    tensors = inputs(torch.float32, 2, length)
    options = (ScoreFunction(0.7), name, causal, ALIBI, None)
    assert distance(by_tiles(*tensors, *options), at_once(*tensors, *options)) < 1e-6


@given(st.data(), st.integers(1, 90), st.booleans(), st.integers(0, 99))
@examples(20)
def test_tiles_of_any_size(data: st.DataObject, length: int, causal: bool, seed: int) -> None:
    size = data.draw(st.integers(1, 20))
    pattern = data.draw(
        st.sampled_from(
            [
                spec.Window(size=size),
                spec.Strided(stride=size),
                spec.Fixed(stride=size, num_summary=data.draw(st.integers(1, size))),
                spec.GlobalWindow(size=size, num_global_tokens=data.draw(st.integers(1, 9))),
                *([] if causal else [spec.BigBird(block=size, seed=seed)]),
            ]
        )
    )
    q, k, v = inputs(torch.float64, 2, length)
    places, setting = torch.arange(length), MaskContext(causal, length)
    mask = pattern_rule(pattern).allows(places[:, None], places[None], setting)[None, None]
    pieces = tiles(pattern, setting, CPU)
    assert distance(attend_tiles(q, k, v, HALF, pieces), attend(q, k, v, HALF, mask)) < 1e-12


@directed
def test_rows_of_nothing_but_padding_find_numbers(name: str, causal: bool) -> None:
    valid = torch.arange(LENGTH) < torch.tensor([LENGTH, 0])[:, None]
    tensors = [x.requires_grad_() for x in inputs(torch.float32, 2)]
    y = by_tiles(*tensors, HALF, name, causal, None, valid)
    assert y.isfinite().all()
    y[0].sum().backward()
    assert all(x.grad.isfinite().all() and not x.grad[1].any() for x in tensors)


@directed
def test_the_softcap_of_tiles_is_that_of_the_whole(name: str, causal: bool) -> None:
    tensors = inputs(torch.float64, 2)
    capped, plain = ScoreFunction(2.0, softcap=1.0), ScoreFunction(2.0)
    whole = at_once(*tensors, capped, name, causal, None, None)
    assert distance(by_tiles(*tensors, capped, name, causal, None, None), whole) < 1e-12
    assert distance(by_tiles(*tensors, plain, name, causal, None, None), whole) > 1e-2


@directed
def test_dropout_on_the_weights_keeps_their_mean(name: str, causal: bool) -> None:
    """Values of one come out as the sums of the weights that were left."""
    q, k, _ = inputs(torch.float32, 2)
    dropping = ScoreFunction(0.3, dropout=0.4)
    torch.manual_seed(0)
    many = q.repeat(150, 1, 1, 1), k.repeat(150, 1, 1, 1), torch.ones(300, 2, LENGTH, Q)
    sums = by_tiles(*many, dropping, name, causal, None, None)
    assert sums.mean().item() == pytest.approx(1.0, abs=0.01)
    assert sums.std() > 0.05
    assert torch.equal(sums[..., 0], sums[..., 1])  # a weight is dropped for all of a value's features


@directed
def test_lower_precision(name: str, causal: bool) -> None:
    tensors = inputs(torch.float32, 2)
    options = (ScoreFunction(0.7, softcap=3.0), name, causal, ALIBI, None)
    exact = at_once(*tensors, *options)
    with torch.autocast("cpu", torch.bfloat16):
        assert distance(by_tiles(*tensors, *options), exact) < 0.02
        learning = [x.bfloat16().requires_grad_() for x in tensors]
        y = by_tiles(*learning, *options)
        assert y.dtype == torch.bfloat16 and distance(y, exact) < 0.02
    y.float().sum().backward()
    assert all(x.grad.isfinite().all() for x in learning)


def test_tiles_that_an_evaluation_asked_for_serve_training() -> None:
    """They are cached, and a tensor made in inference mode could not be used for gradients."""
    pattern, setting = spec.Window(size=9), MaskContext(True, 77)
    with torch.inference_mode():
        tiles(pattern, setting, CPU)
    q, k, v = (x.requires_grad_() for x in inputs(torch.float32, 2, 77))
    attend_tiles(q, k, v, HALF, tiles(pattern, setting, CPU)).sum().backward()
    assert q.grad is not None and q.grad.isfinite().all()


def test_scores_of_one_hundred_thousand_positions_are_never_held_at_once() -> None:
    """A square of them would be 40 GB."""
    pattern, setting = spec.Window(size=4), MaskContext(True, 100_000)
    x = random(1, 1, 100_000, 2)
    y = attend_tiles(x, x, x, HALF, tiles(pattern, setting, CPU))
    last = attend(x[:, :, -1:], x[:, :, -4:], x[:, :, -4:], HALF)
    assert distance(y[:, :, -1:], last) < 1e-6
