"""spiece.model in a folder without tokenizer.json: the ids and prompts of the class that transformers reads it by."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from archetype.errors import DataError
from archetype.tokenizers import Tokenizer, open_tokenizer
from archetype.tokenizers.awkward_texts import AWKWARD_TEXTS
from archetype.tokenizers.fast import write_fast
from tests.helpers.cases import case
from tests.helpers.sentencepieces import TEXT, trained

pytestmark = pytest.mark.filterwarnings("ignore::archetype.errors.Notice")  # of keys that are named
TEXTS = (
    *AWKWARD_TEXTS,
    *TEXT.splitlines(),
    "a <extra_id_0> b<extra_id_99> c",
    "a</s> b <pad> [MASK] c <sep><cls>",
    "a <mask> b",
)
PIECES: dict[str, dict[str, Any]] = {
    "T5Tokenizer": {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1},
    "AlbertTokenizer": {"pad_id": 0, "unk_id": 1, "bos_id": -1, "eos_id": -1,
                        "control_symbols": ["[CLS]", "[SEP]", "[MASK]"]},
    "XLNetTokenizer": {"unk_id": 0, "bos_id": 1, "eos_id": 2, "control_symbols": ["<cls>", "<sep>", "<pad>", "<mask>"]},
    "XLMRobertaTokenizer": {"unk_id": 0, "bos_id": 1, "eos_id": 2},
    "CamembertTokenizer": {"unk_id": 0, "bos_id": 1, "eos_id": 2},
}  # fmt: skip
FILES = dict.fromkeys(PIECES, "spiece.model") | dict.fromkeys(
    ("XLMRobertaTokenizer", "CamembertTokenizer"), "sentencepiece.bpe.model"
)
MASK = {"content": "<mask>", "lstrip": True, "rstrip": False, "single_word": False, "normalized": True}
SETTINGS: dict[str, list[dict[str, Any]]] = {
    "T5Tokenizer": [{}, {"pad_token": "<pad>", "extra_ids": 7}],
    "AlbertTokenizer": [{}, {"do_lower_case": False}, {"keep_accents": True}],
    "XLNetTokenizer": [{}, {"do_lower_case": True}],
    "XLMRobertaTokenizer": [{}, {"mask_token": MASK | {"__type": "AddedToken"}}, {"add_prefix_space": False}],
    "CamembertTokenizer": [{}, {"mask_token": MASK | {"__type": "AddedToken"}}, {"add_prefix_space": False}],
}


def agree(folder: Path, tokenizer: Tokenizer) -> None:
    theirs: Any = AutoTokenizer.from_pretrained(folder)
    for text in TEXTS:
        ids = tokenizer.encode(text)
        assert ids == theirs(text, add_special_tokens=False).input_ids, text
        assert tokenizer.add_special_tokens(ids) == theirs(text).input_ids, text
        assert tokenizer.decode(ids) == theirs.decode(ids, skip_special_tokens=True), text
        pair = tokenizer.encode_pair(text, "a b")
        both = theirs(text, "a b", return_token_type_ids=True)
        assert (pair.ids, pair.types) == (both.input_ids, both.token_type_ids), text
    assert theirs.bos_token_id in (None, tokenizer.bos) and theirs.eos_token_id in (None, *tokenizer.eos)


@pytest.mark.parametrize("name", PIECES)
def test_a_class_that_is_known(name: str, tmp_path: Path) -> None:
    """Named by tokenizer_config.json, or by the model's type; an export has the same tokens."""
    types = {"T5Tokenizer": "t5", "AlbertTokenizer": "albert", "XLNetTokenizer": "xlnet",
             "XLMRobertaTokenizer": "xlm-roberta", "CamembertTokenizer": "camembert"}  # fmt: skip
    for number, (settings, rule) in enumerate(
        (one, rule) for one in SETTINGS[name] for rule in ("nmt_nfkc", "identity")
    ):
        (folder := tmp_path / str(number)).mkdir()
        model = trained({"model_type": "unigram", "normalization_rule_name": rule} | PIECES[name])
        (folder / FILES[name]).write_bytes(model)
        config = {"tokenizer_class": name} if number % 2 else {}
        (folder / "tokenizer_config.json").write_text(json.dumps(settings | config))
        (folder / "config.json").write_text(json.dumps({"model_type": types[name]}))
        with case(name, settings, rule):
            tokenizer = open_tokenizer(folder)
            assert tokenizer.kind == "unigram"
            agree(folder, tokenizer)
            (out := tmp_path / f"out{number}").mkdir()
            tokenizer.save(out)
            write_fast(tokenizer, out, has_class=True)
            (out / "config.json").write_text(json.dumps({"model_type": types[name]}))
            agree(out, open_tokenizer(out))


def test_alberts_own_file(shared: Path, tmp_path: Path) -> None:
    source = shared / "published" / "tokenizers" / "albert-base-v2"
    for name in ("spiece.model", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((source / name).read_bytes())
    agree(tmp_path, open_tokenizer(tmp_path))


def test_other_files_are_named(tmp_path: Path) -> None:
    for number, (file, config, cause) in enumerate((
        ("spiece.model", {}, "a class that no file of the folder names"),
        ("spiece.model", {"tokenizer_class": "PegasusTokenizer"}, "by the class PegasusTokenizer;"),
        ("spiece.model", {"tokenizer_class": "XLNetTokenizer"}, "does not fit the class that the folder names"),
        ("sentencepiece.bpe.model", {"tokenizer_class": "MBartTokenizer"}, "by the class MBartTokenizer;"),
        ("sentencepiece.bpe.model", {"tokenizer_class": "BarthezTokenizer"}, "by the class BarthezTokenizer;"),
        ("spm.model", {}, "the model's own class"),
    )):  # fmt: skip
        (folder := tmp_path / str(number)).mkdir()
        (folder / file).write_bytes(trained({"model_type": "unigram"} | PIECES["T5Tokenizer"]))
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
        with case(file, config):
            with pytest.raises(DataError) as caught:
                open_tokenizer(folder)
            assert str(folder / file) in str(caught.value) and cause in str(caught.value)
            assert "\n" not in str(caught.value)
