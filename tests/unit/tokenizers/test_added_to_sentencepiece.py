"""Tokens that a folder adds to a SentencePiece model's own."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers.tokenization_utils_sentencepiece import SentencePieceBackend

from archetype.convert.gguf.llama_cpp import check_ids
from archetype.convert.gguf.vocabulary import vocabulary
from archetype.errors import DataError, Notice
from archetype.tokenizers import open_tokenizer
from archetype.tokenizers.added import read_added
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


def test_the_vocabulary_is_searched_for_special_tokens_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search asks for each of 262,144 pieces in Gemma's vocabulary, which takes longer than a text."""
    tokenizer = open_tokenizer(folder)
    assert isinstance(tokenizer, SentencePieceTokenizer)
    before = tokenizer.encode_with_special_tokens("the cat<|im_end|>")
    monkeypatch.setattr(tokenizer.processor, "is_control", None)
    assert tokenizer.encode_with_special_tokens("the cat<|im_end|>") == before


def test_an_id_that_no_token_has_has_no_text(folder: Path) -> None:
    alone = SentencePieceTokenizer(MODEL)
    assert alone.token(SIZE - 1) and [alone.token(id) for id in (-1, SIZE, SIZE + 1)] == ["", "", ""]
    wider = open_tokenizer(folder)
    assert [wider.token(id) for id in (-1, SIZE, SIZE + 1, SIZE + 2)] == ["", "<|im_end|>", "<|im_start|>", ""]


def test_a_tokenizer_json_beside_them_is_what_counts(folder: Path) -> None:
    (folder / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "added_tokens": [], "model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"},
    }))  # fmt: skip
    (folder / "tokenizer_config.json").unlink()
    with pytest.warns(Notice, match="the vocabulary lacks tokens, which get the next ids"):
        assert open_tokenizer(folder).kind == "words"


def test_llama_cpp_finds_them_in_a_vocabulary_and_one_without_them_is_refused(folder: Path) -> None:
    tokenizer = open_tokenizer(folder)
    whole = vocabulary(tokenizer, SIZE + 2)
    assert (whole.tokens[SIZE:], whole.types[SIZE:]) == (["<|im_end|>", "<|im_start|>"], [CONTROL] * 2)
    check_ids(tokenizer, whole)
    with pytest.raises(DataError, match=r"llama.cpp encodes .*<\|im_.* differently"):
        check_ids(tokenizer, replace(whole, tokens=[*whole.tokens[:SIZE], "[PAD1]", "[PAD2]"]))


def entry(content: str, **flags: bool) -> dict[str, Any]:
    plain = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
    return {"content": content} | plain | flags


# Of added_tokens_decoder: the model's own among others, ids with a gap, and each flag changed alone.
DECODER = {
    "0": entry("<unk>"), "1": entry("<s>"), "2": entry("</s>"), str(SIZE + 3): entry("<|im_start|>"),
    str(SIZE): entry("<|im_end|>"), str(SIZE + 1): entry("[INST]", special=False),
    str(SIZE + 5): entry("<mask>", lstrip=True), str(SIZE + 6): entry("<next>", rstrip=True, special=False),
    "300": entry("[other]"), "301": entry("[more]", special=False, normalized=True),
}  # fmt: skip
TEXTS = [
    "the cat", "<|im_start|>the cat<|im_end|>", " [INST] the [INST]cat ", "a  <mask>  b<mask>", "a <next>  b<next>c",
    "<s>the<unk></s>", "[other][more] the [more]", "<|im_start|><|im_start|>", "[INST", "",
]  # fmt: skip


@pytest.fixture
def described(folder: Path) -> Path:
    (folder / "tokenizer_config.json").write_text(json.dumps({
        "added_tokens_decoder": DECODER, "eos_token": "<|im_end|>", "unk_token": "<unk>", "bos_token": "<s>",
    }))  # fmt: skip
    return folder


def test_those_of_the_configuration_are_read_as_transformers_reads_them(described: Path, tmp_path: Path) -> None:
    theirs = SentencePieceBackend.from_pretrained(described, vocab_file=str(described / "tokenizer.model"))
    ours = open_tokenizer(described)
    assert (ours.vocab_size, ours.eos, ours.bos) == (SIZE + 7, (SIZE,), 1)
    for text in TEXTS:
        ids = ours.encode_with_special_tokens(text)
        assert ids == theirs.encode(text, add_special_tokens=False), text
    with pytest.raises(DataError, match=r"cannot be written as a tokenizer\.json"):
        write_fast(ours, tmp_path)  # where a piece of the model cannot have another name
    (tmp_path / "fast").mkdir()
    behind = {id: token for id, token in DECODER.items() if not 3 <= int(id) < SIZE}
    write_fast(
        SentencePieceTokenizer(MODEL, {}, read_added(described, {"added_tokens_decoder": behind})), tmp_path / "fast"
    )
    assert ours.encode("a[INST]") == [*ours.encode("a"), SIZE + 1] and SIZE not in ours.encode("a<|im_end|>")
    assert (
        ours.decode(ours.encode_with_special_tokens("the[INST] cat<|im_end|>")) == "the[INST]  cat"
    )  # two spaces, of which one is its text's
    (tmp_path / "saved").mkdir()
    ours.save(tmp_path / "saved")
    again = open_tokenizer(tmp_path / "saved")
    assert [again.encode_with_special_tokens(text) for text in TEXTS] == [
        ours.encode_with_special_tokens(text) for text in TEXTS
    ]


@pytest.mark.parametrize("flag", ["lstrip", "rstrip", "special"])
def test_each_flag_counts(flag: str, described: Path) -> None:
    """The control: with a flag turned round, something else is read or shown."""
    config = json.loads((described / "tokenizer_config.json").read_text())
    before = open_tokenizer(described)
    for token in config["added_tokens_decoder"].values():
        token[flag] = not token[flag]
    (described / "tokenizer_config.json").write_text(json.dumps(config))
    after = open_tokenizer(described)
    assert [before.encode(text) for text in TEXTS] != [after.encode(text) for text in TEXTS] or flag == "lstrip"
    assert [before.encode_with_special_tokens(text) for text in TEXTS] != [
        after.encode_with_special_tokens(text) for text in TEXTS
    ] or flag == "special"


@pytest.mark.parametrize(
    ("value", "cause"),
    [
        ([], "added_tokens_decoder: does not map"),
        ({"a": entry("x")}, "added_tokens_decoder: a: does not map"),
        ({"9": "x"}, "added_tokens_decoder: 9: does not map"),
        ({"9": {"content": 1}}, "added_tokens_decoder: 9: does not map"),
        ({"9": entry("x") | {"lstrip": "yes"}}, "added_tokens_decoder: 9: does not map"),
        ({"8": entry("x"), "9": entry("x")}, "added_tokens_decoder: does not map"),
        ({"9": entry("x") | {"of_tomorrow": 1}}, "added_tokens_decoder: 9: of_tomorrow: is unknown"),
    ],
)
def test_a_configuration_that_is_wrong_is_named(value: Any, cause: str, folder: Path) -> None:
    (folder / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": value}))
    with pytest.raises(DataError) as caught:
        open_tokenizer(folder)
    assert cause in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("contents", [{"a": "b"}, {"a": 400, "b": 400}, {"a": -1}])
def test_what_does_not_map_tokens_to_ids_is_refused(folder: Path, contents: dict[str, object]) -> None:
    (folder / "added_tokens.json").write_text(json.dumps(contents))
    with pytest.raises(DataError, match=r"added_tokens.json: does not map each token to a unique id"):
        open_tokenizer(folder)
