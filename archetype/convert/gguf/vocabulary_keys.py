"""Vocabulary in the metadata of a GGUF file, read and checked."""

from collections.abc import Mapping
from typing import Any

from archetype.convert.gguf.vocabulary import PREFIX, Vocabulary
from archetype.errors import DataError
from archetype.tokenizers.sentencepiece import NORMAL

FLAGS = (
    "add_bos_token",
    "add_eos_token",
    "add_sep_token",
    "add_space_prefix",
    "remove_extra_whitespaces",
    "normalizer.lowercase",
    "normalizer.strip_accents",
)
ID = "_token_id"  # suffix of keys of special tokens
OTHERS = ("token_type_count",)  # keys of the model


def read_vocabulary(metadata: Mapping[str, Any], place: str) -> Vocabulary | None:
    """Return the vocabulary that a file's keys describe; None if the file has no vocabulary.

    Raises:
        DataError: a key is missing, wrong or unknown.
    """
    keys = {key.removeprefix(f"{PREFIX}."): value for key, value in metadata.items() if key.startswith(f"{PREFIX}.")}
    model = keys.pop("model", "no_vocab")
    if model == "no_vocab":
        return None
    lists = {
        name: keys.pop(name, None) for name in ("tokens", "token_type", "scores", "merges", "precompiled_charsmap")
    }
    tokens, types, scores, merges, charsmap = lists.values()
    for name, kind, needed in (
        ("tokens", str, True),
        ("token_type", int, False),
        ("scores", float | int, False),
        ("merges", str, False),
    ):
        value = lists[name]
        sound = isinstance(value, list) and all(isinstance(item, kind) for item in value)
        if not sound and (needed or value is not None):
            raise DataError(f"{place}: {PREFIX}.{name}", "is missing or has the wrong type", "convert the model again")
        if name not in ("tokens", "merges") and value is not None and len(value) != len(tokens):
            cause = f"has {len(value)} items for {len(tokens)} tokens"
            raise DataError(f"{place}: {PREFIX}.{name}", cause, "is the file complete?")
    special = {key.removesuffix(ID): keys.pop(key) for key in [*keys] if key.endswith(ID)}
    if wrong := next((role for role, id in special.items() if not isinstance(id, int) or id >= len(tokens)), None):
        raise DataError(f"{place}: {PREFIX}.{wrong}{ID}", f"{special[wrong]!r} is not an id", "convert the model again")
    flags = {name: bool(keys.pop(name)) for name in FLAGS if name in keys}
    pre = keys.pop("pre", None)
    if unknown := next((key for key in keys if key not in OTHERS), None):
        raise DataError(f"{place}: {PREFIX}.{unknown}", "is not supported", "remove it if it has no effect")
    return Vocabulary(
        str(model),
        pre,
        tokens,
        types or [NORMAL] * len(tokens),
        scores,
        merges,
        special,
        flags,
        bytes(value & 0xFF for value in charsmap or ()),  # signed or unsigned bytes
    )
