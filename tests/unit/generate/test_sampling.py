"""From logits to a token: every filter against plain Python, and the draw against the probabilities."""

import math
import sys
from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from archetype.errors import SpecError
from archetype.generate import Sampler, Sampling, filters, sample
from archetype.generate.filters import filtered
from archetype.generate.logits_processors import penalise
from tests.helpers.examples import every

CPU = torch.device("cpu")
LOGITS = st.lists(st.integers(-24, 24).map(lambda n: n / 4), min_size=1, max_size=12)  # with many ties
ABOVE_ZERO = st.floats(0.1, 10.0)


def softmax(logits: list[float]) -> list[float]:
    largest = max(logits)
    weights = [math.exp(logit - largest) for logit in logits]
    return [weight / math.fsum(weights) for weight in weights]


def kept(logits: list[float], sampling: Sampling) -> set[int]:
    """The tokens that our filters leave."""
    left = filtered(torch.tensor([logits]), sampling)[0]
    return {token for token, logit in enumerate(left.tolist()) if logit > -math.inf}


def probabilities(logits: list[float], sampling: Sampling) -> list[float]:
    return filtered(torch.tensor([logits]), sampling)[0].double().softmax(-1).tolist()


def of_largest(logits: list[float], k: int) -> set[int]:
    """The k largest, and all that equal the last of them."""
    least = sorted(logits, reverse=True)[:k][-1]
    return {token for token, logit in enumerate(logits) if logit >= least}


def of_mass(logits: list[float], top_p: float) -> set[int]:
    """The likeliest, until their probabilities reach `top_p`; of equals the first."""
    likeliest, mass, chances = set(), 0.0, softmax(logits)
    for token in sorted(range(len(logits)), key=lambda token: (-logits[token], token)):
        assume(abs(mass - top_p) > 1e-5)  # the edge itself is a matter of rounding
        if mass >= top_p:
            break
        likeliest.add(token)
        mass += chances[token]
    return likeliest


def of_share(logits: list[float], min_p: float) -> set[int]:
    """Those at least `min_p` times as likely as the likeliest."""
    chances = softmax(logits)
    assume(all(abs(chance / max(chances) - min_p) > 1e-5 for chance in chances))
    return {token for token, chance in enumerate(chances) if chance >= min_p * max(chances)}


@given(LOGITS, st.integers(1, 14))
def test_top_k_keeps_the_k_likeliest_and_their_equals(logits: list[float], k: int) -> None:
    assert kept(logits, Sampling(top_k=k)) == of_largest(logits, k)


@given(LOGITS, st.floats(0.01, 0.99))
def test_top_p_keeps_the_fewest_that_reach_p(logits: list[float], top_p: float) -> None:
    assert kept(logits, Sampling(top_p=top_p)) == of_mass(logits, top_p)


def test_top_p_needs_no_more_than_it_reaches() -> None:
    """At the edge itself, where sums of binary fractions are exact: of n equals k reach k / n, and no further one."""
    for n in (2, 4, 8, 16):
        for k in range(1, n):
            assert kept([1.0] * n, Sampling(top_p=k / n)) == set(range(k)), (n, k)


@given(LOGITS, st.floats(0.01, 0.99))
def test_min_p_keeps_what_is_likely_enough(logits: list[float], min_p: float) -> None:
    assert kept(logits, Sampling(min_p=min_p)) == of_share(logits, min_p)


@given(LOGITS, ABOVE_ZERO, st.integers(1, 12), st.floats(0.05, 0.95), st.floats(0.05, 0.95))
def test_filters_follow_each_other_in_the_order_of_the_settings(
    logits: list[float], temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    left = dict(enumerate(logit / temperature for logit in logits))
    for rule, value in ((of_largest, top_k), (of_mass, top_p), (of_share, min_p)):
        names = list(left)
        stay = rule(list(left.values()), value)
        left = {name: left[name] for place, name in enumerate(names) if place in stay}
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    expected = dict(zip(left, softmax(list(left.values())), strict=True))
    assert kept(logits, sampling) == set(expected)
    actual = probabilities(logits, sampling)
    assert [expected.get(token, 0.0) for token in range(len(logits))] == pytest.approx(actual, abs=1e-6)


@given(LOGITS, st.floats(0.25, 4.0), st.data())
def test_the_penalty_shrinks_what_was_seen(logits: list[float], penalty: float, data: st.DataObject) -> None:
    seen = data.draw(st.lists(st.booleans(), min_size=len(logits), max_size=len(logits)))
    new_logits = torch.tensor(logits)
    penalise(new_logits, [token for token, was_seen in enumerate(seen) if was_seen], penalty)
    for logit, was_seen, now in zip(logits, seen, new_logits.tolist(), strict=True):
        assert now == pytest.approx((logit / penalty if logit > 0 else logit * penalty) if was_seen else logit)


def test_the_penalty_falls_on_the_prompt_and_on_what_was_drawn() -> None:
    sampler = Sampler(Sampling(temperature=0.0, repetition_penalty=10.0), [0], 4, CPU)
    logits = torch.tensor([[4.0, 3.0, 2.0, 1.0]])
    assert [sample(logits, [sampler])[0] for _ in range(5)] == [1, 2, 3, 0, 0]


def test_the_penalty_of_one_row_is_not_anothers() -> None:
    samplers = [Sampler(Sampling(temperature=0.0, repetition_penalty=10.0), [n], 2, CPU) for n in (0, 1, 0)]
    logits = torch.tensor([[2.0, 2.5]])
    assert sample(logits.expand(3, 2), samplers) == [1, 0, 1]
    assert sample(logits, samplers[1:2]) == [1]  # both were seen by now


def test_what_concerns_one_text_changes_its_logits_alone() -> None:
    logits = torch.tensor([[4.0, 3.5, 3.0, 1.0]])
    greedy = Sampling(temperature=0.0)
    cases: dict[str, tuple[Sampling, list[int]]] = {
        "bias": (greedy.replace(logit_bias={2: 2.0, 0: -100.0}), [2] * 5),
        "presence, once for each token": (greedy.replace(presence_penalty=0.75), [0, 1, 0, 0, 0]),
        "frequency, as often as it stands": (greedy.replace(frequency_penalty=0.4), [0, 0, 1, 0, 1]),
        "an end that is too early": (greedy.replace(min_new_tokens=2), [1, 1, 0, 0, 0]),
        "none": (greedy, [0] * 5),
    }
    for name, (sampling, expected) in cases.items():
        sampler = Sampler(sampling, [1, 1], 4, CPU, ends=[0, 9])
        assert [sample(logits, [sampler])[0] for _ in range(5)] == expected, name
    samplers = [Sampler(sampling, [1], 4, CPU, ends=[0]) for sampling, _ in cases.values()]
    for step in range(5):
        together = sample(logits.expand(len(cases), 4), samplers)
        assert together == [expected[step] for _, expected in cases.values()]
    assert logits.tolist() == [[4.0, 3.5, 3.0, 1.0]]
    with pytest.raises(SpecError, match="logit_bias: contains a token id outside the vocabulary of 4"):
        Sampler(Sampling(logit_bias={4: 1.0}), [0], 4, CPU)


@pytest.mark.parametrize("temperature", [1e-2, 1e-30, 1e-40, 1e-300, 5e-324])
@given(logits=LOGITS)
def test_a_temperature_near_0_is_greedy(temperature: float, logits: list[float]) -> None:
    chances = probabilities(logits, Sampling(temperature=temperature))
    best = [token for token, logit in enumerate(logits) if logit == max(logits)]
    assert [chances[token] for token in best] == pytest.approx([1 / len(best)] * len(best))


@pytest.mark.parametrize("temperature", [1e8, 1e300])
@given(logits=LOGITS)
def test_a_temperature_without_end_is_uniform(temperature: float, logits: list[float]) -> None:
    assert probabilities(logits, Sampling(temperature=temperature)) == pytest.approx([1 / len(logits)] * len(logits))


@pytest.mark.parametrize("size", [1e-30, 1e30])
def test_logits_of_any_size_have_probabilities(size: float) -> None:
    assert math.fsum(probabilities([-size, 0.0, size], Sampling(top_p=0.9, top_k=2, min_p=0.1))) == pytest.approx(1)


@pytest.mark.parametrize("sampling", [Sampling(temperature=0.7), Sampling(top_k=4, top_p=0.9, min_p=0.1)])
def test_tokens_are_drawn_as_often_as_they_are_likely(sampling: Sampling) -> None:
    logits, draws = [0.0, 1.0, 2.0, -1.0, 0.5, 1.5, -9.0, 0.25], 4000
    sampler = Sampler(sampling, [0], len(logits), CPU)
    num_tokens = Counter(sample(torch.tensor([logits]), [sampler])[0] for _ in range(draws))
    expected = {token: draws * chance for token, chance in enumerate(probabilities(logits, sampling)) if chance}
    assert set(num_tokens) <= set(expected)
    squared = sum((num_tokens[token] - mean) ** 2 / mean for token, mean in expected.items())
    assert squared < 24.3  # chi-square with 7 degrees of freedom stays below in 999 of 1,000 seeds; ours is fixed


def draws(seed: int, count: int = 20) -> list[int]:
    sampler = Sampler(Sampling(seed=seed), [0], 50, CPU)
    return [sample(torch.zeros(1, 50), [sampler])[0] for _ in range(count)]


def test_the_seed_alone_decides() -> None:
    torch.manual_seed(1)
    first = draws(7)
    torch.manual_seed(2)
    assert draws(7) == first
    assert draws(8) != first


@given(st.lists(st.lists(st.integers(0, 2), unique=True, min_size=1), min_size=1, max_size=8))
def test_a_row_draws_in_a_batch_what_it_draws_alone(steps: list[list[int]]) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(len(steps), 3, 9, generator=generator)
    settings = [Sampling(seed=3, repetition_penalty=1.5, top_k=7)] * 2 + [Sampling(seed=4, temperature=0.7)]
    together, alone = ([Sampler(each, [n], 9, CPU) for n, each in enumerate(settings)] for _ in range(2))
    for step, rows in enumerate(steps):
        tokens = sample(logits[step, rows], [together[row] for row in rows])
        assert tokens == [sample(logits[step, row][None], [alone[row]])[0] for row in rows]


def plainly_filtered(logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """The filters that sort, over the whole vocabulary: with torch's stable sort, and in the order of the settings."""
    left = filtered(logits, sampling.replace(top_p=1.0, min_p=0.0, typical_p=1.0))
    if sampling.top_p < 1:
        descending, order = left.sort(dim=-1, descending=True, stable=True)
        likely = descending.softmax(-1)
        unneeded = likely.cumsum(-1) - likely >= sampling.top_p
        left = left.masked_fill(torch.zeros_like(unneeded).scatter(-1, order, unneeded), -torch.inf)
    if sampling.min_p > 0:
        likely = left.softmax(-1)
        left = left.masked_fill(likely < sampling.min_p * likely.amax(-1, keepdim=True), -torch.inf)
    if sampling.typical_p < 1:
        logs = left.log_softmax(-1)
        entropy = -(logs.exp() * logs).nansum(-1, keepdim=True)
        distance, order = (-logs - entropy).abs().sort(dim=-1, stable=True)
        last = (left.gather(-1, order).softmax(-1).cumsum(-1) < sampling.typical_p).sum(-1, keepdim=True)
        unneeded = distance > distance.gather(-1, last.clamp(max=left.shape[-1] - 1))
        left = left.masked_fill(torch.zeros_like(unneeded).scatter(-1, order, unneeded), -torch.inf)
    return left


def plainly_drawn(logits: torch.Tensor, sampling: Sampling) -> int:
    """The token of one row, from the probabilities of the whole vocabulary."""
    if sampling.greedy:
        return int(logits.argmax(-1))
    mass = plainly_filtered(logits, sampling).double().softmax(-1).cumsum(-1)
    draw = torch.rand((), dtype=torch.float64, generator=torch.Generator().manual_seed(sampling.seed))
    return int(torch.searchsorted(mass, draw * mass[:, -1:], right=True).clamp(max=logits.shape[-1] - 1))


def awkward_logits(size: int, seed: int) -> dict[str, torch.Tensor]:
    """Random logits, with ties, with tokens of probability 0, with one token that is left, and all equal."""
    values = 4 * torch.randn(2, size, generator=torch.Generator().manual_seed(seed))
    single = torch.full((2, size), -torch.inf)
    single[:, seed % size] = 1.0
    return {
        "random": values,
        "ties": values.bfloat16().float(),
        "many ties": values.round(),
        "impossible tokens": values.masked_fill(values < 3.0, -torch.inf).index_fill(1, torch.tensor([size - 1]), 0.0),
        "one token": single,
        "equal": torch.zeros(2, size),
    }


SORTED: list[dict[str, Any]] = [
    {"temperature": 0.0}, {"temperature": 0.7}, {"top_k": 3}, {"top_k": 200_000}, {"top_p": 0.3}, {"top_p": 0.95},
    {"top_p": 0.9999999}, {"min_p": 0.1}, {"typical_p": 0.5}, {"top_k": 20, "top_p": 0.8}, {"top_k": 5, "min_p": 0.2},
    {"top_k": 20, "typical_p": 0.8}, {"top_k": 9, "top_h": 0.5}, {"top_h": 0.4}, {"epsilon_cutoff": 0.02},
    {"eta_cutoff": 0.02, "top_k": 30}, {"top_k": 2, "temperature": 1e-3},
    {"top_k": 4, "temperature": 1e300}, {"top_k": 7, "epsilon_cutoff": 0.1},
]  # fmt: skip


@pytest.mark.parametrize("size", [1, *every(3, [65, 12, 1000, 4097])])
@pytest.mark.parametrize("settings", SORTED, ids=str)
@pytest.mark.parametrize("seeds", [4, pytest.param(20, marks=pytest.mark.slow)])
def test_blocks_of_tokens_and_vectors_change_no_bit(
    size: int, settings: dict[str, Any], seeds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (filters, sys.modules[Sampler.__module__]):
        monkeypatch.setattr(module, "VERY_LARGE", 0)
    monkeypatch.setattr(filters, "LARGE", 0)
    for seed in range(seeds):
        sampling = Sampling(seed=seed, **settings)
        for name, logits in awkward_logits(size, seed).items():
            assert torch.equal(filtered(logits, sampling), plainly_filtered(logits, sampling)), (name, seed)
            tokens = sample(logits, [Sampler(sampling, [0], size, CPU) for _ in logits])
            assert tokens == [plainly_drawn(row[None], sampling) for row in logits], (name, seed)


@pytest.mark.parametrize("size", [1000, 4097])
@pytest.mark.parametrize("settings", [settings for settings in SORTED if settings.get("temperature") != 0.0], ids=str)
def test_the_tokens_in_blocks_have_the_same_mass(
    size: int, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filters, "LARGE", 0)
    monkeypatch.setattr(filters, "VERY_LARGE", 0)
    sampling = Sampling(**settings)
    for name, logits in awkward_logits(size, 3).items():
        whole, (inside, blocks) = plainly_filtered(logits, sampling), filters.candidates(logits, sampling)
        if blocks is None:
            assert torch.equal(inside, whole), name
            continue
        ids = (blocks[..., None] * filters.BLOCK + torch.arange(filters.BLOCK)).flatten(1)
        padded = torch.nn.functional.pad(whole, (0, filters.BLOCK), value=-torch.inf)
        assert torch.equal(inside, padded.gather(1, ids)), name
        for masses in (torch.Tensor.softmax, lambda values, dim: values.double().softmax(dim).cumsum(dim)):
            assert torch.equal(masses(inside, -1), masses(padded, -1).gather(1, ids)), name


def plainly_adjusted(logits: torch.Tensor, sampling: Sampling, prompt: list[int], chosen: list[int]) -> torch.Tensor:
    """Biases and penalties from the whole text, each time anew."""
    logits, text = logits.clone(), [*prompt, *chosen]
    for token, bias in sampling.logit_bias.items():
        logits[token] += bias
    counts = torch.bincount(torch.tensor(chosen, dtype=torch.long), minlength=len(logits)).float()
    logits -= sampling.presence_penalty * (counts > 0) + sampling.frequency_penalty * counts
    penalise(logits, sorted(set(text)), sampling.repetition_penalty)
    size = sampling.no_repeat_ngram_size
    for start in range(len(text) + 1 - size if size else 0):
        if text[start : start + size - 1] == text[len(text) + 1 - size :]:
            logits[text[start + size - 1]] = -torch.inf
    return logits


@given(st.integers(0, 2**32), st.lists(st.integers(0, 5), max_size=8), st.lists(st.integers(0, 5), max_size=12))
def test_what_is_kept_of_a_text_is_what_the_whole_text_says(seed: int, prompt: list[int], chosen: list[int]) -> None:
    sampling = Sampling(
        logit_bias={5: 0.3, 1: -1.7}, presence_penalty=0.7, frequency_penalty=-0.37, repetition_penalty=1.3,
        no_repeat_ngram_size=3,
    )  # fmt: skip
    logits = torch.randn(2, 6, generator=torch.Generator().manual_seed(seed))
    logits[0, seed % 6] = -torch.inf
    sampler = Sampler(sampling, prompt, 6, CPU)
    for step in range(len(chosen) + 1):
        other = sampler.fork()
        other.consume(seed % 6)  # which the first does not see
        for row, each, text in ((0, sampler, chosen[:step]), (1, other, [*chosen[:step], seed % 6])):
            adjusted = logits[row].clone()
            each.adjust(adjusted)
            assert torch.equal(adjusted, plainly_adjusted(logits[row], sampling, prompt, text))
        if step < len(chosen):
            sampler.consume(chosen[step])


@pytest.mark.parametrize("size", [1, 12, 65, 1000, 4097])
@pytest.mark.parametrize("count", [0, 1, 3, 12])
def test_the_largest_are_those_of_topk(size: int, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filters, "LARGE", 0)
    for seed in range(20):
        for name, logits in awkward_logits(size, seed).items():
            expected = logits.topk(min(count, size))
            for ours, theirs in zip(filters.largest(logits, count), expected, strict=True):
                assert torch.equal(ours, theirs), (name, seed)
