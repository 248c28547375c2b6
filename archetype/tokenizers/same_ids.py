"""Whether an exported tokenizer gives the ids of the one that was exported."""

import warnings
from collections.abc import Iterator
from pathlib import Path

from archetype.errors import DataError, Notice
from archetype.io.files import DAMAGED, read_bytes
from archetype.tokenizers.added import read_added
from archetype.tokenizers.awkward_texts import AWKWARD_TEXTS
from archetype.tokenizers.definition import FILE
from archetype.tokenizers.files import library_errors
from archetype.tokenizers.named_tokens import add_named
from archetype.tokenizers.special_tokens import read_config
from archetype.tokenizers.tokenizer import Tokenizer

MOST_NAMES = 20  # of a tokenizer's own tokens that are looked for in a text


def awkward_cases(tokenizer: Tokenizer) -> Iterator[tuple[str, list[int]]]:
    """Texts on which tokenizers differ, some of them made of the tokenizer's own tokens, and their ids.

    Texts that the tokenizer refuses are left out.
    """
    names = [*tokenizer.symbols, *tokenizer.special_tokens][:MOST_NAMES]
    named = (f"the {name} cat{name}{name}s" for name in names)
    for text in (*AWKWARD_TEXTS, *named, *tokenizer.telling_texts()):
        try:
            yield text, tokenizer.encode_with_special_tokens(text)
        except DataError:
            continue


def check_fast(tokenizer: Tokenizer, folder: Path, allow_different: bool = False) -> None:
    """Compare the tokenizer.json of an export, as its library reads it, with the tokenizer that was exported.

    Args:
        tokenizer: that was exported.
        folder: of the export; one without the file is not looked at.
        allow_different: name a text with other ids in a warning, and leave the file as it is.

    Raises:
        DataError: names the first text with other ids.

    Warns:
        Notice: the same, where it is allowed.
    """
    if not (folder / FILE).is_file():
        return
    from tokenizers import Tokenizer as Library

    with library_errors(FILE, "cannot be read", DAMAGED):
        library = Library.from_str(read_bytes(folder / FILE).decode("utf-8-sig"))
        library.no_truncation()
        library.no_padding()
        config = read_config(folder)
        add_named(library, config, read_added(folder, config))
    for text, ids in awkward_cases(tokenizer):
        if library.encode(text, add_special_tokens=False).ids != ids:
            cause = f"cannot be written as a {FILE}: {text!r:.60} has other ids there"
            if not allow_different:
                remedy = "use --format gguf, or --allow-different-tokens to write it so"
                raise DataError("tokenizer", cause, remedy)
            warnings.warn(f"tokenizer: {cause}", Notice, stacklevel=2)
            return
