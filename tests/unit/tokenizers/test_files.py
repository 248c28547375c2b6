"""Which file of a folder is opened, what its configuration says, and what damaged files come to."""

import base64
import json
import os
import random
import re
import shutil
import sys
import warnings
from itertools import product
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from archetype.distribution import install_command
from archetype.errors import DataError, NotObeyed
from archetype.tokenizers import open_tokenizer, train_tokenizer
from archetype.tokenizers.hugging_face import HuggingFaceTokenizer, byte_of_character
from tests.helpers import forked
from tests.helpers.cases import case
from tests.helpers.sentencepieces import trained

ROOT = Path(__file__).parents[3]
TEXT = "the cat sat on the mat, and then the other cat sat there\n" * 5
RANKS = b"".join(base64.b64encode(bytes((byte,))) + b" %d\n" % byte for byte in range(256))


def refusal(folder: Path) -> str:
    with pytest.raises(DataError) as caught:
        open_tokenizer(folder)
    text = str(caught.value)
    assert str(folder) in text and "\n" not in text and caught.value.cause and caught.value.remedy
    return text


def byte_bpe(folder: Path) -> HuggingFaceTokenizer:
    tokenizer = train_tokenizer("byte_bpe", TEXT, 300)
    assert isinstance(tokenizer, HuggingFaceTokenizer)
    tokenizer.save(folder)
    return tokenizer


def config(folder: Path, name: str = "tokenizer_config.json", **values: object) -> None:
    (folder / name).write_text(json.dumps(values))


def test_a_folder_without_a_tokenizer_says_what_was_looked_for(tmp_path: Path) -> None:
    text = refusal(tmp_path)
    for name in ("tokenizer.json", "tokenizer.model", "*.tiktoken", "vocab.json", "archetype_tokenizer.json"):
        assert name in text
    assert "there is no such folder" in refusal(tmp_path / "absent")


def test_a_run_directorys_tokenizer_is_found(tmp_path: Path) -> None:
    (tmp_path / "tokenizer").mkdir()
    train_tokenizer("bytes", "", None).save(tmp_path / "tokenizer")
    assert open_tokenizer(tmp_path).kind == "bytes"


def test_our_own_file_comes_before_tokenizer_json_and_that_before_the_others(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(b"not read")
    byte_bpe(tmp_path)
    assert open_tokenizer(tmp_path).kind == "byte_bpe"
    train_tokenizer("bytes", "", None).save(tmp_path)
    assert open_tokenizer(tmp_path).kind == "bytes"


def test_a_sentencepiece_model_of_a_class_is_no_folder_without_a_tokenizer(tmp_path: Path) -> None:
    """Its class puts tokens around texts that the file does not say; named itself, the file is read as it is."""
    (tmp_path / "spiece.model").write_bytes(trained({"model_type": "unigram"}))
    assert "spiece.model" in refusal(tmp_path) and open_tokenizer(tmp_path / "spiece.model").kind == "sentencepiece"
    byte_bpe(tmp_path)
    assert open_tokenizer(tmp_path).kind == "byte_bpe"


@pytest.mark.parametrize("token", ["<|endoftext|>", {"content": "<|endoftext|>", "lstrip": False}])
def test_the_configuration_names_bos_and_eos(tmp_path: Path, token: object) -> None:
    byte_bpe(tmp_path)
    config(tmp_path, bos_token=token, eos_token=None)
    tokenizer = open_tokenizer(tmp_path)
    assert (tokenizer.bos, tokenizer.eos, tokenizer.adds_bos) == (0, (), False)


def test_the_files_own_step_decides_whether_prompts_start_with_bos(tmp_path: Path) -> None:
    """Whatever add_bos_token says, as in transformers 5.23, and that is named."""
    byte_bpe(tmp_path)
    for frame, said in product((False, True), (None, False, True)):
        definition = json.loads((tmp_path / "tokenizer.json").read_text())
        single = [{"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
        known = {"<|endoftext|>": {"id": "<|endoftext|>", "ids": [0], "tokens": ["<|endoftext|>"]}}
        pair = [*single, {"Sequence": {"id": "B", "type_id": 0}}]
        step = {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": known}
        (tmp_path / "tokenizer.json").write_text(json.dumps(definition | {"post_processor": step if frame else None}))
        config(tmp_path, bos_token="<|endoftext|>", **({} if said is None else {"add_bos_token": said}))
        with case(frame, said), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            ids = open_tokenizer(tmp_path).encode_prompt("the")
            assert ids == AutoTokenizer.from_pretrained(tmp_path)("the").input_ids and (ids[0] == 0) is frame
            named = [one for one in caught if issubclass(one.category, NotObeyed)]
            assert [("add_bos_token" in str(one.message)) for one in named] == [True] * (said not in (None, frame))


def test_the_special_tokens_map_is_read_where_the_configuration_is_silent(tmp_path: Path) -> None:
    byte_bpe(tmp_path)
    config(tmp_path, add_bos_token=False)
    config(tmp_path, "special_tokens_map.json", bos_token="<|endoftext|>")
    assert open_tokenizer(tmp_path).bos == 0


def test_the_rest_of_the_configuration_survives_saving(tmp_path: Path) -> None:
    byte_bpe(tmp_path)
    config(tmp_path, eos_token="the", chat_template="{{ messages }}")
    (tmp_path / "copy").mkdir()
    open_tokenizer(tmp_path).save(tmp_path / "copy")
    saved = json.loads((tmp_path / "copy" / "tokenizer_config.json").read_text())
    assert (saved["chat_template"], saved["eos_token"]) == ("{{ messages }}", "the")
    assert (tmp_path / "copy" / "tokenizer.json").read_bytes() == (tmp_path / "tokenizer.json").read_bytes()


@pytest.mark.parametrize(
    "values, expected",
    [
        ({"eos_token": 7}, "eos_token: 7 is not a token"),
        ({"add_bos_token": "yes"}, "add_bos_token: 'yes' is not true or false"),
        ({"tokenizer_class": [1]}, "tokenizer_class: [1] is not the name of a class"),
    ],
)
def test_a_configuration_that_does_not_fit_is_refused(tmp_path: Path, values: dict[str, object], expected: str) -> None:
    byte_bpe(tmp_path)
    config(tmp_path, **values)
    assert f"tokenizer_config.json: {expected}" in refusal(tmp_path)


def test_warnings_are_not_discarded_with_what_the_library_prints(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    byte_bpe(tmp_path)
    definition = json.loads((tmp_path / "tokenizer.json").read_text())
    definition["decoder"]["more"] = 1
    (tmp_path / "tokenizer.json").write_text(json.dumps(definition))
    config(tmp_path, eos_token="absent")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = lambda message, *_, **__: os.write(2, f"{message}\n".encode())
        open_tokenizer(tmp_path)
    shown = capfd.readouterr().err
    assert "decoder.more: not read by the library" in shown and "the vocabulary lacks tokens" in shown


def gpt2(folder: Path) -> HuggingFaceTokenizer:
    """The two files of GPT-2's time, and the tokenizer that they say."""
    tokenizer = train_tokenizer("byte_bpe", TEXT, 300)
    assert isinstance(tokenizer, HuggingFaceTokenizer)
    (folder / "vocab.json").write_text(json.dumps(tokenizer.definition["model"]["vocab"]))
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(map(" ".join, tokenizer.merges)) + "\n")
    return tokenizer


def test_vocab_and_merges(tmp_path: Path) -> None:
    theirs, ours = gpt2(tmp_path), open_tokenizer(tmp_path)
    text = "the cat's 3 mats é😀\n\n  x<|endoftext|>"
    assert ours.encode(text) == theirs.encode(text)
    assert (ours.kind, ours.vocab_size, ours.eos, ours.special_tokens) == ("byte_bpe", 277, (0,), {"<|endoftext|>": 0})


def test_vocab_and_merges_of_another_class_are_refused(tmp_path: Path) -> None:
    gpt2(tmp_path)
    config(tmp_path, tokenizer_class="Qwen2Tokenizer")
    assert "is for Qwen2Tokenizer" in refusal(tmp_path)


def test_vocab_without_merges_is_refused(tmp_path: Path) -> None:
    gpt2(tmp_path)
    (tmp_path / "merges.txt").unlink()
    assert "merges.txt: there is no such file" in refusal(tmp_path)


def test_vocab_and_merges_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    gpt2(tmp_path)
    (tmp_path / "merges.txt").write_text("zzz yyy\n")
    assert "merges.txt: does not fit vocab.json" in refusal(tmp_path)
    (tmp_path / "merges.txt").write_text("alone\n")
    assert "merges.txt: line 1: is not a pair" in refusal(tmp_path)
    (tmp_path / "vocab.json").write_text('{"a": 0}')
    assert "byte-level" in refusal(tmp_path)


def test_the_byte_alphabet_is_the_librarys() -> None:
    from tokenizers.pre_tokenizers import ByteLevel

    assert set(byte_of_character()) == set(ByteLevel.alphabet())
    assert sorted(byte_of_character().values()) == list(range(256))


@pytest.mark.parametrize(
    "name, data, expected",
    [
        ("tokenizer.json", b"", "is not JSON"),
        ("tokenizer.json", b"\xff", "is not UTF-8 at byte 0"),
        ("tokenizer.json", b"[]", "is not a JSON object"),
        ("tokenizer.json", b"[" * 10**6, "is not JSON"),
        ("tokenizer.json", b"{}", "model: is missing"),
        ("tokenizer.json", b'{"model": {"type": "BPE"}}', "cannot be read"),
        ("tokenizer.model", b"", "is not a SentencePiece model"),
        ("tokenizer.model", b"\x0a\xff\xff junk", "is not a SentencePiece model"),
        ("tokenizer.model", RANKS[:900], "single bytes have no token|is not"),
        ("ranks.tiktoken", b"", "single bytes have no token"),
        ("ranks.tiktoken", RANKS, "no published tokenizer has 256 ranks; add a tiktoken.json next to it"),
        ("ranks.tiktoken", RANKS + b"!!! 256\n", "line 257: is not a"),
        ("ranks.tiktoken", RANKS + b"YWI= -1\n", "line 257: is not a"),
        ("ranks.tiktoken", RANKS + b"YWI=\n", "line 257: is not a"),
        ("ranks.tiktoken", RANKS + b"YQ== 256\n", "line 257: repeats a token"),
        ("ranks.tiktoken", RANKS + b"YWI= 3\n", "the same rank"),
        ("archetype_tokenizer.json", b"{}", "kind: None is not a kind of tokenizer"),
        ("archetype_tokenizer.json", b'{"kind": "characters"}', "characters: is missing"),
        ("archetype_tokenizer.json", b'{"kind": "characters", "characters": "aa"}', "occurs twice"),
        ("archetype_tokenizer.json", b'{"kind": "words", "words": [1]}', "words: is not a list of words"),
        ("archetype_tokenizer.json", b'{"kind": "bytes", "bos": -1}', "bos: -1 is not a token id"),
        ("archetype_tokenizer.json", b'{"kind": "bytes", "eos": 3}', "eos: 3 is not a list"),
        ("archetype_tokenizer.json", b'{"kind": "bytes", "adds_bos": 1}', "adds_bos: 1 is not true or false"),
    ],
)
def test_a_damaged_file_is_refused_in_one_line(tmp_path: Path, name: str, data: bytes, expected: str) -> None:
    (tmp_path / name).write_bytes(data)
    text = refusal(tmp_path)
    assert re.search(expected, text) and name in text


@pytest.mark.parametrize(
    "companion, expected",
    [
        ({}, "pattern: is missing"),
        ({"pattern": "("}, "the pattern cannot be used"),
        ({"pattern": "a", "special_tokens": {"x": "y"}}, "special_tokens: is not a mapping"),
        ({"pattern": "a", "special_tokens": {"x": 5}}, "special_tokens: 'x' has the id of a rank"),
        ({"pattern": "a", "special_tokens": {"x": 500, "y": 500}}, "special_tokens: two tokens have the same id"),
        ({"pattern": "a", "eos": ["x"]}, "bos, eos: are not names"),
    ],
)
def test_a_companion_that_does_not_fit_is_refused(tmp_path: Path, companion: dict[str, object], expected: str) -> None:
    (tmp_path / "ranks.tiktoken").write_bytes(RANKS)
    config(tmp_path, "tiktoken.json", **companion)
    assert f"tiktoken.json: {expected}" in refusal(tmp_path)


def test_a_prefix_that_would_abort_the_library_is_refused(tmp_path: Path) -> None:
    definition = byte_bpe(tmp_path).definition
    definition["model"]["continuing_subword_prefix"] = "##"
    (tmp_path / "tokenizer.json").write_text(json.dumps(definition))
    assert "model.merges: a merge's second part lacks the prefix '##'" in refusal(tmp_path)


@pytest.mark.parametrize("package, name", [("sentencepiece", "tokenizer.model"), ("tiktoken", "ranks.tiktoken")])
def test_a_missing_package_is_named(tmp_path: Path, package: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / name).write_bytes(RANKS if package == "tiktoken" else b"\x0a\x01")
    config(tmp_path, "tiktoken.json", pattern="a")
    monkeypatch.setitem(sys.modules, package, None)
    assert install_command(package) in refusal(tmp_path)


def test_flipped_bytes_are_refused_or_read_but_never_more(tmp_path: Path, shared: Path) -> None:
    """In a process of its own, since a library that crashes would take the tests along."""
    byte_bpe(tmp_path)
    (tmp_path / "sentencepiece").mkdir()
    shutil.copy(shared / "stories260K" / "tokenizer.model", tmp_path / "sentencepiece")
    done = forked.run(["python", "-m", "tests.unit.tokenizers.test_files", str(tmp_path)])
    assert done.returncode == 0, done.stderr  # a library may warn there, in ways that differ between machines
    assert b"Traceback" not in done.stderr
    assert int(done.stdout) > 20


def _flip_bytes(folder: Path) -> int:
    """How many of the damaged files were refused."""
    refused = 0
    chance = random.Random(0)
    for file in (folder / "tokenizer.json", folder / "sentencepiece" / "tokenizer.model"):
        whole = file.read_bytes()
        for _ in range(60):
            data = bytearray(whole)
            for _ in range(chance.randint(1, 4)):
                data[chance.randrange(len(data))] = chance.randrange(256)
            file.write_bytes(data[: chance.choice([len(data), chance.randrange(len(data))])])
            try:
                tokenizer = open_tokenizer(file.parent)
                tokenizer.decode(tokenizer.encode(TEXT))
            except DataError as error:
                assert "\n" not in str(error)
                refused += 1
    return refused


if __name__ == "__main__":
    print(_flip_bytes(Path(sys.argv[1])))
