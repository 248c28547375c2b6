"""Tokenizer folders with one key changed: the same tokens and prompts in transformers and here, and in an export.

Where they are not the same, the key or the class is named, or the folder is refused.
"""

import copy
import json
import random
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from archetype.errors import ArchetypeError, Notice
from archetype.tokenizers import Tokenizer, hugging_face, open_tokenizer
from archetype.tokenizers.fast import write_fast
from tests.helpers.cases import case
from tests.unit.tokenizers.test_every_key import changed, changes, made

TEXTS = (
    "",
    "the cat",
    "The  cat , SLEEPS!",
    " <s>the <new>cat</s> 猫x Élan",
    "a<new> <new>\n b",
    "<pad> <unk> <other>x",
)
FILE, CONFIG, MAP, ADDED = "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"
Files = dict[str, dict[str, Any]]
CLASSES = ("PreTrainedTokenizerFast", "GPT2Tokenizer", "BertTokenizer", "T5Tokenizer", "LlamaTokenizer")
TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token", "cls_token", "sep_token", "mask_token")
FLAGS = ("lstrip", "rstrip", "single_word", "normalized", "special")
KEYS = {
    "add_prefix_space": [True, False], "do_lower_case": [True, False], "add_bos_token": [True, False],
    "add_eos_token": [True, False], "clean_up_tokenization_spaces": [True, False], "legacy": [True, False],
    "additional_special_tokens": [["<new>"], ["<other>"], ["cat"]], "strip_accents": [True, False],
    "extra_special_tokens": [["<other>"], {"x_token": "<other>"}], "model_max_length": [3], "padding_side": ["left"],
    "split_special_tokens": [True], "keep_accents": [True, False], "tokenize_chinese_chars": [False],
}  # fmt: skip


def folder_of(kind: str) -> Files:
    """The files of a small tokenizer, as a published folder has them."""
    definition = made(kind)
    plain = {"tokenizer_class": CLASSES[0], "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    return {FILE: definition, CONFIG: plain}


def variants(files: Files) -> Iterator[tuple[str, Files]]:
    """Folders that differ from this one in one place, and what was changed."""
    for path, value in changes(files[FILE]):
        if path == ("model", "dropout") and value:  # by which transformers cuts texts by chance
            continue
        yield f"{FILE}: {path} = {value!r}", files | {FILE: changed(files[FILE], path, value)}
    config = files[CONFIG]
    tokens = [None, "<new>", "<other>", "cat", {"__type": "AddedToken", "content": "<new>", "lstrip": True}]
    for key in TOKENS:
        for token in tokens:
            yield f"{CONFIG}: {key} = {token!r}", files | {CONFIG: config | {key: token}}
            yield f"{MAP}: {key} = {token!r}", files | {MAP: {key: token}}
    for key, values in KEYS.items():
        for value in values:
            yield f"{CONFIG}: {key} = {value!r}", files | {CONFIG: config | {key: value}}
    for cls in (*CLASSES, "NoSuchTokenizer"):
        yield f"{CONFIG}: class {cls}", files | {CONFIG: config | {"tokenizer_class": cls}}
    listed = {
        str(token["id"]): {key: value for key, value in token.items() if key != "id"}
        for token in files[FILE]["added_tokens"]
    }
    for id, flag in ((id, flag) for id in listed for flag in FLAGS):
        decoder = copy.deepcopy(listed)
        decoder[id][flag] = not decoder[id][flag]
        yield f"{CONFIG}: {id} {flag}", files | {CONFIG: config | {"added_tokens_decoder": decoder}}
    for id in listed:
        decoder = {other: token for other, token in listed.items() if other != id}
        yield f"{CONFIG}: without {id}", files | {CONFIG: config | {"added_tokens_decoder": decoder}}
    for name, id in (("<other>", 5000), ("<new>", 5000), ("cat", 5000), ("<s>", 2)):
        yield f"{ADDED}: {name} {id}", files | {ADDED: {name: id}}
        token = {str(id): {"content": name, "special": True}}
        yield f"{CONFIG}: with {name} {id}", files | {CONFIG: config | {"added_tokens_decoder": listed | token}}


def written(files: Files, folder: Path) -> Path:
    folder.mkdir()
    for name, data in files.items():
        (folder / name).write_text(json.dumps(data))
    return folder


def ours(folder: Path) -> tuple[Tokenizer, list[Any], str]:
    """The tokenizer, what it makes of texts, and the warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tokenizer = open_tokenizer(folder)
    plain = [tokenizer.encode(text) for text in TEXTS]
    rows = [tokenizer.add_special_tokens(ids) for ids in plain]
    said = " ".join(str(one.message) for one in caught if issubclass(one.category, Notice))
    return tokenizer, [plain, rows, tokenizer.bos, next(iter(tokenizer.eos), None)], said


def theirs(folder: Path) -> list[Any] | None:
    """The same by transformers; None where it refuses the folder, also in a panic."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        plain = [tokenizer(text, add_special_tokens=False).input_ids for text in TEXTS]
        rows = [tokenizer(text).input_ids for text in TEXTS]
    except KeyboardInterrupt:
        raise
    except BaseException:
        return None
    return [plain, rows, tokenizer.bos_token_id, tokenizer.eos_token_id]


def check(files: Files, folder: Path, tmp_path: Path) -> str:
    """Compare one folder, and its export: what became of it."""
    there = theirs(written(files, folder))
    try:
        tokenizer, here, said = ours(folder)
    except ArchetypeError as error:
        assert "\n" not in str(error)
        return "refused"
    if not said and there is not None:
        assert here[:2] == there[:2]
        assert there[2] in (None, here[2]) and there[3] in (None, here[3])
    (out := tmp_path / "out").mkdir()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)
        tokenizer.save(out)
        try:
            write_fast(tokenizer, out)
        except ArchetypeError as error:
            assert "\n" not in str(error)
            return "export refused"
    assert ours(out)[1] == here
    assert theirs(out) == there
    return "named" if said else "same"


@pytest.mark.parametrize("count", [15, pytest.param(200, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["BPE", "WordPiece", "Unigram"])
def test_one_key_changed(kind: str, count: int, tmp_path: Path) -> None:
    rng, seen = random.Random(count), Counter[str]()
    cases = [*variants(folder_of(kind))]
    for number, (name, files) in enumerate(rng.sample(cases, min(count, len(cases)))):
        (own := tmp_path / str(number)).mkdir()
        with case(name):
            seen[check(files, own / "source", own)] += 1
    assert seen["same"] >= count // 4, seen


def test_a_difference_that_nothing_names_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: without the name of the class the folder fails."""
    files = folder_of("BPE")
    files[CONFIG] |= {"tokenizer_class": "BertTokenizer"}
    assert check(files, tmp_path / "named", tmp_path) == "named"
    monkeypatch.setattr(hugging_face, "name_rebuilt", lambda *_: None)
    with pytest.raises(AssertionError):
        check(files, tmp_path / "silent", tmp_path)
