"""Scores of a text: the plain sum over its tokens, whatever the windows."""

import math
from functools import cache

import pytest
import torch

from archetype.api.language_model import LanguageModel
from archetype.errors import DataError
from archetype.evaluation.score import Score
from archetype.families.llama import llama
from archetype.models.build import build
from archetype.tokenizers import train_tokenizer
from tests.helpers.weights import randomize

TEXT = "Every token of a text is predicted once: äöü, 世界."


@cache
def lm(context_length: int = 200, bos: int | None = None) -> LanguageModel:
    spec = llama(num_layers=2, d_model=16, num_heads=2, d_ff=24, vocab_size=256, context_length=context_length)
    tokenizer = train_tokenizer("bytes", "", None)
    tokenizer.bos = bos
    return LanguageModel(spec, randomize(build(spec)), tokenizer)


def plain(model: LanguageModel, before: int) -> float:
    """Each token's loss from a pass of its own over at most `before` tokens before it."""
    ids = [*TEXT.encode()] if model.tokenizer is None or model.tokenizer.bos is None else [0, *TEXT.encode()]
    total = 0.0
    with torch.no_grad():
        for n in range(1, len(ids)):
            logits = model.model(torch.tensor([ids[max(0, n - before) : n]])).logits[0, -1]
            total -= float(logits.double().log_softmax(-1)[ids[n]])
    return total


@pytest.mark.parametrize("bos", [None, 0])
def test_a_text_within_the_context_is_the_plain_sum(bos: int | None) -> None:
    score = lm(bos=bos).score(TEXT)
    count = len(TEXT.encode()) - (bos is None)
    assert score.num_tokens == count and score.num_bytes == len(TEXT.encode())
    assert score.loss == pytest.approx(plain(lm(bos=bos), 200) / count, rel=1e-5)
    assert score.perplexity == pytest.approx(math.exp(score.loss))
    assert score.bits_per_byte == pytest.approx(score.loss * count / score.num_bytes / math.log(2))


def test_windows_that_move_by_one_give_each_token_the_whole_window() -> None:
    model = lm(8)
    count = len(TEXT.encode()) - 1
    assert model.score(TEXT, stride=1).loss == pytest.approx(plain(model, 8) / count, rel=1e-5)
    assert model.score(TEXT, stride=1, length=3).loss == pytest.approx(plain(model, 3) / count, rel=1e-5)


def test_every_token_is_predicted_once_whatever_the_windows() -> None:
    model, ids = lm(8), [*TEXT.encode()]
    for length in (1, 2, 5, 8):
        for stride in range(1, length + 1):
            total = 0.0
            with torch.no_grad():
                for n in range(1, len(ids)):
                    # the first window that holds n as a target
                    window = next(s for s in range(0, len(ids), stride) if n <= s + length)
                    logits = model.model(torch.tensor([ids[window:n]])).logits[0, -1]
                    total -= float(logits.double().log_softmax(-1)[ids[n]])
            score = model.score(TEXT, stride, length)
            assert score.num_tokens == len(ids) - 1
            assert score.loss * score.num_tokens == pytest.approx(total, rel=1e-5), (length, stride)


def test_sizes_and_texts_that_cannot_be_are_refused() -> None:
    for changes, message in (
        ({"stride": 0}, "stride: 0 is not between 1 and 8"), ({"stride": 9}, "stride: 9 is not between 1 and 8"),
        ({"length": -1}, "length: -1 is not between 1 and 8"), ({"length": 9}, "length: 9 is not between 1 and 8"),
    ):  # fmt: skip
        with pytest.raises(DataError, match=message):
            lm(8).score(TEXT, **changes)
    with pytest.raises(DataError, match="has fewer than two tokens, and nothing to predict"):
        lm(8).score("a")


def test_a_hopeless_loss_has_a_perplexity() -> None:
    assert math.isfinite(Score(1e6, 1, 1, 0.0, torch.tensor([1e6]), torch.tensor([False])).perplexity)
