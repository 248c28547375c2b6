"""Tokenizer folders with one key changed: prompts, special tokens and texts of the source, of its export, and here."""

import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import AutoTokenizer

from archetype.errors import DataError, Notice
from archetype.tokenizers import open_tokenizer
from archetype.tokenizers.fast import write_fast
from tests.helpers.cases import case
from tests.helpers.examples import every

TEXTS = (
    "don 't do n't I 'm here , ok ?", "a", "", "the <s> cat</s> <new>x <two> <pad>", " <new> the", "HELLO the",
)  # fmt: skip
WORDS = ["the", "cat", "here", "do", "don", "##n", "n", "t", "'", ",", "?", "i", "m", "a", "ok", "hello", "x", "<", ">"]
SPECIAL = ["<unk>", "<s>", "</s>", "[CLS]", "[SEP]"]
NEW = {"content": "<new>", "lstrip": False, "rstrip": False, "single_word": False, "normalized": False}


def backends() -> Iterator[tuple[str, Tokenizer, int]]:
    """One tokenizer of each model, and the first id that it does not have."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    bpe = Tokenizer(models.BPE(vocab={token: id for id, token in enumerate([*SPECIAL, *letters])}, merges=[]))
    bpe.pre_tokenizer, bpe.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    piece = Tokenizer(models.WordPiece({word: id for id, word in enumerate([*SPECIAL, *WORDS])}, unk_token="<unk>"))
    piece.pre_tokenizer, piece.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece(cleanup=False)
    piece.normalizer = normalizers.BertNormalizer(lowercase=True)
    pieces = [(token, -float(id)) for id, token in enumerate([*SPECIAL, "▁", *sorted({*"".join(TEXTS)} - {" "})])]
    unigram = Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=False))
    unigram.pre_tokenizer, unigram.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    for name, backend in (("bpe", bpe), ("wordpiece", piece), ("unigram", unigram)):
        backend.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in SPECIAL[:3]])
        for frame in ("$A", "<s> $A", "[CLS] $A [SEP]", "$A </s>"):
            backend.post_processor = processors.TemplateProcessing(
                single=frame, pair=f"{frame} $B", special_tokens=[(token, SPECIAL.index(token)) for token in SPECIAL]
            )
            yield f"{name} {frame}", backend, backend.get_vocab_size()


def changes(size: int) -> Iterator[dict[str, Any]]:
    """What tokenizer_config.json says beside bos and eos."""
    yield {}
    for key in ("add_bos_token", "add_eos_token", "clean_up_tokenization_spaces"):
        yield from ({key: value} for value in (True, False))
    yield {"clean_up_tokenization_spaces": True,
           "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output": True}  # fmt: skip
    yield from ({"bos_token": name} for name in (None, "</s>", "<new>", "the", {"__type": "AddedToken", **NEW}))
    yield from ({"eos_token": name} for name in (None, "<s>", "<new>"))
    yield from ({key: "<new>"} for key in ("pad_token", "unk_token", "mask_token", "sep_token", "image_token"))
    yield {"cls_token": "[CLS]", "sep_token": "[SEP]"}
    yield {"extra_special_tokens": ["<new>", "<two>"]}
    yield {"additional_special_tokens": ["<two>", "<new>"]}
    yield {"extra_special_tokens": {"image_token": "<new>"}}
    for flags in ({}, {"special": True}, {"lstrip": True}, {"rstrip": True, "special": True}, {"single_word": True}):
        yield {"added_tokens_decoder": {str(size): NEW | flags}}
    yield {"added_tokens_decoder": {str(size + 5): NEW, str(size + 9): NEW | {"content": "<two>"}}}
    yield {"added_tokens_decoder": {"1": NEW | {"content": "<s>", "special": False}}}


CASES = [
    pytest.param(name, backend.to_str(), change, id=f"{name} {json.dumps(change)[:60]}")
    for name, backend, size in backends()
    for change in changes(size)
]


def read(folder: Path) -> list[Any]:
    """What transformers makes of texts, prompts and names."""
    theirs = AutoTokenizer.from_pretrained(folder)
    ids = [theirs(text).input_ids for text in TEXTS]
    names = [theirs.bos_token, theirs.eos_token, theirs.pad_token, len(theirs), theirs("a", "b").input_ids]
    return [ids, [theirs.decode(row, skip_special_tokens=True) for row in ids], *names]


def test_there_are_so_many() -> None:
    assert len(CASES) >= 300


@pytest.mark.parametrize(("name", "definition", "change"), every(18, CASES))
def test_source_and_export_are_equal(name: str, definition: str, change: dict[str, Any], tmp_path: Path) -> None:
    """And here; what a key asks for that is not done, there as here, is named."""
    source, run, out = (tmp_path / place for place in ("source", "run", "out"))
    for folder in (source, run, out):
        folder.mkdir()
    (source / "tokenizer.json").write_text(definition)
    said = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>", **change}
    (source / "tokenizer_config.json").write_text(json.dumps(said))
    for folder in (source, out):
        (folder / "config.json").write_text('{"model_type": "llama"}')
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)
        tokenizer = open_tokenizer(source)
        tokenizer.save(run)
        again = open_tokenizer(run)
        again.save(out)
        write_fast(again, out, has_class=True)
    expected = read(source)
    assert read(out) == expected
    for one in (tokenizer, again):
        ids = [one.add_special_tokens(one.encode(text)) for text in TEXTS]
        assert ids == expected[0]
        assert [one.decode(row) for row in ids] == expected[1]
        for id, known in ((one.bos, expected[2]), (one.eos[0] if one.eos else None, expected[3])):
            if known is not None:
                assert id == one.special_tokens[known]


@pytest.mark.slow
def test_published_folders_and_their_exports_are_equal(shared: Path, tmp_path: Path) -> None:
    """Those with a tokenizer.json, of any class; where transformers has none for their files, it has none for both."""
    count = 0
    for source in sorted((shared / "published" / "tokenizers").iterdir()):
        if not (source / "tokenizer.json").is_file():
            continue
        folders = [tmp_path / source.name / place for place in ("source", "out")]
        for folder in folders:
            folder.mkdir(parents=True)
            (folder / "config.json").write_text('{"model_type": "llama"}')
        for file in source.iterdir():
            (folders[0] / file.name).write_bytes(file.read_bytes())
        with case(source.name), warnings.catch_warnings():
            warnings.simplefilter("ignore", Notice)
            tokenizer = open_tokenizer(source)
            tokenizer.save(folders[1])
            write_fast(tokenizer, folders[1], has_class=True)
            assert read(folders[1]) == read(folders[0])
        count += 1
    assert count >= 14


def test_a_token_that_the_vocabulary_lacks_is_named_with_its_id(tmp_path: Path) -> None:
    _, backend, size = next(backends())
    backend.save(str(tmp_path / "tokenizer.json"))
    for said in ({"eos_token": "<new>"}, {"added_tokens_decoder": {str(size + 7): NEW}}):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(said))
        with pytest.warns(Notice, match=f"the vocabulary lacks tokens.*'<new>' {size}"):
            open_tokenizer(tmp_path)


def test_a_folder_whose_tokens_cannot_be_added_is_refused(tmp_path: Path) -> None:
    _, backend, _ = next(backends())
    backend.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text('{"pad_token": "\\ud800"}')
    with pytest.raises(DataError) as caught:
        open_tokenizer(tmp_path)
    assert "\n" not in str(caught.value)
