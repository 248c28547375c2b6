"""What is learned of a text: hidden tokens, and spans that were cut out."""

import math
from itertools import takewhile

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from archetype.data.corpus import Corpus
from archetype.errors import DataError
from archetype.training.objectives.base import IGNORED, Batch, Objective
from archetype.training.objectives.masked_token import MaskedToken, MaskedTokenObjective
from archetype.training.objectives.next_token import NextTokenObjective
from archetype.training.objectives.span_corruption import SpanCorruption, SpanCorruptionObjective

VOCABULARY, MASK, LENGTH = 50, 60, 64


def corpus(held_out: int = 3000, vocab_size: int = VOCABULARY) -> Corpus:
    drawn = np.random.default_rng(0).integers(vocab_size, size=20_000 + held_out, dtype=np.int32)
    return Corpus(drawn[held_out:], drawn[:held_out], held_out, "")


def masked(probability: float = 0.15, seed: int = 0, batch_size: int = 100, mask: int = MASK) -> MaskedTokenObjective:
    config = MaskedToken(mask_probability=probability)
    return MaskedTokenObjective(corpus(), batch_size, LENGTH, seed, config, mask, VOCABULARY)


def spans(length: int = LENGTH, seed: int = 0, density: float = 0.15, mean: float = 3.0) -> SpanCorruptionObjective:
    config = SpanCorruption(noise_density=density, mean_span_length=mean)
    return SpanCorruptionObjective(corpus(), 8, length, seed, config, first_sentinel=999)


def plain(objective: Objective, step: int) -> torch.Tensor:
    """The windows of a step as they stand in the text."""
    assert isinstance(objective, MaskedTokenObjective | SpanCorruptionObjective)
    return torch.from_numpy(objective.batches.batch(step)).long()[:, :-1]


@pytest.mark.parametrize("share", [0.001, 0.15, 0.4, 0.999])
def test_the_same_share_of_every_row_is_hidden(share: float) -> None:
    objective = masked(share)
    seen, targets = objective.batch(0)
    chosen = targets != IGNORED
    assert chosen.sum(1).tolist() == [max(1, round(share * LENGTH))] * 100
    tokens = plain(objective, 0)
    assert torch.equal(targets[chosen], tokens[chosen])
    assert torch.equal(seen[~chosen], tokens[~chosen])


@pytest.mark.parametrize("mask", [MASK, 3])
def test_of_the_hidden_8_in_10_are_masks_1_any_token_and_1_itself(mask: int) -> None:
    """Also where the mask is one of the tokenizer's own first ids, as BERT's is."""
    objective = masked(0.5, mask=mask)
    seen, targets = (torch.cat(side) for side in zip(*(objective.batch(step) for step in range(10)), strict=True))
    chosen = targets != IGNORED
    n = int(chosen.sum())
    masks = int((seen[chosen] == mask).sum())
    drawn = seen[chosen & (seen != mask) & (seen != targets)]
    unchanged = int((chosen & (seen == targets) & (seen != mask)).sum())
    for count, share in ((masks, 0.8), (len(drawn), 0.1), (unchanged, 0.1)):
        near = 0.1 / VOCABULARY  # any token may be the mask or what stood there
        assert abs(count / n - share) < near + 0.8 / VOCABULARY * (mask < VOCABULARY) + 4 * math.sqrt(share / n)
    counts = torch.bincount(drawn, minlength=VOCABULARY)
    assert len(counts) == VOCABULARY
    assert (counts > 0).sum() >= VOCABULARY - 1 and counts.max() < 3 * counts.float().mean()


def test_a_mask_beyond_the_vocabulary_is_never_drawn_as_any_token() -> None:
    seen, targets = masked(0.9).batch(0)
    others = seen[seen != MASK]
    assert others.max() < VOCABULARY and targets.max() < VOCABULARY
    assert (seen == MASK).any()


def equal(one: Batch, other: Batch) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def held_out(objective: Objective) -> list[Batch]:
    """All validation batches."""
    return [objective.validation_batch(index) for index in range(objective.num_validation_batches)]


@pytest.mark.parametrize("make", [masked, spans])
def test_what_is_drawn_is_a_function_of_seed_and_step(make: type) -> None:
    objective, again = make(seed=7), make(seed=7)
    for earlier in range(3):
        objective.batch(earlier)
    held_out(objective)
    assert equal(objective.batch(3), again.batch(3))
    assert not equal(again.batch(3), again.batch(4))
    assert not equal(again.batch(3), make(seed=8).batch(3))


@pytest.mark.parametrize("make", [masked, spans])
@pytest.mark.parametrize("seed", [0, 2**63 - 1])
def test_held_out_batches_are_always_the_same_and_each_drawn_by_itself(make: type, seed: int) -> None:
    first, second = (held_out(make(seed=seed)) for _ in range(2))
    assert first and all(equal(a, b) for a, b in zip(first, second, strict=True))
    objective = make(seed=seed)
    rows = objective.validation_windows[: objective.batch_size]
    assert not equal(objective.examples(rows, -1), objective.examples(rows, -2))
    assert not equal(objective.examples(rows, 0), objective.examples(rows, 1))


@given(st.integers(2, 80), st.floats(0.01, 0.99), st.floats(1, 20), st.integers(0, 2**40), st.integers(0, 20))
def test_source_and_target_together_are_the_text(
    length: int, density: float, mean: float, seed: int, step: int
) -> None:
    objective = spans(length, seed, density, mean)
    source, target = objective.batch(step)
    cut, count = objective.config.num_noise_tokens_and_spans(length)
    assert 1 <= count <= cut < length
    sentinels = [999 - n for n in range(count + 1)]
    assert source.shape == (8, length - cut + count)
    assert target.shape == (8, cut + count + 1)
    for row, left, taken in zip(plain(objective, step), source.tolist(), target.tolist(), strict=True):
        assert [token for token in left if token >= VOCABULARY] == sentinels[:-1]
        assert [token for token in taken if token >= VOCABULARY] == sentinels
        assert taken[0] == 999 and taken[-1] == sentinels[-1]
        assert left[0] < VOCABULARY, "a span never begins the text"
        filled: list[int] = []
        for token in left:
            if token < VOCABULARY:
                filled.append(token)
            else:
                after = taken[taken.index(token) + 1 :]
                span = list(takewhile(lambda t: t < VOCABULARY, after))
                assert span
                filled += span
        assert filled == row.tolist()


def test_as_much_is_cut_out_as_the_objective_says() -> None:
    for length, fields, expected in (
        (512, {}, (77, 26)),  # Raffel 2019, section 3.1.4: 15 %, spans of 3
        (100, {"noise_density": 0.5, "mean_span_length": 10}, (50, 5)),
        (10, {"noise_density": 0.9, "mean_span_length": 1}, (9, 1)),  # between two spans stands a token
        (2, {"noise_density": 0.01}, (1, 1)),
    ):
        assert SpanCorruption(**fields).num_noise_tokens_and_spans(length) == expected


def test_spans_have_all_lengths_in_all_places() -> None:
    objective = spans(64, density=0.25, mean=4)
    target = torch.cat([objective.batch(step)[1] for step in range(50)])
    starts = (target >= VOCABULARY).nonzero()[:, 1].view(len(target), -1)
    lengths = starts.diff(dim=1) - 1
    assert lengths.float().mean() == 4
    assert set(lengths.flatten().tolist()) >= set(range(1, 9))
    assert all(len(set(column.tolist())) > 5 for column in lengths.T)


def test_one_token_has_no_span() -> None:
    for length, held_out in ((1, 3000), (64, 2)):
        with pytest.raises(DataError) as caught:
            SpanCorruptionObjective(corpus(held_out), 8, length, 0, SpanCorruption(), 999)
        message = "text: a window of one token has no span to cut out; use a longer text or sequence_length"
        assert str(caught.value) == message


def test_bits_per_byte_are_known_only_where_every_token_is_predicted() -> None:
    text = Corpus(corpus().training, corpus().validation, 9000, "")
    assert NextTokenObjective(text, 8, LENGTH, 0).bytes_per_unit == 3.0
    assert masked().bytes_per_unit is None and spans().bytes_per_unit is None


def test_the_last_held_out_batch_has_the_rows_that_are_left() -> None:
    batches = held_out(masked(batch_size=10))
    assert [len(seen) for seen, _ in batches] == [10, 10, 10, 10, 6]  # 2,999 tokens in windows of 64
