"""What is read in padded batches is what each text gives alone: vectors of every pooling, classes, scores, masks."""

from typing import Any

import pytest
import torch
from torch import Tensor

from archetype.evaluation.score import score_continuations
from archetype.families import preset
from archetype.generate import encoder
from archetype.generate.encoder import classify_texts, embed, fill
from archetype.models.build import build
from archetype.spec.edit import assign
from archetype.tokenizers import Tokenizer, train_tokenizer
from tests.helpers.cases import case
from tests.helpers.weights import distance, randomize

EXACT = 1e-12  # of float64
# in no order of lengths; two of one length
ROWS = [[5, 1, 9, 3, 3, 8, 2], [7], [4, 4, 2], [6, 5, 4, 3, 2, 1, 9, 8, 7, 6, 5], [1, 2, 3]]
ALL_AT_ONCE, TWO, ONE = 4096, 8, 1  # tokens, padding included, that go through the model together


def model_of(name: str, *changes: str) -> Any:
    return randomize(build(assign(preset(name), [*changes]), dtype=torch.float64)).eval()


def bytes_with_ends(vocab_size: int = 256) -> Tokenizer:
    """Bytes, as wide as a model's vocabulary."""
    tokenizer = train_tokenizer("bytes", "", None)
    tokenizer.bos, tokenizer.adds_bos = 2, True
    return tokenizer


@torch.no_grad()
def alone(model: Any, row: list[int], pooling: str) -> Tensor:
    """The vector of one text, by a pass of its own without padding."""
    tokens = torch.tensor([row])
    hidden = model(tokens).hidden[0]
    return {
        "mean": lambda: sum(hidden) / len(row),
        "first": lambda: hidden[0] if model.pooler is None else model.pooler(hidden[:1])[0],
        "last": lambda: hidden[len(row) - 1],
    }[pooling]()


@pytest.mark.parametrize("at_once", [ALL_AT_ONCE, TWO, ONE])
def test_vectors_of_every_pooling(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder, "TOKENS_AT_ONCE", at_once)
    for name, changes, poolings in (
        ("bert-tiny", (), ("mean", "first", "last")),
        ("bert-tiny", ("pooler=true", "pooling=first"), ("mean", "first", "last")),
        ("llama-tiny", (), ("mean", "last")),
        ("mamba-tiny", (), ("mean", "last")),
    ):
        model = model_of(name, *changes)
        for pooling in poolings:
            with case(name, changes, pooling):
                expected = torch.stack([alone(model, row, pooling) for row in ROWS])
                vectors = embed(model, ROWS, pooling, normalized=False)  # type: ignore[arg-type]
                assert distance(vectors, expected.float()) < 1e-6
                lengths = expected.norm(dim=-1, keepdim=True)
                assert distance(embed(model, ROWS, pooling), (expected / lengths).float()) < 1e-6  # type: ignore[arg-type]


@pytest.mark.parametrize("at_once", [ALL_AT_ONCE, TWO])
def test_classes_of_texts_that_are_cut_or_not(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The text is cut, so that what stands around it has room."""
    monkeypatch.setattr(encoder, "TOKENS_AT_ONCE", at_once)
    texts, tokenizer = ["seven b", "q", "as long as the context, or longer", "abc"], bytes_with_ends()
    for name in ("bert-tiny", "llama-tiny"):
        model = model_of(name, "vocab_size=256", "context_length=12", "head={kind: classification, num_classes: 3}")
        with case(name), torch.no_grad():
            rows = [[2, *text.encode()][:12] for text in texts]
            expected = torch.cat([model(torch.tensor([row])).logits.softmax(-1) for row in rows])
            assert distance(classify_texts(model, tokenizer, texts, truncate=True)[0], expected.float()) < 1e-6


@torch.no_grad()
def test_scores_of_continuations() -> None:
    """Some likeliest in every token, some in one, some in none; of several lengths, read together and alone."""
    model = model_of("llama-tiny")
    pairs = []
    for row in ROWS:
        one, continuation = [*row], []
        for _ in range(3):
            continuation.append(int(model(torch.tensor([one])).logits[0, -1].argmax()))
            one.append(continuation[-1])
        other = [continuation[0], (continuation[1] + 1) % model.spec.vocab_size, continuation[2]]
        pairs += [(row, continuation), (row, continuation[:1]), (row, other), (row, [other[1]])]
    expected = []
    for before, continuation in pairs:
        logp = model(torch.tensor([[*before, *continuation]])).logits[0].log_softmax(-1)
        places = range(len(before) - 1, len(before) + len(continuation) - 1)
        values = [float(logp[place, token]) for place, token in zip(places, continuation, strict=True)]
        likeliest = [int(logp[place].argmax()) for place in places] == continuation
        expected.append((sum(values), likeliest))
    scores = score_continuations(model, pairs)
    assert [likeliest for _, likeliest in scores] == [likeliest for _, likeliest in expected]
    assert [value for value, _ in scores] == pytest.approx([value for value, _ in expected], rel=1e-5)
    assert {likeliest for _, likeliest in expected} == {True, False}


@torch.no_grad()
def test_masked_tokens_are_filled_with_tokens_that_have_text() -> None:
    """Ids beyond the tokenizer's have no share of the probability."""
    model, tokenizer = model_of("bert-tiny", "vocab_size=300"), bytes_with_ends()
    ids = [2, *b"a ", 256, *b" b ", 256]
    logits = model(torch.tensor([ids])).logits[0].float()
    for place, predictions in zip((3, 7), fill(model, tokenizer, "a [MASK] b [MASK]", top=4), strict=True):
        best = logits[place, :256].softmax(-1).topk(4)
        assert [one.token for one in predictions] == [tokenizer.token(id) for id in best.indices.tolist()]
        assert [one.probability for one in predictions] == pytest.approx(best.values.tolist(), rel=1e-5)
        assert float(logits[place].softmax(-1)[256:].sum()) > 0.01  # the control: they would take some
