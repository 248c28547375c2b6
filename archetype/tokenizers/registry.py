"""The kinds of tokenizer: registered, trained by name, and opened by the files of a folder.

A kind is one file with one subclass of `Tokenizer`. Those of this package are listed in `MODULES`; one from outside is
given to `archetype.register`, or to `register_tokenizer` here.
"""

from collections.abc import Collection, Iterable
from fnmatch import fnmatch
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TypeVar

from archetype.errors import DataError, enumeration
from archetype.io import hub
from archetype.tokenizers.tokenizer import Tokenizer, check_utf8

T = TypeVar("T", bound=type[Tokenizer])
# In the order in which their files are looked for: Marian's first, because no other file says how both of its
# languages are split; then our own, beside which an export has a tokenizer.json for others. No library is imported
# before a tokenizer that needs it is opened or trained.
MODULES = ("marian", "bytes", "characters", "words", "hugging_face", "sentencepiece", "tiktoken", "tekken",
           "gpt2", "wordpiece", "bpe")  # fmt: skip
SUBFOLDER = "tokenizer"  # of a run directory
OF_CLASSES = "spiece.model"  # a SentencePiece model around which each class puts other tokens
# Vocabularies of other classes of transformers, which change their ids or their texts in ways that are not done here.
OTHERS = ("sentencepiece.bpe.model", "spm.model", "sentencepiece.model", "spm_char.model", "bpe.codes",
          "prophetnet.tokenizer", "byte_maps.json")  # fmt: skip

_registered: dict[str, type[Tokenizer]] = {}  # the kinds from outside


def register_tokenizer(cls: T) -> T:
    """Add a kind of tokenizer; also a class decorator. Its files are looked for before those of this package.

    Args:
        cls: a subclass of `Tokenizer` that names its `kind`.

    Raises:
        DataError: it has no kind, or one that another class has.
    """
    if not cls.kind:
        raise DataError(cls.__name__, "has no kind", 'give the class a name for recipes: kind = "..."')
    other = _classes().get(cls.kind)
    if other is not None and (other.__module__, other.__qualname__) != (cls.__module__, cls.__qualname__):
        raise DataError(cls.__name__, f"kind {cls.kind!r} is registered by {other.__name__}", "choose another name")
    _registered[cls.kind] = cls
    return cls


def trainable_kinds() -> tuple[str, ...]:
    """The kinds that can be trained: what a recipe and `archetype tokenizer train --kind` may name."""
    return tuple(kind for kind, cls in _classes().items() if cls.train.__func__ is not Tokenizer.train.__func__)  # type: ignore[attr-defined]


def tokenizer_class(kind: object, kinds: Collection[str] | None = None) -> type[Tokenizer]:
    """The class of a kind, as a file or a caller names it.

    Args:
        kind: its name.
        kinds: those that are allowed (absent: all).

    Raises:
        DataError: there is none; lists those that can be trained.
    """
    classes = _classes()
    if isinstance(kind, str) and kind in (classes if kinds is None else kinds):
        return classes[kind]
    trained, remedy = " that can be trained", f"use one of {', '.join(trainable_kinds())}"
    if kinds is None:
        trained, remedy = "", f"give the file that registers it by --extension, or {remedy}"
    raise DataError("kind", f"{kind!r:.80} is not a kind of tokenizer{trained}", remedy)


def train_tokenizer(
    kind: str, texts: Iterable[str] | str, vocab_size: int | None, lowercase: bool = False
) -> Tokenizer:
    """A tokenizer of a kind, made from texts; the same texts give the same tokenizer.

    Args:
        kind: bytes needs no text; characters and words take what occurs; bpe merges characters, byte_bpe bytes; or a
            kind that was registered.
        texts: what to train on. BPE leaves out <|endoftext|>, which byte_bpe has as its one special token.
        vocab_size: the number of ids to reach at most: needed for BPE, a limit for words, and for the others as many as
            they have.
        lowercase: whether every text is turned to lower case first, then and later; byte_bpe and bpe only.

    Raises:
        DataError: there is no text, or the kind cannot have that many ids.
    """
    cls = tokenizer_class(kind, trainable_kinds())
    if vocab_size is not None and vocab_size < 1:
        raise DataError("vocab_size", f"{vocab_size} is too small", "use at least 1")
    if lowercase and not cls.can_lowercase:
        able = enumeration((name for name, other in _classes().items() if other.can_lowercase), "or")
        raise DataError("lowercase", f"a tokenizer of kind {kind} keeps the case", f"use {able}")
    texts = [check_utf8(text) for text in ([texts] if isinstance(texts, str) else texts) if text]
    if cls.needs_text and not texts:
        raise DataError("text", "is empty", "give some text to train on")
    tokenizer = cls.train(texts, vocab_size, lowercase)
    if vocab_size is not None and vocab_size < tokenizer.vocab_size:
        cause = f"{vocab_size} is too small for {kind}"
        raise DataError("vocab_size", cause, f"use at least {tokenizer.vocab_size}")
    if vocab_size not in (None, tokenizer.vocab_size) and not cls.learns_vocabulary:
        cause = f"a tokenizer of kind {kind} has {tokenizer.vocab_size} tokens here, whatever is asked for"
        raise DataError("vocab_size", cause, "leave it out")
    return tokenizer


def open_tokenizer(source: Path) -> Tokenizer:
    """The tokenizer of a model folder, a run directory, a folder of its own, or a model of the hub; or a single file.

    Of several in a folder, those of registered kinds come first, then Marian's, then our own, then tokenizer.json, then
    tokenizer.model, then the others.

    Args:
        source: a folder, a file of a tokenizer, or owner/name or owner/name@revision, of which only such files are
            fetched.

    Raises:
        DataError: there is none (says what was looked for), or its file is damaged.
        CheckpointError: the hub has no such model, or cannot be reached.
    """
    if source.is_file():
        return _open_file(_class_of(source), source)
    folder = hub.local(source, patterns=hub.TOKENIZER_PATTERNS)
    if not folder.is_dir():
        remedy = "name the folder that holds the tokenizer's files, or one of them"
        raise DataError(str(source), "there is no such folder or file", remedy)
    if (folder / SUBFOLDER).is_dir():
        folder = folder / SUBFOLDER
    patterns = _patterns()
    for pattern, cls in patterns.items():
        file = next((path for path in sorted(folder.glob(pattern)) if path.is_file()), None)
        if file is not None:
            return _open_file(cls, file)
    if (file := folder / OF_CLASSES).is_file():
        from archetype.tokenizers.class_pieces import open_pieces

        try:
            return open_pieces(file)
        except DataError as error:
            raise _located(error, file) from None
    if (other := next((name for name in OTHERS if (folder / name).is_file()), None)) is not None:
        cause = "is read by transformers through the model's own class, which adds rules to it"
        raise DataError(str(folder / other), cause, "save the tokenizer as tokenizer.json with transformers")
    raise DataError(str(folder), "holds no tokenizer", f"it needs one of these files: {', '.join(patterns)}")


def _class_of(file: Path) -> type[Tokenizer]:
    """The kind that a file's name says: a name that folders have, or one that a file may have besides.

    Raises:
        DataError: it says none.
    """
    others = [(name, cls) for cls in _classes().values() for name in cls.other_names]
    others.sort(key=lambda other: -len(other[0]))  # tekken*.json before *.json
    for pattern, cls in (*_patterns().items(), *others):
        if fnmatch(file.name, pattern):
            return cls
    names = ", ".join(dict.fromkeys((*_patterns(), *(name for name, _ in others))))
    raise DataError(str(file), "is no file of a tokenizer by its name", f"name one of these: {names}")


def _open_file(cls: type[Tokenizer], file: Path) -> Tokenizer:
    try:
        return cls.open(file)
    except DataError as error:
        raise _located(error, file) from None


def _patterns() -> dict[str, type[Tokenizer]]:
    """The kind that opens each pattern of names, in the order in which they are looked for."""
    patterns: dict[str, type[Tokenizer]] = {}
    for cls in _classes().values():
        for pattern in cls.files:
            patterns.setdefault(pattern, cls)
    return patterns


def _located(error: DataError, file: Path) -> DataError:
    """The error with the whole path of the file at fault: this one, or the one beside it that the error names."""
    if error.place.startswith(str(file.parent)):
        return error
    name = error.place.partition(":")[0]
    if name and (file.parent / name).is_file():
        return DataError(str(file.parent / error.place), error.cause, error.remedy)
    return DataError(f"{file}: {error.place}" if error.place else str(file), error.cause, error.remedy)


def _classes() -> dict[str, type[Tokenizer]]:
    """All kinds, in the order in which their files are looked for."""
    return _registered | {kind: cls for kind, cls in _built_in().items() if kind not in _registered}


@cache
def _built_in() -> dict[str, type[Tokenizer]]:
    modules = [import_module(f"archetype.tokenizers.{name}") for name in MODULES]
    return {cls.kind: cls for module in modules for cls in module.KINDS}
