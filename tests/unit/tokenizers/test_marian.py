"""Marian's folders: what is read, and what damaged files come to. Its ids are compared in tests/parity."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from archetype.data.pairs import tokenized
from archetype.errors import DataError
from archetype.tokenizers import open_tokenizer
from archetype.tokenizers.marian import MarianTokenizer
from tests.unit.tokenizers.test_every_kind import marian

WRONG: list[Any] = [None, -1, 1.5, True, "x", [], {}, 2**31, 10**12]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    marian().save(tmp_path)
    return tmp_path


def refusal(folder: Path) -> str:
    with pytest.raises(DataError) as caught:
        open_tokenizer(folder)
    text = str(caught.value)
    assert str(folder) in text and "\n" not in text and caught.value.cause and caught.value.remedy
    return text


def change(folder: Path, name: str, **values: Any) -> None:
    file = folder / name
    file.write_text(json.dumps((json.loads(file.read_text()) if file.exists() else {}) | values))


def test_it_comes_before_a_tokenizer_json(folder: Path) -> None:
    (folder / "tokenizer.json").write_bytes(b"not read")
    assert open_tokenizer(folder).kind == "marian"


@pytest.mark.parametrize("name", ["target.spm", "vocab.json"])
def test_a_missing_file_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    assert f"{folder / name}: there is no such file" in refusal(folder)


@pytest.mark.parametrize("name", ["source.spm", "target.spm"])
@pytest.mark.parametrize("data", [b"", b"\x0a\xff\xff junk", b"PK\3\4" + b"\0" * 99])
def test_a_damaged_model_is_named(folder: Path, name: str, data: bytes) -> None:
    (folder / name).write_bytes(data)
    assert f"{folder / name}: is not a SentencePiece model" in refusal(folder)


@pytest.mark.parametrize(
    "text, expected",
    [
        ("", "is not JSON"),
        ("null", "is not a JSON object"),
        ("[" * 10**5, "is not JSON"),
        ("{}", "does not map every piece to an id"),
        ('{"</s>": 0, "a": 1}', "has no '<unk>' for unknown pieces"),
        ('{"</s>": 0, "<unk>": 1, "\\ud800": 2}', "contains a piece with an unpaired surrogate"),
    ],
)
def test_a_damaged_table_is_named(folder: Path, text: str, expected: str) -> None:
    (folder / "vocab.json").write_text(text)
    assert f"{folder / 'vocab.json'}" in refusal(folder) and expected in refusal(folder)


@pytest.mark.parametrize("value", WRONG, ids=repr)
def test_an_id_that_is_none_is_named(folder: Path, value: Any) -> None:
    change(folder, "vocab.json", more=value)
    assert "vocab.json: does not map every piece to an id" in refusal(folder)


@pytest.mark.parametrize("value", [7, True, "no such token", {"content": 7}, ["</s>"]], ids=repr)
@pytest.mark.parametrize("key", ["eos_token", "unk_token", "bos_token"])
def test_a_special_token_that_is_none_is_named(folder: Path, key: str, value: Any) -> None:
    change(folder, "tokenizer_config.json", **{key: value})
    assert key in refusal(folder) or (key == "unk_token" and "has no 'no such token'" in refusal(folder))


@pytest.mark.parametrize("value", WRONG, ids=repr)
def test_lists_that_are_none_change_nothing(folder: Path, value: Any) -> None:
    before = open_tokenizer(folder)
    change(folder, "tokenizer_config.json", extra_special_tokens=value, additional_special_tokens=[value])
    assert open_tokenizer(folder).special_tokens == before.special_tokens


def test_two_tables_that_end_texts_differently_are_refused(folder: Path) -> None:
    change(folder, "tokenizer_config.json", separate_vocabs=True)
    assert "target_vocab.json: there is no such file" in refusal(folder)
    (folder / "target_vocab.json").write_text('{"</s>": 1, "<unk>": 0}')
    assert "target_vocab.json: has a different id for '</s>' than vocab.json" in refusal(folder)


def test_characters_that_spell_a_special_token_are_unknown_text(folder: Path) -> None:
    """SentencePiece gives characters that it does not know in one piece."""
    processor = marian()._source
    assert "</>" in processor.encode("</>", out_type=str)
    change(folder, "tokenizer_config.json", pad_token="</>")
    change(folder, "vocab.json", **{"</>": 500})
    tokenizer = open_tokenizer(folder)
    assert tokenizer.special_tokens["</>"] == 500
    assert 500 not in tokenizer.encode("a</>b")


def test_pairs_are_cut_each_by_its_own_side() -> None:
    tokenizer = marian()
    source, target = "the warm stone", "der warme Stein"
    pairs = tokenized([source], [target], tokenizer, 100)
    assert pairs.sources[0].tolist() == [*tokenizer.encode(source), 0]
    assert pairs.targets[0].tolist() == [0, *tokenizer.encode_target(target), 0]
    assert tokenizer.encode(target) != tokenizer.encode_target(target)


def test_a_code_that_no_table_has_is_one_unknown_token() -> None:
    tokenizer = marian()
    assert tokenizer.encode(">>zzz<< the") == [1, *tokenizer.encode(" the")]
    assert isinstance(tokenizer, MarianTokenizer) and np.array(tokenizer.encode("")).size == 0
