"""Tokens that a folder names outside its tokenizer.json, added as in transformers."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from archetype.errors import Notice, shorten
from archetype.tokenizers.added import FLAGS, AddedToken
from archetype.tokenizers.definition import without_panics
from archetype.tokenizers.special_tokens import CONFIG, EXTRA, OLDER_EXTRA, content
from archetype.tokenizers.tokenizer import check_utf8

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def add_named(backend: "Backend", config: Mapping[str, Any], added: Sequence[AddedToken]) -> None:
    """Add the tokens of tokenizer_config.json, and tokens listed with ids, to a backend in place.

    Tokens already in the vocabulary keep their ids and take the configured flags. Other tokens get the next ids, since
    the library ignores the given ids.

    Warns:
        Notice: a token that was missing from the vocabulary has an id that no file states.

    Source: `TokenizersBackend.__init__` in transformers 5.23.
    """
    from tokenizers import AddedToken as LibraryToken

    named = {name: flags for name, flags in named_in(config) if name}
    ids = {name: backend.token_to_id(name) for name in map(check_utf8, named)}
    ids |= {token.content: token.id for token in added}
    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    tokens = []
    # by id, since the library gives the next ids in order
    for token in sorted(added):
        flags = token._asdict()
        del flags["id"]
        tokens.append(LibraryToken(**flags | {"special": token.special or token.content in named}))
        known.add(token.content)
    for name, flags in named.items():
        if name not in known:
            tokens.append(LibraryToken(name, **{"special": True} | flags))
    if tokens:
        with without_panics():
            backend.add_tokens(tokens)
    if differing := [name for name, id in ids.items() if backend.token_to_id(name) != id]:
        shown = ", ".join(f"{name!r} {backend.token_to_id(name)}" for name in differing)
        cause = f"the vocabulary lacks tokens, which get the next ids as in transformers: {shown}"
        warnings.warn(f"{CONFIG}: {shorten(cause, 300)}", Notice, stacklevel=2)


def named_in(config: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, bool]]]:
    """Yield each token that a configuration names, with the token's flags."""
    extra = config.get(EXTRA) or config.get(OLDER_EXTRA) or ()
    other_keys = [key for key in config if key.endswith("_token") and key not in NAMED and not key.startswith("add_")]
    values = [config.get(key) for key in (*NAMED, *other_keys)]
    for value in [*values, *(extra.values() if isinstance(extra, dict) else extra if isinstance(extra, list) else ())]:
        if (name := content(value)) is not None:
            flags = {flag: value[flag] for flag in FLAGS if flag in value} if isinstance(value, dict) else {}
            yield name, {flag: is_set for flag, is_set in flags.items() if isinstance(is_set, bool)}
