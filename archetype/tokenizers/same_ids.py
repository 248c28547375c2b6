"""Check that the files of a saved tokenizer give the same ids as the original tokenizer."""

import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path

from archetype.errors import DataError, Notice
from archetype.tokenizers.awkward_texts import AWKWARD_TEXTS
from archetype.tokenizers.definition import FILE
from archetype.tokenizers.hugging_face import HuggingFaceTokenizer
from archetype.tokenizers.registry import open_tokenizer
from archetype.tokenizers.tokenizer import Tokenizer

MOST_NAMES = 20  # number of the tokenizer's tokens tried in texts
ALLOW = "--allow-different-tokens to write it so"


def awkward_cases(tokenizer: Tokenizer, further: Iterable[str] = ()) -> Iterator[tuple[str, list[int]]]:
    """Yield difficult texts with their ids, including texts made of the tokenizer's tokens. Skip texts it refuses."""
    names = [*tokenizer.symbols, *tokenizer.special_tokens][:MOST_NAMES]
    named = (f"the {name} cat{name}{name}s" for name in names)
    for text in (*AWKWARD_TEXTS, *named, *tokenizer.telling_texts(), *further):
        try:
            yield text, tokenizer.encode_with_special_tokens(text)
        except DataError:
            continue


def check_saved(
    tokenizer: Tokenizer, folder: Path, allow_different: bool = False, remedy: str = f"use --format gguf, or {ALLOW}"
) -> Tokenizer:
    """Compare a saved tokenizer with the original (ids of texts and prompts, bos and eos), and return it.

    A tokenizer.json is read by `tokenizers`, as in transformers. Other files are read by Archetype. With
    `allow_different`, a difference is a warning.

    Raises:
        DataError: a text gets different ids, or bos or eos differ. The message ends with `remedy`.

    Warns:
        Notice: the tokenizers differ, and `allow_different` is set.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)  # already given when the source was opened
        if (folder / FILE).is_file():
            file, read = FILE, HuggingFaceTokenizer.open(folder / FILE)
        else:
            file, read = "tokenizer", open_tokenizer(folder)
    for cause in (*_differing_texts(tokenizer, read, file), *differing_ends(tokenizer, read, file)):
        if not allow_different:
            raise DataError("tokenizer", cause, remedy)
        warnings.warn(f"tokenizer: {cause}", Notice, stacklevel=2)
        break
    return read


def _differing_texts(tokenizer: Tokenizer, read: Tokenizer, file: str) -> Iterator[str]:
    # if bos or eos were ordinary tokens, the file matches them first, even inside other tokens
    special, ends = tokenizer.special_tokens, {read.bos, *read.eos[:1]}
    names = [name for name, id in read.special_tokens.items() if id in ends and name not in special]
    tokens = [tokenizer.decode([id]) for id in range(tokenizer.vocab_size)] if names else []
    further = [*names, *(token for token in tokens if any(name in token for name in names))]
    # a tokenizer.json is read by its library, as in transformers
    whole = read.backend if isinstance(read, HuggingFaceTokenizer) else None
    for text, ids in awkward_cases(tokenizer, further):
        row, again = tokenizer.add_special_tokens(ids), read.encode_with_special_tokens(text)
        with_special = (
            read.add_special_tokens(again) if whole is None else whole.encode(text, add_special_tokens=True).ids
        )
        if again != ids or with_special != row:
            between = " between its special tokens" if again == ids else ""
            yield f"cannot be written as a {file}: {text!r:.60}{between} has other ids there"
            return


def differing_ends(tokenizer: Tokenizer, read: Tokenizer, file: str) -> Iterator[str]:
    """Yield differences in bos and eos. Only the first eos counts, since tokenizer files name just one."""
    for name, expected, actual in (("bos", [tokenizer.bos], [read.bos]), ("eos", tokenizer.eos[:1], read.eos[:1])):
        first, second = ("absent" if [*ids] in ([], [None]) else f"id {ids[0]}" for ids in (expected, actual))
        if first != second:
            yield f"{name} is {first}, and would be {second} in a {file}"
