"""Classes that transformers obeys against the file: each folder has the same tokens there, or the class is named."""

import json
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from archetype.errors import ReadOtherwise
from archetype.tokenizers import open_tokenizer
from archetype.tokenizers.hugging_face import HuggingFaceTokenizer
from archetype.tokenizers.rebuilt import otherwise, table
from tests.helpers.cases import case

pytestmark = pytest.mark.filterwarnings("ignore::archetype.errors.Notice")  # of keys that are named
TEXTS = (
    "", "Hello, world! it's WE'LL 1234567", "  a  b\n\n c\t", "def f(x):\n    return x ** 2\r\n", "Café ﬁ ½ naïve",
    "你好，世界。 안녕 🙂", "<unk> a<s>b</s> c<pad>", "[CLS] x [MASK]y <mask> z", "a <|endoftext|> b <eos>",
    "▁ ▁▁ ``q'' 3.14 ##ing",
)  # fmt: skip


def folders(shared: Path) -> list[Path]:
    return [file.parent for file in sorted((shared / "published" / "tokenizers").glob("*/tokenizer.json"))]


def named(source: Path, folder: Path, name: str, model: dict[str, Any] | None = None) -> Path:
    """The folder with another class."""
    folder.mkdir(parents=True)
    for file in source.iterdir():
        (folder / file.name).symlink_to(file.resolve())
    config = json.loads((source / "tokenizer_config.json").read_text()) | {"tokenizer_class": name}
    (folder / "tokenizer_config.json").unlink()
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    if model is not None:
        (folder / "config.json").write_text(json.dumps(model))
    return folder


def outcome(tokenizer: HuggingFaceTokenizer, folder: Path) -> str:
    """How transformers reads a folder beside the tokenizer: the same, otherwise, or not at all."""
    try:
        theirs = AutoTokenizer.from_pretrained(folder)
        rows = [theirs(text).input_ids for text in TEXTS]
        plain = [theirs(text, add_special_tokens=False).input_ids for text in TEXTS]
    except BaseException as error:  # the library's panics are no Exceptions
        if isinstance(error, KeyboardInterrupt):
            raise
        return "refused"
    ends = (theirs.bos_token_id in (None, tokenizer.bos), theirs.eos_token_id in (None, *tokenizer.eos[:1]))
    ids = [tokenizer.encode(text) for text in TEXTS]
    same = ids == plain and [*map(tokenizer.add_special_tokens, ids)] == rows and all(ends)
    same = same and all(theirs.decode(row, skip_special_tokens=True) == tokenizer.decode(row) for row in ids)
    return "same" if same else "other"


def walk(sources: list[Path], names: list[str], tmp_path: Path) -> Counter[str]:
    """How many folders transformers reads in each way; one that it reads otherwise is named."""
    counts: Counter[str] = Counter()
    for source in sources:
        tokenizer = open_tokenizer(source)
        assert isinstance(tokenizer, HuggingFaceTokenizer)
        for name in names:
            folder = named(source, tmp_path / source.name / name, name)
            tokenizer.config["tokenizer_class"] = name
            said = [*otherwise(tokenizer, folder)]
            found = outcome(tokenizer, folder)
            counts[f"{found}, named" if said else found] += 1
            with case(source.name, name):
                assert said or found != "other"
    return counts
