"""Filling, embedding and translating: what the models themselves compute, and words where they cannot."""

import random
from functools import cache
from typing import Any

import pytest
import torch

import archetype
from archetype import spec
from archetype.api.language_model import LanguageModel
from archetype.errors import ArchetypeError
from archetype.families import preset
from archetype.families.bert import bert
from archetype.families.llama import llama
from archetype.families.original_transformer import transformer
from archetype.generate import beam_search
from archetype.generate import encoder as encoder_verbs
from archetype.models.build import build
from archetype.models.encoder.module import Encoder
from archetype.settings.generation import Beam
from archetype.tokenizers import Tokenizer, train_tokenizer
from archetype.tokenizers.special_tokens import mask_id
from tests.helpers.weights import randomize

TEXT = "the cat sat on the mat and the other cat sat there"


@cache
def tokenizer(kind: str = "bytes") -> Tokenizer:
    return train_tokenizer(kind, TEXT, 280 if kind == "byte_bpe" else None)  # type: ignore[arg-type]


@cache
def encoder(pooler: bool = False, head: spec.EncoderHead | None = None, vocab_size: int = 260) -> LanguageModel:
    model_spec = bert(num_layers=1, d_model=8, num_heads=2, vocab_size=vocab_size, context_length=24)
    model_spec = model_spec.replace(pooler=pooler, head=head or model_spec.head)
    return LanguageModel(model_spec, randomize(build(model_spec)), tokenizer())  # type: ignore[arg-type]


@cache
def translator() -> LanguageModel:
    model_spec = transformer(num_layers=1, d_model=8, num_heads=2, d_ff=12, vocab_size=280, context_length=20)
    return LanguageModel(model_spec, randomize(build(model_spec)), tokenizer("byte_bpe"))  # type: ignore[arg-type]


def refusal(verb: str, lm: LanguageModel, *arguments: object, **options: object) -> str:
    with pytest.raises(ArchetypeError) as caught:
        getattr(lm, verb)(*arguments, **options)
    return str(caught.value)


@torch.no_grad()
@pytest.mark.parametrize("text", ["the [MASK]at", "[MASK][MASK] c[MASK]", "[MASK]"])
def test_guesses_are_the_likeliest_by_the_models_softmax(text: str) -> None:
    lm = encoder()
    ids: list[int] = []
    for part in text.replace("[MASK]", "\0[").replace("[", "").split("\0"):
        ids += [*part.encode(), 256]
    ids = ids[:-1]
    assert bytes(id != 256 and id for id in ids).decode() == text.replace("[MASK]", "\0")
    shares = lm.model(torch.tensor([ids])).logits[0, :, :256].softmax(-1)
    guesses_by_mask = lm.fill(text, top=3)
    assert len(guesses_by_mask) == text.count("[MASK]")
    for guesses, place in zip(guesses_by_mask, [n for n, id in enumerate(ids) if id == 256], strict=True):
        best = shares[place].topk(3)
        assert [guess.probability for guess in guesses] == pytest.approx(best.values.tolist(), rel=1e-5)
        assert [guess.token for guess in guesses] == [tokenizer().token(id) for id in best.indices.tolist()]


def test_all_guesses_together_are_certain_and_of_the_tokenizer() -> None:
    (guesses,) = encoder().fill("a[MASK]b", top=1000)
    assert len(guesses) == 256  # not the mask, nor the ids that only fill the vocabulary
    assert sum(guess.probability for guess in guesses) == pytest.approx(1.0)


def test_a_tokenizers_own_mask_is_used() -> None:
    class Masking(type(tokenizer())):  # type: ignore[misc]
        special_tokens = {"[MASK]": 7}  # noqa: RUF012

    lm = encoder()
    own = LanguageModel(lm.spec, lm.model, Masking())
    assert (mask_id(own.tokenizer), mask_id(tokenizer())) == (7, 256)  # type: ignore[arg-type]
    with torch.no_grad():
        best = lm.model(torch.tensor([[97, 7]])).logits[0, 1, :256].softmax(-1).max().item()
    assert own.fill("a[MASK]", top=1)[0][0].probability == pytest.approx(best, rel=1e-5)
    assert own.fill("a[MASK]") != lm.fill("a[MASK]")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("the cat", "text: has no [MASK]; write [MASK] in place of each token to predict"),
        (
            "[MASK]" + "a" * 24,
            "text: has 25 tokens, but the model accepts 1 to 24; use a text of that length",
        ),
    ],
)
def test_a_text_that_cannot_be_filled_is_told(text: str, message: str) -> None:
    assert refusal("fill", encoder(), text) == message


def test_a_model_that_names_no_tokens_is_told() -> None:
    remedy = "use a model with head masked_language_model"
    for head in (spec.NoHead(), spec.ClassificationHead(num_classes=2)):
        message = refusal("fill", encoder(head=head), "a[MASK]")
        assert message == f"head: a head of kind {head.kind} does not predict masked tokens; {remedy}"
    assert refusal("fill", encoder(vocab_size=256), "a[MASK]") == (
        "vocab_size: 256 ids leave no id for a mask token after the tokenizer's 256; "
        "use a model that was trained on masked tokens"
    )


@torch.no_grad()
@pytest.mark.parametrize("pooler", [False, True])
@pytest.mark.parametrize("pooling", ["mean", "max", "first"])
@pytest.mark.parametrize("normalized", [False, True])
def test_a_vector_is_its_texts_alone_however_long_the_others(pooler: bool, pooling: str, normalized: bool) -> None:
    lm = encoder(pooler)
    texts = ["a", "the cat sat on the mat", "cat"]
    embeddings = lm.embed(texts, pooling=pooling, normalized=normalized)  # type: ignore[arg-type]
    assert isinstance(lm.model, Encoder)
    for row, text in zip(embeddings, texts, strict=True):
        vectors = lm.model(torch.tensor([list(text.encode())])).hidden[0]
        expected = {"mean": vectors.mean(0), "max": vectors.amax(0), "first": vectors[0]}[pooling]
        if pooler and pooling == "first":
            assert lm.model.pooler is not None
            expected = lm.model.pooler(expected[None])[0]
        expected = expected / expected.norm() if normalized else expected
        torch.testing.assert_close(row, expected, rtol=1e-4, atol=1e-5)
    lengths = embeddings.norm(dim=1)
    assert torch.allclose(lengths, torch.ones(3), atol=1e-5) == normalized
    assert embeddings.dtype == torch.float32


def test_texts_are_read_by_length_and_answered_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(0)
    texts = ["".join(draw.choices("abc ", k=draw.randint(1, 24))) for _ in range(200)]
    labelled = encoder(head=spec.ClassificationHead(num_classes=3))
    causal = llama(num_layers=1, d_model=8, num_heads=2, d_ff=12, vocab_size=260, context_length=24)
    decoder = LanguageModel(causal, randomize(build(causal)), tokenizer())  # type: ignore[arg-type]
    for lm in (encoder(), labelled, decoder):
        read, forward = [], lm.model.forward

        def counted(tokens: torch.Tensor, *args: Any, **options: Any) -> Any:
            read.append(tuple(tokens.shape))  # noqa: B023
            return forward(tokens, *args, **options)  # noqa: B023

        ask = lm.classify if lm is labelled else lm.embed
        together = ask(texts)
        with monkeypatch.context() as patch:
            patch.setattr(lm.model, "forward", counted)
            patch.setattr(encoder_verbs, "TOKENS_AT_ONCE", 100)
            torch.testing.assert_close(ask(texts), together, rtol=0, atol=1e-5)
        lengths = [length for _, length in read]
        assert lengths == sorted(lengths) and all(rows * length <= 100 for rows, length in read)
        assert sum(rows * length for rows, length in read) < 1.1 * sum(map(len, texts))


@pytest.mark.parametrize(("text", "count"), [("", 0), ("a" * 25, 25)])
def test_a_text_that_has_no_vector_is_numbered(text: str, count: int) -> None:
    assert refusal("embed", encoder(), ["a", text]) == (
        f"text 2: has {count} tokens, but the model accepts 1 to 24; use a text of that length"
    )


def test_a_translation_is_what_the_search_finds_of_the_marked_source() -> None:
    lm = translator()
    end = lm.tokenizer.eos[0]  # type: ignore[union-attr]
    texts = ["the cat", "sat there", "a"]
    sources = [[*lm.tokenizer.encode(text), end] for text in texts]  # type: ignore[union-attr]
    targets = beam_search(lm.model, sources, end, end, Beam(num_beams=3, max_extra_tokens=4))  # type: ignore[arg-type]
    assert lm.translate(texts, num_beams=3, max_extra_tokens=4) == [lm.tokenizer.decode(ids) for ids in targets]  # type: ignore[union-attr]
    assert (
        lm.translate(texts[0], num_beams=3, max_extra_tokens=4)
        == lm.translate(texts, num_beams=3, max_extra_tokens=4)[0]
    )
    assert any(targets)


def test_empty_texts_stay_empty_and_keep_their_places() -> None:
    lm = translator()
    texts = ["", "the cat", " \t ", "sat"]
    translations = lm.translate(texts, num_beams=2)
    assert translations[0] == translations[2] == ""
    assert [translations[1], translations[3]] == lm.translate([texts[1], texts[3]], num_beams=2)
    assert lm.translate(["", ""]) == ["", ""] and lm.translate([]) == []


def test_a_source_that_is_too_long_is_numbered() -> None:
    message = refusal("translate", translator(), ["a", "z" * 20])
    assert message == "text 2: has 21 tokens, but the model's context is 20; split it into sentences"
    assert isinstance(translator().translate("z" * 19, num_beams=1), str)


TINY = {
    "generate, score or embed texts": ("llama-tiny", "mamba-tiny"),
    "generate or score texts": ("bigram-tiny", "megabyte-tiny"),
    "translate or generate texts": ("transformer-tiny",),
    "fill, unmask or embed texts": ("bert-tiny",),
    "classify images": ("vit-tiny",),
}
CALLS = {
    "generate": ("a",), "stream": ("a",), "translate": ("a",), "fill": ("a[MASK]",), "embed": (["a"],),
    "score": ("ab",),
    "classify": (torch.zeros(1, 1, 8, 8),),
}  # fmt: skip


@pytest.mark.parametrize(("purpose", "name"), [(purpose, name) for purpose in TINY for name in TINY[purpose]])
def test_a_verb_that_is_not_the_models_says_what_it_is_there_for(purpose: str, name: str) -> None:
    model_spec = preset(name)
    lm = LanguageModel(model_spec, build(model_spec, device="meta"), tokenizer())
    own = set(purpose.replace(",", "").split()) | ({"stream"} if "generate" in purpose else set())
    others = [verb for verb in CALLS if verb not in own and (verb, name) != ("classify", "bert-tiny")]
    assert len(others) >= 3
    for verb in others:
        message = refusal(verb, lm, *CALLS[verb])
        cause = f"a model of kind {model_spec.kind} with head {model_spec.head.kind} cannot do this"
        assert message == f"model: {cause}; it can {purpose}"


@pytest.mark.parametrize(("lm", "verb"), [(encoder, "fill"), (encoder, "embed"), (translator, "translate")])
def test_without_a_tokenizer_no_text_goes_in(lm: object, verb: str) -> None:
    whole = lm()  # type: ignore[operator]
    bare = archetype.LanguageModel(whole.spec, whole.model)
    assert refusal(verb, bare, *CALLS[verb]) == (
        "tokenizer: the model's folder has no tokenizer; add its tokenizer.json or tokenizer.model"
    )


def test_a_decoder_embeds_a_text_as_its_last_token() -> None:
    spec = llama(num_layers=2, d_model=8, num_heads=2, d_ff=12, vocab_size=256, context_length=24)
    lm = LanguageModel(spec, randomize(build(spec)), tokenizer())
    texts = ["a longer text", "short"]
    vectors = lm.embed(texts, normalized=False)
    torch.testing.assert_close(lm.embed(texts[0], normalized=False), vectors[:1])  # one text, not its characters
    means = lm.embed(texts, "mean", normalized=False)
    for text, vector, mean in zip(texts, vectors, means, strict=True):
        hidden = lm.model(torch.tensor([[*text.encode()]])).hidden[0]
        torch.testing.assert_close(vector, hidden[-1])
        torch.testing.assert_close(mean, hidden.mean(0))
    with pytest.raises(ArchetypeError, match="a decoder's first token sees no other token"):
        lm.embed(texts, "first")
    with pytest.raises(ArchetypeError, match="pooling: 'median' is not a pooling method; did you mean mean"):
        lm.embed(texts, "median")  # type: ignore[arg-type]


def test_a_model_moves_and_changes_its_type_by_name() -> None:
    spec = llama(num_layers=1, d_model=8, num_heads=2, d_ff=12, vocab_size=256, context_length=24)
    lm = LanguageModel(spec, randomize(build(spec)), tokenizer())
    assert lm.to("cpu", "bfloat16") is lm and next(lm.model.parameters()).dtype is torch.bfloat16
    assert next(lm.to(dtype=torch.float32).model.parameters()).dtype is torch.float32
    with pytest.raises(ArchetypeError, match="dtype: unknown dtype 'int7'"):
        lm.to(dtype="int7")


def test_one_stop_string_needs_no_list() -> None:
    spec = llama(num_layers=1, d_model=8, num_heads=2, d_ff=12, vocab_size=256, context_length=24)
    lm = LanguageModel(spec, randomize(build(spec)), tokenizer())
    assert lm.settings(stop="ab").stop == ("ab",) == lm.settings(stop=["ab"]).stop
