"""Registry of tokenizer kinds, which are trained by name and opened by the files in a folder.

A kind is one file with a subclass of `Tokenizer`. Built-in kinds are listed in `MODULES`. Others are registered with
`archetype.register` or `register_tokenizer`.
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
# In the order in which their files are looked for. Marian comes first, since no other file describes both of its
# languages; then Archetype's kinds, next to which an export puts a tokenizer.json for other programs. Libraries are
# imported only when a tokenizer that needs them is opened or trained.
MODULES = ("marian", "bytes", "characters", "words", "hugging_face", "sentencepiece", "tiktoken", "tekken",
           "rwkv", "gpt2", "wordpiece", "bpe")  # fmt: skip
SUBFOLDER = "tokenizer"  # folder in a run directory
PIECES_OF_CLASSES = ("spiece.model", "sentencepiece.bpe.model")  # SentencePiece models whose ids or tokens a class adds
# Vocabularies of other classes in transformers, which change ids or text in ways not implemented here.
OTHERS = (
    "spm.model",
    "sentencepiece.model",
    "spm_char.model",
    "bpe.codes",
    "prophetnet.tokenizer",
    "byte_maps.json",
)

_registered: dict[str, type[Tokenizer]] = {}  # kinds registered by users


def register_tokenizer(cls: T) -> T:
    """Register a tokenizer kind (also a class decorator). Its files take precedence over those of built-in kinds.

    Raises:
        DataError: the class has no kind, or the kind is used by another class.
    """
    if not cls.kind:
        raise DataError(cls.__name__, "has no kind", 'set a name for recipes: kind = "..."')
    other = _classes().get(cls.kind)
    # the same class again, as when an extension is loaded twice, is no conflict
    if other is not None and (other.__module__, other.__qualname__) != (cls.__module__, cls.__qualname__):
        raise DataError(cls.__name__, f"kind {cls.kind!r} is registered by {other.__name__}", "choose another name")
    _registered[cls.kind] = cls
    return cls


def trainable_kinds() -> tuple[str, ...]:
    """Return the kinds that can be trained, in a recipe or by `archetype tokenizer train --kind`."""
    return tuple(kind for kind, cls in _classes().items() if cls.train.__func__ is not Tokenizer.train.__func__)  # type: ignore[attr-defined]


def tokenizer_class(kind: object, kinds: Collection[str] | None = None) -> type[Tokenizer]:
    """Return the class of a kind among `kinds` (default: all kinds).

    Raises:
        DataError: the kind is unknown. The message lists the kinds that can be trained.
    """
    classes = _classes()
    if isinstance(kind, str) and kind in (classes if kinds is None else kinds):
        return classes[kind]
    trained, remedy = " that can be trained", f"use one of {', '.join(trainable_kinds())}"
    if kinds is None:
        trained, remedy = "", f"pass the file that registers it with --extension, or {remedy}"
    raise DataError("kind", f"{kind!r:.80} is not a kind of tokenizer{trained}", remedy)


def train_tokenizer(
    kind: str, texts: Iterable[str] | str, vocab_size: int | None, lowercase: bool = False
) -> Tokenizer:
    """Train a tokenizer. The same texts always give the same tokenizer.

    Args:
        kind: bytes (needs no text), characters and words (tokens of the text), bpe (merges characters), byte_bpe
            (merges bytes), or a registered kind.
        texts: texts to train on. BPE leaves out <|endoftext|>, the only special token of byte_bpe.
        vocab_size: largest number of ids: required for BPE, optional for words, and determined by all other kinds.
        lowercase: whether texts are lowercased, in training and later; only for byte_bpe and bpe.

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
        raise DataError("text", "is empty", "provide some text to train on")
    tokenizer = cls.train(texts, vocab_size, lowercase)
    if vocab_size is not None and vocab_size < tokenizer.vocab_size:
        cause = f"{vocab_size} is too small for {kind}"
        raise DataError("vocab_size", cause, f"use at least {tokenizer.vocab_size}")
    if vocab_size not in (None, tokenizer.vocab_size) and not cls.learns_vocabulary:
        cause = f"a tokenizer of kind {kind} always has {tokenizer.vocab_size} tokens here"
        raise DataError("vocab_size", cause, "remove it")
    return tokenizer


def open_tokenizer(source: Path) -> Tokenizer:
    """Open the tokenizer in a model folder, run directory, tokenizer folder, file or huggingface.co model.

    If a folder has several tokenizers, registered kinds come first, then Marian, Archetype's kinds, tokenizer.json,
    tokenizer.model, and all other kinds.

    Args:
        source: a folder, a tokenizer file, or owner/name or owner/name@revision on huggingface.co (only tokenizer files
            are downloaded).

    Raises:
        DataError: there is no tokenizer (the message lists the files looked for), or its file is damaged.
        CheckpointError: huggingface.co does not have the model, or cannot be reached.
    """
    if source.is_file():
        return _open_file(_class_of(source), source)
    folder = hub.local(source, patterns=hub.TOKENIZER_PATTERNS)
    if not folder.is_dir():
        remedy = "name the folder that contains the tokenizer's files, or one of them"
        raise DataError(str(source), "there is no such folder or file", remedy)
    if (folder / SUBFOLDER).is_dir():
        folder = folder / SUBFOLDER
    patterns = _patterns()
    for pattern, cls in patterns.items():
        file = next((path for path in sorted(folder.glob(pattern)) if path.is_file()), None)
        if file is not None:
            return _open_file(cls, file)
    if file := next((folder / name for name in PIECES_OF_CLASSES if (folder / name).is_file()), None):
        from archetype.tokenizers.class_pieces import open_pieces

        try:
            return open_pieces(file)
        except DataError as error:
            raise _located(error, file) from None
    if (other := next((name for name in OTHERS if (folder / name).is_file()), None)) is not None:
        cause = "is read by transformers through the model's own class, which adds rules to it"
        raise DataError(str(folder / other), cause, "save the tokenizer as tokenizer.json with transformers")
    raise DataError(str(folder), "contains no tokenizer", f"it needs one of these files: {', '.join(patterns)}")


def _class_of(file: Path) -> type[Tokenizer]:
    others = [(name, cls) for cls in _classes().values() for name in cls.other_names]
    others.sort(key=lambda other: -len(other[0]))  # tekken*.json before *.json
    for pattern, cls in (*_patterns().items(), *others):
        if fnmatch(file.name, pattern):
            return cls
    names = ", ".join(dict.fromkeys((*_patterns(), *(name for name, _ in others))))
    raise DataError(str(file), "does not have the name of a tokenizer file", f"use one of {names}")


def _open_file(cls: type[Tokenizer], file: Path) -> Tokenizer:
    try:
        return cls.open(file)
    except DataError as error:
        raise _located(error, file) from None


def _patterns() -> dict[str, type[Tokenizer]]:
    patterns: dict[str, type[Tokenizer]] = {}
    for cls in _classes().values():
        for pattern in cls.files:
            patterns.setdefault(pattern, cls)
    return patterns


def _located(error: DataError, file: Path) -> DataError:
    if error.place.startswith(str(file.parent)):
        return error
    # the place may begin with the name of another file in the folder
    name = error.place.partition(":")[0]
    if name and (file.parent / name).is_file():
        return DataError(str(file.parent / error.place), error.cause, error.remedy)
    return DataError(f"{file}: {error.place}" if error.place else str(file), error.cause, error.remedy)


def _classes() -> dict[str, type[Tokenizer]]:
    return _registered | {kind: cls for kind, cls in _built_in().items() if kind not in _registered}


@cache
def _built_in() -> dict[str, type[Tokenizer]]:
    modules = [import_module(f"archetype.tokenizers.{name}") for name in MODULES]
    return {cls.kind: cls for module in modules for cls in module.KINDS}
