"""Streams of every decoder that a tokenizer.json can name."""

import json
from functools import cache

import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders

from archetype.tokenizers.hugging_face import HuggingFaceTokenizer
from tests.helpers.examples import examples

PIECES = ["<unk>", "<s>", "▁", "▁the", "▁▁", "a", " ", " b", "##ing", "end</w>", ".", "'s", "n't", "Ġx", "Ã", "©", "é"]
PIECES += ["<0xE6>", "<0x97>", "<0xA5>", "<0xFF>", "<0x41>", "<0x+1>", "<0xG0>", "日", "aa", "  ", "<|pad|>"]
LLAMA = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
DECODERS = {
    "none": None,
    "byte level": decoders.ByteLevel(),
    "llama": decoders.Sequence(LLAMA),
    "llama, stripped more": decoders.Sequence([*LLAMA[:3], decoders.Strip(" ", 3, 0)]),
    "nested": decoders.Sequence([decoders.Sequence(LLAMA[:2]), decoders.Fuse()]),
    "byte fallback": decoders.ByteFallback(),
    "each stripped": decoders.Strip("a", 1, 0),
    "metaspace": decoders.Metaspace(),
    "metaspace, never prepended": decoders.Metaspace(prepend_scheme="never"),
    "wordpiece": decoders.WordPiece(),
    "wordpiece without cleanup": decoders.WordPiece(cleanup=False),
    "end of word": decoders.BPEDecoder(),
    "fuse": decoders.Fuse(),
    "ctc": decoders.CTC(),
    "replace after fuse": decoders.Sequence([decoders.Fuse(), decoders.Replace("aa", "b")]),
    "byte level, stripped": decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)]),
}


@cache
def tokenizer(name: str) -> HuggingFaceTokenizer:
    decoder = DECODERS[name]
    description = None if decoder is None else json.loads(decoder.__getstate__())
    model = {"type": "WordLevel", "vocab": {piece: id for id, piece in enumerate(PIECES)}, "unk_token": "<unk>"}
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    added = [{"id": PIECES.index(name), "content": name, **special} for name in ("<s>", "<|pad|>")]
    added[1]["special"] = False
    definition = {"version": "1.0", "added_tokens": added, "model": model, "decoder": description}
    return HuggingFaceTokenizer(json.dumps(definition).encode())


@cache
def backend(name: str) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_str(json.dumps(tokenizer(name).definition))


@examples(80)
@given(ids=st.lists(st.integers(-1, len(PIECES) + 1), max_size=12))
def test_a_stream_gives_what_the_library_decodes(ids: list[int]) -> None:
    for name in DECODERS:
        stream = tokenizer(name).stream()
        streamed = "".join(map(stream.push, ids)) + stream.finish()
        assert streamed == backend(name).decode([id for id in ids if id >= 0]), name


def test_only_decoders_that_need_the_end_wait_for_it() -> None:
    waiting = set()
    for name in DECODERS:
        stream = tokenizer(name).stream()
        if not any(stream.push(PIECES.index(piece)) for piece in ("a", "▁the", "é", "a")):
            waiting.add(name)
    assert waiting == {"ctc", "replace after fuse"}


def test_words_appear_at_once() -> None:
    llama = tokenizer("llama")
    stream = llama.stream()
    assert [stream.push(PIECES.index(piece)) for piece in ("▁the", "a", "▁the")] == ["the", "a", " the"]
