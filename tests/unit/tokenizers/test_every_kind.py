"""What holds for every kind of tokenizer: streams, round trips, ids without a token."""

import base64
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archetype.tokenizers import Tokenizer, open_tokenizer, train_tokenizer
from archetype.tokenizers.marian import MarianTokenizer
from archetype.tokenizers.sentencepiece import SentencePieceTokenizer, processor_of
from archetype.tokenizers.tiktoken import TiktokenTokenizer
from tests.helpers.examples import examples

TEXT = "Hello there, hello again! Überall – 早い狐 (don't you see?)\nA naïve 😀 walks 3.14 miles.\n\n" * 3
AWKWARD = [
    "",
    " ",
    "\n",
    "  two  spaces ",
    "héllo",
    "日本語",
    "😀👩‍👩‍👧",
    "\x00\x7f",
    "हिन्दी",
    "a\u0301",
    "‮abc",
    "\ufeff",
]
PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""


def rank_file() -> bytes:
    tokens = [bytes((byte,)) for byte in range(256)]
    tokens += [b"he", b"ll", b"hell", b"hello", b" t", b"\xe6\x97", b"\xf0\x9f", b"\x98\x80", b"\n\n"]
    return b"".join(base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(tokens))


@cache
def sentencepiece_model(kind: str, text: str = TEXT, byte_fallback: bool = True) -> bytes:
    import io

    import sentencepiece

    file = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text.splitlines()),
        model_writer=file,
        vocab_size=330 if kind == "bpe" else 320,
        model_type=kind,
        byte_fallback=byte_fallback,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    return file.getvalue()


def marian() -> MarianTokenizer:
    """Of two languages, with a table of the pieces of both."""
    import json

    source = sentencepiece_model("unigram", TEXT + "The cat sleeps on the warm stone.\n" * 3, byte_fallback=False)
    target = sentencepiece_model("unigram", "Die Katze schläft auf dem warmen Stein.\n" * 3, byte_fallback=False)
    pieces = dict.fromkeys(["</s>", "<unk>"])
    for processor in (processor_of(source, "source.spm"), processor_of(target, "target.spm")):
        pieces |= dict.fromkeys(processor.id_to_piece(id) for id in range(processor.vocab_size()))
    table = {piece: id for id, piece in enumerate([*pieces, "<pad>"])}
    return MarianTokenizer(source, target, json.dumps(table).encode())


MAKERS: dict[str, Callable[[], Tokenizer]] = {
    "bytes": lambda: train_tokenizer("bytes", "", None),
    "characters": lambda: train_tokenizer("characters", TEXT, None),
    "words": lambda: train_tokenizer("words", TEXT, None),
    "bpe": lambda: train_tokenizer("bpe", TEXT, 100),
    "byte_bpe": lambda: train_tokenizer("byte_bpe", TEXT, 400),
    "sentencepiece bpe": lambda: SentencePieceTokenizer(sentencepiece_model("bpe")),
    "sentencepiece unigram": lambda: SentencePieceTokenizer(sentencepiece_model("unigram")),
    "marian": marian,
    "tiktoken": lambda: TiktokenTokenizer(
        rank_file(), {"pattern": PATTERN, "special_tokens": {"<|begin|>": 300, "<|endoftext|>": 301}}
    ),
}
make = cache(lambda name: MAKERS[name]())
every_kind = pytest.mark.parametrize("name", MAKERS)
EVERY_TEXT = ("bytes", "byte_bpe", "tiktoken")
every_text = pytest.mark.parametrize("name", EVERY_TEXT)


def streamed(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    stream = tokenizer.stream()
    return [*map(stream.push, ids), stream.finish()]


@examples(60)
@given(numbers=st.lists(st.integers(0, 2**16), max_size=30))
def test_a_stream_gives_what_decode_gives(numbers: list[int]) -> None:
    for name in MAKERS:
        tokenizer = make(name)
        ids = [number % (tokenizer.vocab_size + 4) - 1 for number in numbers]  # some are not ids of it
        assert "".join(streamed(tokenizer, ids)) == tokenizer.decode(ids), name


def test_a_stream_that_follows_a_text_goes_on_from_it_with_the_space_between_them() -> None:
    for name in MAKERS.keys() - {"marian"}:  # which decodes what it translates to, not what it encodes
        tokenizer = make(name)
        ids = tokenizer.encode(TEXT)
        for place in range(1, len(ids)):
            before, stream = tokenizer.decode(ids[:place]), tokenizer.stream()
            if not before.endswith("\ufffd"):  # within a character
                stream.follow(ids[:place])
                rest = "".join([*map(stream.push, ids[place : place + 9]), stream.finish()])
                assert before + rest == tokenizer.decode(ids[: place + 9]), (name, place)


BYTES = st.sampled_from(b"\xf0\x9f\x98\x80\xe6\x97\xa5\xed\xa0\xc0\xc3\xa9\xf4\x90a ")


@examples(60)
@given(numbers=st.lists(BYTES.map(lambda byte: 3 + byte) | st.integers(0, 2**16)))
def test_a_stream_of_byte_pieces_gives_what_decode_gives(numbers: list[int]) -> None:
    for name in ("sentencepiece bpe", "sentencepiece unigram"):
        tokenizer = make(name)
        ids = [number % tokenizer.vocab_size for number in numbers]
        assert "".join(streamed(tokenizer, ids)) == tokenizer.decode(ids), name


@every_text
def test_a_stream_holds_back_incomplete_characters(name: str) -> None:
    tokenizer = make(name)
    pieces = streamed(tokenizer, tokenizer.encode("é😀早\u200d"))
    assert "".join(pieces) == "é😀早\u200d"
    assert not any("\ufffd" in piece for piece in pieces)


@examples(40)
@given(text=st.text())
def test_every_text_comes_back(text: str) -> None:
    for name in EVERY_TEXT:
        assert make(name).decode(make(name).encode(text)) == text, name


@every_text
def test_awkward_texts_come_back(name: str) -> None:
    for text in AWKWARD:
        assert make(name).decode(make(name).encode(text)) == text


@every_kind
def test_its_own_text_is_encoded_within_the_vocabulary(name: str) -> None:
    tokenizer = make(name)
    ids = tokenizer.encode(TEXT)
    assert min(ids) >= 0 and max(ids) < tokenizer.vocab_size
    assert tokenizer.encode(TEXT) == ids
    assert tokenizer.encode("") == [] and tokenizer.decode([]) == ""


@pytest.mark.parametrize("name", ["characters", "bpe"])
def test_a_text_of_known_characters_comes_back(name: str) -> None:
    tokenizer = make(name)
    assert tokenizer.decode(tokenizer.encode(TEXT)) == TEXT


@every_kind
def test_saved_and_opened_it_is_the_same(name: str, tmp_path: Path) -> None:
    tokenizer = make(name)
    tokenizer.save(tmp_path)
    opened = open_tokenizer(tmp_path)
    assert type(opened) is type(tokenizer)
    assert opened.encode(TEXT) == tokenizer.encode(TEXT)
    assert (opened.kind, opened.vocab_size) == (tokenizer.kind, tokenizer.vocab_size)
    assert (opened.bos, opened.eos, opened.adds_bos) == (tokenizer.bos, tokenizer.eos, tokenizer.adds_bos)
    ids = list(range(min(tokenizer.vocab_size, 300)))
    assert opened.decode(ids) == tokenizer.decode(ids)
    assert [opened.token(id) for id in ids] == [tokenizer.token(id) for id in ids]


@every_kind
def test_overridden_ends_are_saved(name: str, tmp_path: Path) -> None:
    tokenizer = MAKERS[name]()
    special = [*tokenizer.special_tokens.values()] or [3, 4]
    tokenizer.bos, tokenizer.eos, tokenizer.adds_bos = special[0], (special[-1],), True
    tokenizer.save(tmp_path)
    opened = open_tokenizer(tmp_path)
    assert (opened.bos, opened.eos, opened.adds_bos) == (special[0], (special[-1],), True)


@every_kind
def test_tokens_are_shown_on_one_line(name: str) -> None:
    tokenizer = make(name)
    shown = [tokenizer.token(id) for id in range(tokenizer.vocab_size)]
    assert all(text.isprintable() and " " not in text for text in shown)


@every_kind
def test_half_a_surrogate_pair_is_refused(name: str) -> None:
    from archetype.errors import DataError

    with pytest.raises(DataError, match=r"D800|not among"):
        make(name).encode("a\ud800")


@pytest.mark.parametrize("name", ["sentencepiece bpe", "tiktoken", "byte_bpe"])
def test_special_tokens_are_left_out_of_the_text(name: str) -> None:
    tokenizer = make(name)
    special = [*tokenizer.special_tokens.values()]
    assert special
    assert tokenizer.decode([special[0], *tokenizer.encode("hello"), special[-1]]) == "hello"
