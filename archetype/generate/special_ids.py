"""The ids of special tokens in a model's config.json and generation_config.json."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from archetype.errors import CheckpointError

NEVER = "bad_words_ids"  # in the files of translators, a list of the sequences of tokens that are never written
SPECIAL = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")


def special_ids(config: dict[str, Any], place: Path) -> dict[str, Any]:
    """The ids of special tokens in one of a model's files: a text may end with one of several."""
    special = {name: config[name] for name in SPECIAL if name in config}
    for name, value in special.items():
        values = value if isinstance(value, list) and name == "eos_token_id" else [value]
        if not all(id is None or (isinstance(id, int) and not isinstance(id, bool)) for id in values):
            raise CheckpointError(f"{place}: {name}", f"{value!r} is not a token id", "fix the file")
    return special | _never(config, place)


def _never(config: dict[str, Any], place: Path) -> dict[str, Any]:
    """Sequences of tokens that are never written, where the file names some."""
    if (value := config.get(NEVER)) is None:
        return {}
    listed = isinstance(value, list) and all(isinstance(one, list) for one in value)
    if not listed or not all(type(id) is int and id >= 0 for one in value for id in one):
        raise CheckpointError(f"{place}: {NEVER}", f"{value!r:.80} is not a list of lists of token ids", "fix the file")
    return {NEVER: value}


def never_written(special: Mapping[str, Any]) -> tuple[int, ...]:
    """The single tokens that are never written."""
    return tuple(ids[0] for ids in special.get(NEVER) or () if len(ids) == 1)
