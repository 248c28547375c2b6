"""A tokenizer that is exchanged: tokens that both have are copied, and others begin from those that spell them."""

from pathlib import Path

import pytest
import torch

import archetype
from archetype.api.language_model import LanguageModel
from archetype.api.transplanting import transplant
from archetype.errors import DataError, SpecError
from archetype.models.build import build
from archetype.nn.layouts import NEW
from archetype.nn.ledger import Start
from archetype.nn.transfer import Cuts, Vocabulary
from archetype.spec.edit import assign
from archetype.surgery.operation import fill
from archetype.surgery.proof import loss_of
from archetype.surgery.vocabulary import exchange
from archetype.tokenizers.registry import train_tokenizer
from tests.helpers.specs import attending
from tests.helpers.weights import randomize

TEXT = "the cat sat on the mat; the hat of the cat that sat is on the mat. " * 3
BYTES = train_tokenizer("bytes", [], None)
MERGED = train_tokenizer("byte_bpe", [TEXT], 300)
FEWER = train_tokenizer("byte_bpe", [TEXT[:40]], 270)


def test_tokens_with_the_same_bytes_are_copied_and_others_composed() -> None:
    vocabulary = exchange(BYTES, MERGED, 256, 310)
    spelled = {MERGED.decode([id]): list(pieces) for id, pieces in vocabulary.pieces.items()}
    assert spelled[" the"] == list(b" the")
    assert spelled["at"] == list(b"at")
    copied = {id: token for id, token in enumerate(vocabulary.tokens) if token != NEW}
    assert sorted(copied.values()) == list(range(256))
    (letter,) = MERGED.encode("m")
    assert copied[letter] == ord("m")
    assert not copied.keys() & vocabulary.pieces.keys()
    end = MERGED.special_tokens["<|endoftext|>"]
    assert {end, *range(MERGED.vocab_size, 310)} == set(range(310)) - copied.keys() - vocabulary.pieces.keys()


def test_a_special_token_is_the_one_with_its_name() -> None:
    vocabulary = exchange(MERGED, FEWER, MERGED.vocab_size, FEWER.vocab_size)
    name = "<|endoftext|>"
    assert vocabulary.tokens[FEWER.special_tokens[name]] == MERGED.special_tokens[name]
    texts = {id: FEWER.decode([id]) for id in range(FEWER.vocab_size)}
    copied = {id: token for id, token in enumerate(vocabulary.tokens) if token != NEW}
    assert all(MERGED.decode([token]) == texts[id] for id, token in copied.items())
    assert all(MERGED.decode(pieces) == texts[id] for id, pieces in vocabulary.pieces.items())
    assert copied.keys() | vocabulary.pieces.keys() == texts.keys()


@pytest.mark.parametrize("tied", [True, False])
def test_rows_are_copied_and_means(tied: bool) -> None:
    spec = attending().replace(vocab_size=256, head={"kind": "language_model", "tied": tied, "bias": True})
    lm = LanguageModel(spec, randomize(build(spec)), BYTES)
    done = transplant(lm, assign(spec, ["vocab_size=310"]), TEXT, tokenizer=MERGED)
    before, after = lm.model.state_dict(), done.model.model.state_dict()
    (letter,), (word,) = MERGED.encode("m"), MERGED.encode(" the")
    names = ["embedding.token.weight", "lm_head.bias"] + ["lm_head.weight"] * (not tied)
    for name in names:
        assert torch.equal(after[name][letter], before[name][ord("m")])
        torch.testing.assert_close(after[name][word], before[name][list(b" the")].mean(0))
        torch.testing.assert_close(after[name][309], before[name].mean(0))
        assert done.report.ledger.tensors[name].how == "grown"
        assert "mean of the tokens that spell them" in done.report.ledger.tensors[name].note
    assert done.model.tokenizer is MERGED
    assert done.report.proof is None
    exchanged = done.report.exchange
    assert exchanged is not None
    assert (exchanged.copied, exchanged.copied + exchanged.composed + exchanged.drawn) == (256, 310)
    assert any(line.startswith("vocabulary: 256 copied") for line in done.report.lines())


def test_the_same_tokenizer_changes_nothing() -> None:
    spec = attending().replace(vocab_size=276)
    lm = LanguageModel(spec, randomize(build(spec)), MERGED)
    report = transplant(lm, spec, TEXT, tokenizer=MERGED).report
    assert report.ledger.start is Start.SAME
    assert report.exchange is not None
    assert report.exchange.before == report.exchange.after


def test_composed_rows_lose_less_than_the_mean_of_all(shared: Path) -> None:
    """On a trained model; tokens that both have are copied in both."""
    lm = archetype.load(shared / "stories260K")
    text = (shared / "stories260K" / "expected_greedy.txt").read_text()
    other = train_tokenizer("byte_bpe", [text], 450)
    assert lm.tokenizer is not None
    tokens, pieces = exchange(lm.tokenizer, other, 512, other.vocab_size)
    spec = assign(lm.spec, [f"vocab_size={other.vocab_size}"])
    losses = {}
    for name, spelling in (("composed", pieces), ("mean", {})):
        model, _ = fill(lm.model, spec, Cuts(vocabulary=Vocabulary(tokens, spelling)))
        losses[name] = loss_of(model, [torch.tensor([other.encode(text)[:400]])])  # type: ignore[arg-type]
    assert losses["composed"] < 0.9 * losses["mean"], losses


def test_a_vocabulary_that_does_not_fit_is_refused() -> None:
    spec = attending().replace(vocab_size=256)
    lm = LanguageModel(spec, randomize(build(spec)), BYTES)
    with pytest.raises(
        SpecError, match="vocab_size: 270 is less than the 276 tokens of the tokenizer; use vocab_size=276"
    ):
        transplant(lm, assign(spec, ["vocab_size=270"]), tokenizer=MERGED)
    with pytest.raises(DataError, match="--tokenizer: the donor has no tokenizer"):
        transplant(LanguageModel(spec, lm.model), spec, tokenizer=BYTES)
    assert archetype.transplant(lm, tokenizer=MERGED).model.spec.input_vocab_size == 276
