"""A tokenizer from a folder, whatever its files are called."""

from collections.abc import Callable
from pathlib import Path

from archetype.errors import DataError
from archetype.tokenizers.plain import FILE as PLAIN
from archetype.tokenizers.plain_file import from_mapping
from archetype.tokenizers.reading import read_bytes, read_json
from archetype.tokenizers.special_tokens import read_config
from archetype.tokenizers.tokenizer import Tokenizer

SUBFOLDER = "tokenizer"  # of a run directory


def open_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer in a model folder, a run directory, or a folder of its own.

    Of several, Marian's come first, because no other file says how both of its languages are cut; then tokenizer.json,
    then tokenizer.model, then the others.

    Raises:
        DataError: there is none (says what was looked for), or its file is damaged.
    """
    if not folder.is_dir():
        raise DataError(str(folder), "there is no such folder", "name the folder that holds the tokenizer's files")
    if (folder / SUBFOLDER).is_dir():
        folder = folder / SUBFOLDER
    for pattern, opened in _OPENERS.items():
        file = next((path for path in sorted(folder.glob(pattern)) if path.is_file()), None)
        if file is not None:
            try:
                return opened(file)
            except DataError as error:
                raise _located(error, file) from None
    raise DataError(str(folder), "holds no tokenizer", f"it needs one of these files: {', '.join(_OPENERS)}")


def _hugging_face(file: Path) -> Tokenizer:
    from archetype.tokenizers.hugging_face import HuggingFaceTokenizer

    return HuggingFaceTokenizer(read_bytes(file), read_config(file.parent))


def _model(file: Path) -> Tokenizer:
    """SentencePiece, or a rank file: Llama 3 ships one under SentencePiece's name."""
    from archetype.tokenizers.sentencepiece import SentencePieceTokenizer
    from archetype.tokenizers.tiktoken import is_ranks

    data = read_bytes(file)
    return _ranks(file) if is_ranks(data) else SentencePieceTokenizer(data, read_config(file.parent))


def _ranks(file: Path) -> Tokenizer:
    from archetype.tokenizers.tiktoken import TiktokenTokenizer
    from archetype.tokenizers.tiktoken_formats import COMPANION

    companion = file.parent / COMPANION
    format = read_json(companion) if companion.is_file() else None
    return TiktokenTokenizer(read_bytes(file), format, read_config(file.parent))


def _gpt2(file: Path) -> Tokenizer:
    from archetype.tokenizers.gpt2_files import MERGES, tokenizer_json
    from archetype.tokenizers.hugging_face import HuggingFaceTokenizer

    config = read_config(file.parent)
    merges = read_bytes(file.parent / MERGES)
    return HuggingFaceTokenizer(tokenizer_json(read_json(file), merges, config), config)


def _marian(file: Path) -> Tokenizer:
    from archetype.tokenizers.marian import TARGET, TARGET_VOCAB, VOCAB, MarianTokenizer

    folder, config = file.parent, read_config(file.parent)
    source, target, vocab = (read_bytes(one) for one in (file, folder / TARGET, folder / VOCAB))
    other = read_bytes(folder / TARGET_VOCAB) if config.get("separate_vocabs") is True else None
    return MarianTokenizer(source, target, vocab, config, other)


def _plain(file: Path) -> Tokenizer:
    return from_mapping(read_json(file))


_OPENERS: dict[str, Callable[[Path], Tokenizer]] = {
    "source.spm": _marian,
    "tokenizer.json": _hugging_face,
    "tokenizer.model": _model,
    "*.tiktoken": _ranks,
    PLAIN: _plain,
    "vocab.json": _gpt2,
}


def _located(error: DataError, file: Path) -> DataError:
    """The error with the whole path of the file at fault: this one, or the one beside it that the error names."""
    if error.place.startswith(str(file.parent)):
        return error
    named = error.place.partition(":")[0]
    if named and (file.parent / named).is_file():
        return DataError(str(file.parent / error.place), error.cause, error.remedy)
    return DataError(f"{file}: {error.place}" if error.place else str(file), error.cause, error.remedy)
