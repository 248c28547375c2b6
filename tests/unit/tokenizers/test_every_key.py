"""Each key of a tokenizer's files changed alone: obeyed as its library obeys it, named in a warning, or refused.

What a key does is asked of the libraries themselves: where ids or texts change there, they change alike here, or the
key is named.
"""

import copy
import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer

from archetype.errors import ArchetypeError, Notice
from archetype.tokenizers import Tokenizer, open_tokenizer
from archetype.tokenizers.hugging_face import LONG
from archetype.tokenizers.unobeyed import SILENT

TEXT = "The small cat, which sleeps; the Élan vital of 猫 cats <new> 12 34!\n" * 3
SPECIAL = ["<pad>", "<unk>", "<s>", "</s>"]
TEXTS = ["the cat", "The  cat , SLEEPS!", " <s>the <new>cat</s> 猫x Élan", "a<new> <new>\n b", TEXT]
Reading = list[Any]
WHOLE = [pytest.param(kind, 1, marks=pytest.mark.slow) for kind in ("BPE", "WordPiece", "Unigram")]
SHARES = [("BPE", 9), ("WordPiece", 9), ("Unigram", 9), *WHOLE]  # of all changes each ninth, or every one in the soak


def made(kind: str) -> dict[str, Any]:
    """A tokenizer.json with every sort of step and added tokens."""
    backend: Any = tokenizers.Tokenizer({"BPE": models.BPE(unk_token="<unk>"), "WordPiece": models.WordPiece(
        unk_token="<unk>"), "Unigram": models.Unigram()}[kind])  # fmt: skip
    if kind == "BPE":
        backend.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Replace("``", '"')])
        backend.pre_tokenizer = pre_tokenizers.Sequence([
            pre_tokenizers.Split(tokenizers.Regex(r"\d"), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False),
        ])  # fmt: skip
        backend.decoder = decoders.ByteLevel()
        trainer: Any = trainers.BpeTrainer(vocab_size=330, special_tokens=SPECIAL, show_progress=False,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet())  # fmt: skip
    elif kind == "WordPiece":
        backend.normalizer, backend.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
        backend.decoder = decoders.WordPiece()
        trainer = trainers.WordPieceTrainer(vocab_size=120, special_tokens=SPECIAL, show_progress=False)
    else:
        backend.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Strip(left=False)])
        backend.pre_tokenizer, backend.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
        trainer = trainers.UnigramTrainer(vocab_size=90, special_tokens=SPECIAL, unk_token="<unk>", show_progress=False)
    backend.train_from_iterator([TEXT], trainer)
    backend.add_tokens([tokenizers.AddedToken("<new>", lstrip=False, normalized=False)])
    backend.post_processor = processors.TemplateProcessing("<s> $A </s>", special_tokens=[("<s>", 2), ("</s>", 3)])
    definition: dict[str, Any] = json.loads(backend.to_str())
    return definition


def others(value: Any) -> Iterator[Any]:
    """Other values of the same sort."""
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield from (0, value + 1)
    elif isinstance(value, str):
        yield from ("", "other")
    elif value is None:
        yield from (True, 0.5, "</s>")


def changes(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Every place of a file with another value, and a key of tomorrow within every mapping."""
    if isinstance(value, dict) and path[-1:] != ("vocab",):
        yield (*path, "of_tomorrow"), 1
        for key, inner in value.items():
            yield from changes(inner, (*path, key))
    elif isinstance(value, list) and path[-1:] not in (("vocab",), ("merges",)):
        for number, inner in enumerate(value[:8]):
            yield from changes(inner, (*path, number))
    elif not isinstance(value, list | dict):
        yield from ((path, other) for other in others(value))


def changed(file: dict[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    result = copy.deepcopy(file)
    inner: Any = result
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return result


def read_here(folder: Path) -> tuple[Reading, str]:
    """What a folder's tokenizer makes of texts and ids, in one piece and word by word, and the warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tokenizer: Tokenizer = open_tokenizer(folder)
    ids = [tokenizer.encode(text) for text in TEXTS]
    count = LONG // len(TEXT) + 1
    long = tokenizer.encode(TEXT * count) if len(TEXT * count) >= LONG else []
    texts = [tokenizer.decode(row) for row in ids]
    said = " ".join(str(one.message) for one in caught if issubclass(one.category, Notice))
    return [ids, long, tokenizer.add_special_tokens([]), texts], said


def read_there(definition: dict[str, Any]) -> Reading:
    """The same by the library of a tokenizer.json."""
    backend = tokenizers.Tokenizer.from_str(json.dumps(definition))
    backend.no_truncation()
    backend.no_padding()
    ids = [backend.encode(text, add_special_tokens=False).ids for text in TEXTS]
    long = backend.encode(TEXT * (LONG // len(TEXT) + 1), add_special_tokens=False).ids
    plain, whole = (backend.encode("a", add_special_tokens=around).ids for around in (False, True))
    at = next((at for at in range(len(whole)) if whole[at : at + len(plain)] == plain), len(whole))
    return [ids, long, whole[:at] + whole[at + len(plain) :], [backend.decode(row) for row in ids]]


@pytest.mark.parametrize(("kind", "step"), SHARES)
def test_every_key_of_a_tokenizer_json(kind: str, step: int, tmp_path: Path) -> None:
    base = made(kind)
    before, seen = read_there(base), {"agrees": 0, "named": 0, "refused": 0, "changes": 0}
    for path, value in [*changes(base)][::step]:
        definition = changed(base, path, value)
        (tmp_path / "tokenizer.json").write_text(json.dumps(definition))
        try:
            ours, said = read_here(tmp_path)
        except ArchetypeError as error:
            assert "\n" not in str(error)
            seen["refused"] += 1
            continue
        if path[-1] == "of_tomorrow" and "special_tokens" not in path:
            assert "of_tomorrow" in said, path
            seen["named"] += 1
        if path[-1] == "dropout" and value:
            assert "model.dropout (random merges) is not applied" in said and ours == before
            continue
        theirs = read_there(definition)
        assert ours == theirs, (path, value)
        seen["agrees"] += 1
        seen["changes"] += theirs != before
    assert seen["agrees"] > 5 and (step > 1 or min(seen.values()) > 3), seen


VALUES: dict[str, list[Any]] = {
    "add_prefix_space": [True, False], "do_lower_case": [True, False], "strip_accents": [True, False],
    "tokenize_chinese_chars": [False], "clean_up_tokenization_spaces": [True, False], "add_eos_token": [True],
    "add_bos_token": [True], "split_special_tokens": [True], "legacy": [True, False],
    "additional_special_tokens": [["<other>"], ["<new>"], ["<s>"]], "unk_token": ["<unk>", "<new>"],
    "extra_special_tokens": [["<other>"], {"x_token": "<other>"}], "mask_token": ["<new>"], "pad_token": ["<other>"],
    "of_tomorrow": [True], "sp_model_kwargs": [{"alpha": 1}],
    "added_tokens_decoder": [{"0": {"content": "<pad>", "special": True}}],
}  # fmt: skip
HARMLESS: dict[str, Any] = {
    "padding_side": "left", "truncation_side": "left", "model_max_length": 3, "max_length": 3, "stride": 1,
    "model_input_names": ["input_ids"], "chat_template": "x", "errors": "ignore", "extra_ids": 3, "vocab_size": 5,
    "keep_accents": True, "remove_space": False, "do_basic_tokenize": False, "never_split": ["cat"],
    "use_default_system_prompt": True, "spaces_between_special_tokens": True, "verbose": False,
    "truncation_strategy": "longest_first", "pad_to_multiple_of": 8, "pad_token_type_id": 1, "name_or_path": "x",
    "img_token": "<other>", "special_tokens_map_file": "x", "processor_class": "x",
}  # fmt: skip


@pytest.mark.parametrize("kind", ["BPE", pytest.param("WordPiece", marks=pytest.mark.slow), "Unigram"])
def test_every_key_of_a_tokenizer_config_json(kind: str, tmp_path: Path) -> None:
    """By the class that takes a tokenizer.json as it is."""
    (tmp_path / "tokenizer.json").write_text(json.dumps(made(kind)))
    plain = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}

    def theirs(config: dict[str, Any]) -> Reading:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tokenizer: Any = AutoTokenizer.from_pretrained(tmp_path)
            ids = [tokenizer(text, add_special_tokens=False).input_ids for text in TEXTS]
            whole = [tokenizer(text).input_ids for text in TEXTS]
            return [ids, whole, [tokenizer.decode(row, skip_special_tokens=True) for row in ids]]

    before = theirs(plain)
    ours_before, said = read_here(tmp_path)
    assert said == ""
    assert {*HARMLESS} - SILENT == {"img_token"}
    assert theirs(plain | HARMLESS) == before
    again, said = read_here(tmp_path)  # img_token names a token that the vocabulary lacks
    assert again == ours_before and "the vocabulary lacks tokens" in said and "'<other>'" in said
    for key, others in VALUES.items():
        for value in others:
            try:
                after = theirs(plain | {key: value})
            except Exception:  # whatever a class raises on a value that it was not written for
                after = before
            try:
                ours, said = read_here(tmp_path)
            except ArchetypeError as error:
                assert key in str(error)
                continue
            is_alike = [ours[0], ours[3]] == [after[0], after[2]] and (after[1] == before[1] or ours != ours_before)
            assert f"'{key}'" in said or is_alike, (key, value)
            assert ours == ours_before or after != before, (key, value)
    assert "'of_tomorrow'" in name_of_tomorrow(tmp_path, plain)


def name_of_tomorrow(folder: Path, config: dict[str, Any]) -> str:
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"of_tomorrow": 1}))
    return read_here(folder)[1]
