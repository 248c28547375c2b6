"""What llama.cpp makes of a vocabulary; and that an export with other ids is refused."""

import json
from typing import Any

import pytest

from archetype.convert.gguf.llama_cpp import LlamaCppTokenizer, check_ids
from archetype.convert.gguf.vocabulary import Vocabulary, vocabulary
from archetype.errors import DataError
from archetype.tokenizers import train_tokenizer
from archetype.tokenizers.hugging_face import HuggingFaceTokenizer
from archetype.tokenizers.sentencepiece import SentencePieceTokenizer
from tests.helpers.cases import case
from tests.helpers.sentencepieces import OPTIONS, TEXT, trained
from tests.parity.test_llama_cpp_tokenizers import MAKERS, wordpiece


def known(options: dict[str, Any]) -> bool:
    """Whether llama.cpp reads a model of SentencePiece as its library does: all by the rules of its source."""
    default = {"normalization_rule_name": "nmt_nfkc", "add_dummy_prefix": True, "remove_extra_whitespaces": True}
    settings = default | {"byte_fallback": False} | options
    prefix, joined = settings["add_dummy_prefix"], settings["remove_extra_whitespaces"]
    if "unk_piece" in settings:  # whose name is found in a text
        return False
    if settings["model_type"] == "unigram":  # with a space before each word that it joins, and never with bytes
        return prefix == joined and not settings["byte_fallback"]
    return settings["normalization_rule_name"] == "identity" and not joined and settings["byte_fallback"]


def test_of_spm_trains_options_those_that_llama_cpp_reads_otherwise_are_refused() -> None:
    for options in OPTIONS:
        with case(*options.items()):
            tokenizer = SentencePieceTokenizer(trained(options))
            if known(options):
                check_ids(tokenizer, vocabulary(tokenizer, tokenizer.vocab_size + 3))
                continue
            with pytest.raises(DataError) as caught:
                check_ids(tokenizer, vocabulary(tokenizer, tokenizer.vocab_size + 3))
            assert "\n" not in str(caught.value)


def test_other_kinds_are_read_as_they_are() -> None:
    makers = {name: make for name, (make, _) in MAKERS.items()}
    makers |= {"bytes": lambda: train_tokenizer("bytes", [], None)}
    makers |= {"byte_bpe": lambda: train_tokenizer("byte_bpe", TEXT, 300)}
    for name, make in makers.items():
        with case(name):
            tokenizer = make()
            check_ids(tokenizer, vocabulary(tokenizer, tokenizer.vocab_size + 3))


def test_a_letter_that_llama_cpp_writes_otherwise_in_lower_case_is_named() -> None:
    tokenizer = wordpiece(strip_accents=False)
    with pytest.raises(DataError, match=r"llama.cpp encodes .*İstanbul.* differently"):
        check_ids(tokenizer, vocabulary(tokenizer, 300))


def test_a_byte_without_a_piece_ends_llama_cpp() -> None:
    tokenizer = SentencePieceTokenizer(trained(OPTIONS[1] | {"remove_extra_whitespaces": False}))
    with pytest.raises(DataError, match=r"llama.cpp aborts on .*, since the vocabulary has no piece '<0x"):
        check_ids(tokenizer, vocabulary(tokenizer, 300))


def test_names_of_special_tokens_are_found_and_a_space_goes_behind_them() -> None:
    tokens = ["<unk>", "<s>", "▁", "a", "▁a"]
    read = LlamaCppTokenizer(Vocabulary("llama", "default", tokens, [2, 3, 1, 1, 1], [0.0, 0.0, -3.0, -2.0, -1.0]))
    assert read.encode("a<s>aa") == [4, 1, 4, 3]
    assert read.encode("") == []


def test_words_that_are_tokens_are_not_merged_where_the_pre_tokenizer_says_so() -> None:
    tokens = ["a", "b", "c", "ab", "abc"]
    for pre, expected in {"llama-bpe": [4], "qwen2": [3, 2], "gpt-2": [3, 2]}.items():
        read = LlamaCppTokenizer(Vocabulary("gpt2", pre, tokens, [1] * 5, merges=["a b"]))
        assert read.encode("abc") == expected
    with pytest.raises(DataError, match="pre-tokenizer 'unheard' is not supported"):
        LlamaCppTokenizer(Vocabulary("gpt2", "unheard", tokens, [1] * 5, merges=["a b"]))


def test_a_file_that_leaves_out_what_has_a_default_has_a_form() -> None:
    tokenizer = train_tokenizer("byte_bpe", TEXT, 300)
    assert isinstance(tokenizer, HuggingFaceTokenizer)
    definition = tokenizer.definition | {
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    }
    older = HuggingFaceTokenizer(json.dumps(definition).encode())
    assert vocabulary(older, older.vocab_size).pre == "gpt-2"
