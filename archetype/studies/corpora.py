"""Prepare the data of studies: texts split into train, validation and test, or synthetic examples."""

import hashlib
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from archetype.data.corpus import encode
from archetype.data.held_out import Split, split
from archetype.data.library_text import library_text
from archetype.data.tokenization import tokenizer_files
from archetype.errors import DataError
from archetype.io import atomic
from archetype.io.files import read_json
from archetype.io.text import read_text
from archetype.spec.base import fingerprint
from archetype.studies.settings import is_text
from archetype.tokenizers import open_tokenizer, trainable_kinds
from archetype.tokenizers.registry import tokenizer_class
from archetype.training.datasets import Data, TextData
from archetype.training.recipe import Recipe
from archetype.training.resolve import build_tokenizer
from archetype.training.synthetic import SyntheticData

LIBRARY = "pystdlib"
PARTS = (0.90, 0.05)  # training and validation; the rest is for test
HELD_OUT = PARTS[1] / sum(PARTS)  # validation's share of train.txt
SETTING = "ARCHETYPE_DATA"  # environment variable for the folder of corpora, unless --data-dir is given


@dataclass(frozen=True)
class StudyData:
    """Data of a study, split and ready for training.

    Attributes:
        sha256: hash of all data and of the tokenizer's files.
        recipe: `data` section of a recipe, with paths relative to the store.
        test: path of the test text relative to the store; empty for synthetic data.
        baseline: `validation_loss` and (test) `loss` in nats per token of predicting the unigram frequencies of the
            training text; for synthetic data, loss and accuracy of guessing.
    """

    name: str
    sha256: str
    recipe: dict[str, Any]
    test: str
    baseline: dict[str, float]


def prepare(source: str | dict[str, Any], folder: Path, store: Path, where: Split = "everywhere") -> StudyData:
    """Prepare the data that an experiment names.

    Args:
        source: pystdlib, a corpus or a file in `folder`, or the `data` section of a recipe.
        store: folder in which split texts are saved.
        where: parts of a text held out for validation and test, unless the source has a `split`.

    Raises:
        DataError: the corpus does not exist.
    """
    if isinstance(source, dict) and not is_text(source):
        data = _parsed(source)
        if not isinstance(data, SyntheticData):
            cause = f"data of kind {data.kind} cannot be used in studies"
            raise DataError("data", cause, f"name a corpus, or one of {', '.join(SyntheticData.names())}")
        digest = hashlib.sha256(json.dumps(data.dump(full=True), sort_keys=True).encode()).hexdigest()
        return StudyData(data.kind, digest, data.dump(), "", data.baseline())
    options = dict(source) if isinstance(source, dict) else {"text": source}
    name = str(options.pop("text", ""))
    text = _library(store) if name == LIBRARY else _read(name, folder)
    recipe = {"kind": "corpus", "tokenizer": "bytes", "validation_fraction": HELD_OUT, "split": where} | options
    data = _parsed(recipe)
    assert isinstance(data, TextData)
    digest = hashlib.sha256(text.encode()).hexdigest()
    if data.split != "end":  # only other splits enter the hash, so that hashes of earlier reports stay valid
        digest = hashlib.sha256(f"{digest} {data.split}".encode()).hexdigest()
    corpus = Path("corpora") / digest[:16]
    if not (store / corpus / "test.txt").is_file():
        _write_parts(store / corpus, text, name, data.split)
    if recipe["tokenizer"] in trainable_kinds():
        recipe |= _trained_tokenizer(recipe, store, corpus)
    else:  # a tokenizer's folder; its files decide the tokens
        files = tokenizer_files(open_tokenizer(Path(str(recipe["tokenizer"]))))[1]
        digest = hashlib.sha256(f"{digest} {files}".encode()).hexdigest()
    recipe |= {"text": [str(corpus / "train.txt")]}
    return StudyData(name, digest, recipe, str(corpus / "test.txt"), _baseline(recipe, digest, store, corpus))


def with_tokenizer(source: str | dict[str, Any], folder: str) -> str | dict[str, Any]:
    """Return a source of data, of which a text is read with the tokenizer of a model's folder."""
    if not is_text(source):
        return source
    options = dict(source) if isinstance(source, dict) else {"text": source}
    if "tokenizer" in options:
        raise DataError("data.tokenizer", f"is that of {folder}, which an arm starts from", "remove it")
    return options | {"tokenizer": str(Path(folder).expanduser().absolute())}


def _parsed(data: dict[str, Any]) -> Data:
    return Recipe.parse({"data": data}).data


def _trained_tokenizer(recipe: dict[str, Any], store: Path, corpus: Path) -> dict[str, Any]:
    """Train the tokenizer once for all runs and return its path; {} if this kind needs no training."""
    kind, size = str(recipe["tokenizer"]), recipe.get("vocab_size")
    if not tokenizer_class(kind).learns_vocabulary:
        return {}
    data = _parsed(recipe | {"text": [str(store / corpus / "train.txt")]})
    # other settings that the tokenizer depends on
    others = [getattr(data, "lowercase", False), data.validation_fraction]
    known = "" if others == [False, HELD_OUT] else f"-{hashlib.sha256(json.dumps(others).encode()).hexdigest()[:8]}"
    name = corpus / f"tokenizer-{kind}-{size}{known}"
    if not (store / name).is_dir():
        tokenizer = build_tokenizer(data, data.read_texts(store))
        with atomic.new_folder(store / name) as folder:
            assert tokenizer is not None
            tokenizer.save(folder)
    return {"tokenizer": str(name)}


def absolute_data(data: Data, store: Path) -> Data:
    """Return the `data` section of a recipe with absolute paths."""
    paths: dict[str, Any] = {"text": tuple(str(store / name) for name in getattr(data, "text", ()))}
    tokenizer = getattr(data, "tokenizer", "")
    if (store / tokenizer).is_dir():
        # the saved tokenizer already contains vocabulary size and lower-casing
        paths |= {"tokenizer": str(store / tokenizer), "vocab_size": None, "lowercase": False}
    return data.replace(**paths) if paths["text"] else data


def _library(store: Path) -> str:
    # extracted once for each Python: another version has other docstrings
    of_this_python = hashlib.sha256(f"{sys.version} {sys.prefix}".encode()).hexdigest()[:16]
    file = store / "corpora" / f"{LIBRARY}-{of_this_python}.txt"
    if not file.is_file():
        atomic.make_folder(file.parent)
        atomic.write_bytes(file, library_text().encode())
    return file.read_text(encoding="utf-8")


def _read(name: str, folder: Path) -> str:
    """Read a corpus: NAME, NAME.txt, NAME.txt.gz, or all text files of a folder NAME."""
    candidates = [folder / name, *(folder / f"{name}{ending}" for ending in (".txt", ".txt.gz"))]
    file = next((path for path in candidates if path.exists()), None)
    if file is None:
        remedy = f"name the folder that contains {name} or {name}.txt with --data-dir, or set {SETTING}"
        raise DataError(name, f"there is no such corpus in {folder}", remedy)
    files = [file] if file.is_file() else sorted(path for path in file.iterdir() if ".txt" in path.suffixes)
    if not files:
        raise DataError(str(file), "contains no text files", "add a text file, such as input.txt")
    return "".join(map(read_text, files))


def _baseline(recipe: dict[str, Any], digest: str, store: Path, corpus: Path) -> dict[str, float]:
    data = _parsed(recipe)
    of_files = "" if corpus.name == digest[:16] else f"-{digest[:8]}"  # distinguishes tokenizers
    about = store / corpus / f"guess-{fingerprint(data)}{of_files}.json"
    if not about.is_file():
        data = absolute_data(data, store)
        learned, test = (read_text(store / corpus / name) for name in ("train.txt", "test.txt"))
        tokenizer = build_tokenizer(data, {"train.txt": learned, "test.txt": test})
        assert tokenizer is not None and isinstance(data, TextData)
        train, validation = split(learned, data.validation_fraction, data.split)
        # unigram frequencies of the training text; plus one, so that no test token has probability zero
        counts = np.bincount(encode(tokenizer, train), minlength=tokenizer.vocab_size) + 1
        nats = -np.log(counts / counts.sum())
        losses = (float(np.mean(nats[encode(tokenizer, text)])) for text in (validation, test))
        atomic.write_json(about, dict(zip(("validation_loss", "loss"), losses, strict=True)))
    return dict(read_json(about))


def _write_parts(folder: Path, text: str, name: str, where: Split) -> None:
    train, test = split(text, 1 - sum(PARTS), where)
    if len(test) < 1000:
        raise DataError(name, f"has {len(text):,} characters, too few for a test on 5 % of them", "use a longer text")
    atomic.make_folder(folder)
    atomic.write_bytes(folder / "train.txt", train.encode())
    atomic.write_bytes(folder / "test.txt", test.encode())
