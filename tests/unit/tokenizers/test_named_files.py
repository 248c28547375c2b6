"""Files that are named themselves, without a folder: which are taken, and what others are told."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest

import archetype
from archetype.errors import DataError
from archetype.tokenizers import open_tokenizer, train_tokenizer
from tests.helpers.cases import case
from tests.helpers.options import call

TEXT = "the cat sat on the mat, and then the other cat sat there\n" * 5
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "##s", "a"]
BYTES = [{"rank": n, "token_bytes": base64.b64encode(bytes([n])).decode()} for n in range(256)]
CONFIG = {"pattern": r"\s|\S+", "default_vocab_size": 256 + 30, "default_num_special_tokens": 30, "version": "v3"}
TEKKEN: dict[str, Any] = {"config": CONFIG, "vocab": BYTES}
NAMED = [{"rank": n, "token_str": name} for n, name in enumerate(("<unk>", "<s>", "</s>"))]


def test_every_file_that_a_kind_writes_can_be_named(tmp_path: Path) -> None:
    for kind in ("bytes", "characters", "words", "bpe", "byte_bpe"):
        (folder := tmp_path / kind).mkdir()
        trained = train_tokenizer(kind, TEXT, 300 if "bpe" in kind else None)
        trained.save(folder)
        file = next(file for file in folder.iterdir() if file.name != "tokenizer_config.json")
        assert open_tokenizer(file).encode(TEXT) == trained.encode(TEXT)


def test_a_file_serves_wherever_a_tokenizer_is_named(tmp_path: Path) -> None:
    (tmp_path / "trained").mkdir()
    train_tokenizer("byte_bpe", TEXT, 300).save(tmp_path / "trained")
    (tmp_path / "trained" / "tokenizer.json").rename(tmp_path / "mine.json")
    (tmp_path / "text.txt").write_text(TEXT)
    ids = archetype.tokenizer(tmp_path / "mine.json").encode("the cat")
    done = call(["tokenizer", "encode", "mine.json", "the cat"], tmp_path)
    assert done.status == 0 and done.output.splitlines()[0] == " ".join(map(str, ids))
    done = call(["tokenizer", "show", "mine.json", "--json"], tmp_path)
    assert json.loads(done.output)["vocab_size"] == archetype.tokenizer(tmp_path / "mine.json").vocab_size
    words = "train text.txt --spec llama-tiny --set spec.vocab_size=300 --tokenizer mine.json --plan --json"
    assert (done := call(words.split(), tmp_path)).status == 0, done.error


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("ranks.tiktoken", "not ranks", 'line 1: is not a "base64 rank" pair'),
        ("notes.md", "# notes", "does not have the name of a tokenizer file; use one of "),
        ("config.json", '{"model_type": "llama"}', "model: is missing"),
        ("a.json", "[]", "is not a JSON object"),
        ("a.json", "{", "not JSON"),
        ("a.model", "text", "is not a SentencePiece model"),
        ("text.txt", TEXT, "line 2: repeats"),
        ("text.txt", "one line", "has no line that begins with ##, as a WordPiece vocabulary has"),
        ("vocab.txt", "the\n##s", "lacks the token [UNK]; is it a BERT vocabulary?"),
        ("vocab.txt", "a\xff", "is not UTF-8 at byte 1"),
        ("tekken.json", json.dumps({"model": {}}), "config: is missing"),
        ("tekken.json", json.dumps(TEKKEN | {"config": CONFIG | {"pattern": ""}}), "config: is not a mapping with"),
        ("tekken.json", json.dumps(TEKKEN | {"vocab": BYTES[1:]}), "vocab: does not have the ranks from 0 to 255"),
        ("tekken.json", json.dumps(TEKKEN | {"vocab": [{"rank": 0, "token_bytes": "?"}, *BYTES[1:]]}), "not base64"),
        ("tekken.json", json.dumps(TEKKEN | {"vocab": [*BYTES[:-1], BYTES[0]]}), "does not have the ranks"),
        ("tekken.json", json.dumps(TEKKEN | {"config": CONFIG | {"version": "v11"}}), "special_tokens: is missing"),
        ("rwkv_vocab.txt", "1 'a' 1\n2 'bc' 1", "line 2: is not an id, a token and its length"),
        ("rwkv_vocab.txt", "1 'a' 1\n1 'b' 1", "line 2: is not an id, a token and its length"),
        ("rwkv_vocab.txt", "1 __import__('os') 1", "line 1: is not an id, a token and its length"),
        ("rwkv_vocab.txt", "1 'a' 1", "has no token for the byte 0x00"),
        ("tekken.json", json.dumps(TEKKEN | {"special_tokens": [NAMED[0] | {"rank": 99}]}), "does not have the ranks"),
    ],
)  # fmt: skip
def test_wrong_files_are_one_line(name: str, text: str, expected: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(text.encode("latin-1"))
    with pytest.raises(DataError) as caught:
        open_tokenizer(tmp_path / name)
    assert str(caught.value).startswith(str(tmp_path / name)) and "\n" not in str(caught.value)
    assert expected in str(caught.value) and caught.value.remedy


def test_bert_is_lower_case_where_its_vocabulary_or_its_configuration_says_so(tmp_path: Path) -> None:
    file = tmp_path / "vocab.txt"
    file.write_text("\n".join(WORDS) + "\n")
    assert open_tokenizer(file).encode("The cats") == [5, 6, 7]
    assert open_tokenizer(tmp_path).add_special_tokens([5]) == [2, 5, 3]
    file.write_text("\n".join([*WORDS, "A"]))  # a piece that lower case would never meet
    assert open_tokenizer(file).encode("The cats A") == [1, 6, 7, 9]
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": true}')
    assert open_tokenizer(file).encode("The cats A") == [5, 6, 7, 8]
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "EsmTokenizer"}')
    with pytest.raises(DataError, match="is for EsmTokenizer, which pre-tokenizes differently from BERT; save"):
        open_tokenizer(file)


def test_tekken_has_its_special_tokens_first(tmp_path: Path) -> None:
    for special, names in ((None, ("<unk>", "[SYSTEM_PROMPT]", "<SPECIAL_29>")), (NAMED, ("<unk>", "<SPECIAL_3>"))):
        with case(special):
            data = TEKKEN if special is None else TEKKEN | {"special_tokens": special}
            (tmp_path / "tekken.json").write_text(json.dumps(data))
            tokenizer = open_tokenizer(tmp_path / "tekken.json")
            assert tokenizer.encode("ab") == [30 + ord("a"), 30 + ord("b")] and tokenizer.vocab_size == 286
            assert tokenizer.special_tokens.keys() >= set(names) and len(tokenizer.special_tokens) == 30
            (folder := tmp_path / str(special is None)).mkdir()
            tokenizer.save(folder)
            again = open_tokenizer(folder)
            assert (again.encode(TEXT), again.bos, again.eos) == (tokenizer.encode(TEXT), 1, (2,))
