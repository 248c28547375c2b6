"""Tokens that a folder adds to a SentencePiece model's own."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from archetype.convert.gguf.llama_cpp import check_ids
from archetype.convert.gguf.vocabulary import vocabulary
from archetype.errors import DataError
from archetype.tokenizers import open_tokenizer
from archetype.tokenizers.fast import write_fast
from archetype.tokenizers.sentencepiece import CONTROL, SentencePieceTokenizer
from tests.helpers.sentencepieces import trained

PLAIN = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False}
MODEL = trained({"model_type": "bpe", "byte_fallback": True} | PLAIN)
SIZE = SentencePieceTokenizer(MODEL).vocab_size


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "given"
    folder.mkdir()
    (folder / "tokenizer.model").write_bytes(MODEL)
    (folder / "added_tokens.json").write_text(json.dumps({"<|im_start|>": SIZE + 1, "<|im_end|>": SIZE}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>"}))
    return folder


def test_they_are_special_tokens(folder: Path, tmp_path: Path) -> None:
    tokenizer = open_tokenizer(folder)
    assert (tokenizer.vocab_size, tokenizer.eos) == (SIZE + 2, (SIZE,))
    ids = tokenizer.encode_with_special_tokens("<|im_start|>the cat<|im_end|>")
    assert ids == [SIZE + 1, *tokenizer.encode("the cat"), SIZE]
    assert tokenizer.decode(ids) == "the cat" and tokenizer.token(SIZE + 1) == "<|im_start|>"
    tokenizer.save(tmp_path)
    again = open_tokenizer(tmp_path)
    assert (again.special_tokens, again.eos) == (tokenizer.special_tokens, tokenizer.eos)
    write_fast(tokenizer, tmp_path)  # which compares both on texts with their names
    assert open_tokenizer(tmp_path).encode("a<|im_end|>") == tokenizer.encode_with_special_tokens("a<|im_end|>")


def test_a_tokenizer_json_beside_them_is_what_counts(folder: Path) -> None:
    (folder / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "added_tokens": [], "model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"},
    }))  # fmt: skip
    (folder / "tokenizer_config.json").unlink()
    assert open_tokenizer(folder).kind == "words"


def test_llama_cpp_finds_them_in_a_vocabulary_and_one_without_them_is_refused(folder: Path) -> None:
    tokenizer = open_tokenizer(folder)
    whole = vocabulary(tokenizer, SIZE + 2)
    assert (whole.tokens[SIZE:], whole.types[SIZE:]) == (["<|im_end|>", "<|im_start|>"], [CONTROL] * 2)
    check_ids(tokenizer, whole)
    with pytest.raises(DataError, match=r"llama.cpp gives .*<\|im_.* other ids than the tokenizer does"):
        check_ids(tokenizer, replace(whole, tokens=[*whole.tokens[:SIZE], "[PAD1]", "[PAD2]"]))


@pytest.mark.parametrize("contents", [{"a": "b"}, {"a": 400, "b": 400}, {"a": -1}])
def test_what_does_not_map_tokens_to_ids_is_refused(folder: Path, contents: dict[str, object]) -> None:
    (folder / "added_tokens.json").write_text(json.dumps(contents))
    with pytest.raises(DataError, match=r"added_tokens.json: does not map every token to an id of its own"):
        open_tokenizer(folder)
