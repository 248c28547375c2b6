"""Vocabularies for GGUF: pieces, types and keys, and which tokenizers have none."""

import json
from typing import Any

import pytest

from archetype.convert.gguf.llama_cpp import LlamaCppTokenizer
from archetype.convert.gguf.vocabulary import BYTE, CONTROL, NEVER, NORMAL, UNKNOWN, UNUSED, vocabulary
from archetype.errors import DataError
from archetype.tokenizers import Tokenizer
from archetype.tokenizers.hugging_face import HuggingFaceTokenizer
from archetype.tokenizers.sentencepiece import SentencePieceTokenizer
from tests.parity.test_llama_cpp_tokenizers import pieces, unigram, whole_texts, wordpiece
from tests.unit.tokenizers.test_every_kind import marian


def test_wordpiece_marks_what_begins_a_word() -> None:
    tokenizer = wordpiece(lowercase=False)
    vocab = vocabulary(tokenizer, 200)
    assert (vocab.model, len(vocab.tokens), len(vocab.types)) == ("bert", 200, 200)
    ids = tokenizer.encode("The cats")
    assert "".join(vocab.tokens[id] for id in ids) == "▁The▁cats"
    assert vocab.tokens[2:5] == ["[CLS]", "[SEP]", "[MASK]"] and vocab.types[2:5] == [CONTROL] * 3
    assert vocab.types[ids[0]] == NORMAL and vocab.types[199] == UNUSED
    assert vocab.special == {"padding": 0, "unknown": 1, "bos": 2, "seperator": 3, "mask": 4}
    assert vocab.flags == {"normalizer.lowercase": False, "normalizer.strip_accents": False}


@pytest.mark.parametrize("make", [lambda: unigram(joined=False), lambda: SentencePieceTokenizer(pieces("unigram"))])
def test_unigram_keeps_its_scores_and_rules(make: Any) -> None:
    tokenizer: Tokenizer = make()
    vocab = vocabulary(tokenizer, 200)
    assert vocab.model == "t5" and vocab.scores is not None and vocab.charsmap
    assert vocab.types[:3] == [CONTROL, CONTROL, UNKNOWN] and vocab.types[199] == UNUSED
    assert vocab.scores[199] == NEVER and -20 < vocab.scores[tokenizer.encode("the")[0]] < 0
    assert vocab.special == {"unknown": 2}
    assert vocab.flags == {"add_space_prefix": True, "remove_extra_whitespaces": True}


def test_bpe_of_whole_texts_keeps_its_merges_and_marks_its_bytes() -> None:
    tokenizer = whole_texts()
    vocab = vocabulary(tokenizer, 400)
    assert (vocab.model, vocab.pre, vocab.special) == ("gemma4", None, {"bos": 2, "unknown": 3})
    assert vocab.types[2:6] == [CONTROL] * 2 + [BYTE] * 2 and vocab.tokens[4] == "<0x00>"
    assert vocab.merges is not None and vocab.merges[-1] == "\n\n\n\n\n\n\n \n"
    ours = LlamaCppTokenizer(vocab)
    for text in ("The small cat", " café\n\n\n猫", "", "\n", "\n" * 8):
        assert ours.encode(text) == tokenizer.encode(text)


def changed(tokenizer: HuggingFaceTokenizer, *keys: str, value: Any) -> HuggingFaceTokenizer:
    definition = json.loads(json.dumps(tokenizer.definition))
    inner = definition
    for key in keys[:-1]:
        inner = inner[key]
    inner[keys[-1]] = value
    return HuggingFaceTokenizer(json.dumps(definition).encode())


PREFIXED = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never", "split": True}
REFUSED: dict[str, tuple[Any, str]] = {
    "wordpiece by spaces": (
        lambda: changed(wordpiece(), "pre_tokenizer", value={"type": "WhitespaceSplit"}), "no such pre-tokenizer",
    ),
    "wordpiece without a normalizer": (lambda: changed(wordpiece(), "normalizer", value=None), "of its normalizer"),
    "wordpiece with a look of its own": (
        lambda: changed(wordpiece(), "model", "continuing_subword_prefix", value="@@"), "supports WordPiece with ##",
    ),
    "wordpiece without a frame": (lambda: changed(wordpiece(), "post_processor", value=None), "token on each side"),
    "unigram without rules": (lambda: changed(unigram(True), "normalizer", value=None), "of its normalizer"),
    "unigram of one word": (lambda: changed(unigram(True), "pre_tokenizer", value=None), "no such pre-tokenizer"),
    "unigram without a space": (
        lambda: changed(unigram(True), "pre_tokenizer", value=PREFIXED), "no such pre-tokenizer",
    ),
    "unigram with bytes": (lambda: changed(unigram(True), "model", "byte_fallback", value=True), "supports Unigram"),
    "sentencepiece of words": (lambda: SentencePieceTokenizer(pieces("word")), "BPE and Unigram"),
    "whole texts without bytes": (
        lambda: changed(whole_texts(), "model", "byte_fallback", value=False), "a piece for every byte",
    ),
    "whole texts that are cut": (
        lambda: changed(whole_texts(), "pre_tokenizer", value={"type": "Metaspace", "replacement": "▁"}), "BPE of char",
    ),
    "whole texts without a beginning": (
        lambda: changed(whole_texts(), "post_processor", value=None), "always adds a bos token",
    ),
    "marian": (marian, "GGUF does not support a tokenizer of kind marian"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_llama_cpp_would_cut_otherwise_is_refused(case: str) -> None:
    make, said = REFUSED[case]
    with pytest.raises(DataError) as caught:
        vocabulary(make(), 200)
    assert said in str(caught.value) and "\n" not in str(caught.value)
