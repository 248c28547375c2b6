"""Tokens that a folder adds to a vocabulary, and how they are found in text."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from archetype.errors import DataError
from archetype.io.files import DAMAGED, read_json

ADDED, DECODER = "added_tokens.json", "added_tokens_decoder"  # a file, and a key of tokenizer_config.json
FLAGS = ("special", "lstrip", "rstrip", "single_word", "normalized")


class AddedToken(NamedTuple):
    """Token that is matched in the text before tokenization.

    Attributes:
        content: spelling of the token in text.
        special: whether decoding skips the token.
        lstrip: whether the match includes spaces on its left.
        rstrip: whether the match includes spaces on its right.
        single_word: whether the token matches only between spaces.
        normalized: whether the token is matched in the normalized text.
    """

    id: int
    content: str
    special: bool = True
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False
    normalized: bool = False


def read_added(folder: Path, config: Mapping[str, Any]) -> list[AddedToken]:
    """Return the added tokens in a folder, from its tokenizer_config.json, otherwise from added_tokens.json.

    Raises:
        DataError: an entry does not map a token to an id.
    """
    if DECODER in config:
        tokens = _read_decoder(config[DECODER])
    elif (folder / ADDED).is_file():
        named = read_json(folder / ADDED)
        if not all(type(id) is int and 0 <= id < 2**31 for id in named.values()):
            raise _no_map(ADDED)
        tokens = [AddedToken(id, name) for name, id in named.items()]
    else:
        return []
    if len({token.id for token in tokens}) < len(tokens) or len({token.content for token in tokens}) < len(tokens):
        raise _no_map(DECODER if DECODER in config else ADDED)
    return tokens


def _read_decoder(value: Any) -> list[AddedToken]:
    if not isinstance(value, dict):
        raise _no_map(DECODER)
    tokens = []
    for id, token in value.items():
        if not re.fullmatch(r"[0-9]{1,9}", id) or not isinstance(token, dict):
            raise _no_map(f"{DECODER}: {id:.40}")
        # transformers' default of `normalized`: text that is not special is matched after normalization
        flags = {"normalized": not token.get("special")} | {name: token[name] for name in FLAGS if name in token}
        if not isinstance(token.get("content"), str) or not all(isinstance(flag, bool) for flag in flags.values()):
            raise _no_map(f"{DECODER}: {id}")
        if unknown := token.keys() - {"content", "__type", *FLAGS}:
            raise DataError(f"{DECODER}: {id}: {min(unknown):.40}", "is unknown", "remove it if it has no effect")
        if token["content"]:
            tokens.append(AddedToken(int(id), token["content"], **{"special": False} | flags))
    return tokens


def _no_map(place: str) -> DataError:
    return DataError(place, "does not map each token to a unique id", DAMAGED)


def split_at(text: str, tokens: Sequence[AddedToken]) -> list[str]:
    """Split a text at added tokens, which are kept in the list. The longest match wins."""
    known = {token.content: token for token in tokens}
    names = map(re.escape, sorted(known, key=len, reverse=True))
    parts = re.split(f"({'|'.join(names)})", text)
    for at in range(1, len(parts), 2):  # odd indices are tokens, even ones the text between them, possibly empty
        token = known[parts[at]]
        if token.single_word and (parts[at - 1][-1:] not in ("", " ") or parts[at + 1][:1] not in ("", " ")):
            # join the match with its neighbors again; three items, so that odd indices stay tokens
            parts[at - 1 : at + 2] = ["", "", "".join(parts[at - 1 : at + 2])]
            continue
        parts[at - 1] = parts[at - 1].rstrip() if token.lstrip else parts[at - 1]
        parts[at + 1] = parts[at + 1].lstrip() if token.rstrip else parts[at + 1]
    return [part for part in parts if part]
