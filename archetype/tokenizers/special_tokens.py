"""bos and eos as model folders name them, in tokenizer_config.json and special_tokens_map.json."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, BeforeValidator, Field

from archetype.errors import DataError
from archetype.io.atomic import write_json
from archetype.io.files import read_json
from archetype.tokenizers.files import Flag, validated
from archetype.tokenizers.tokenizer import Tokenizer, check_utf8

CONFIG = "tokenizer_config.json"
MAP = "special_tokens_map.json"
# For files without a configuration. Of several that end a text, a model may use each.
KNOWN_BOS = ("<s>", "<|begin_of_text|>", "<bos>")
KNOWN_EOS = ("</s>", "<|endoftext|>", "<|end_of_text|>", "<|eot_id|>", "<eos>", "<|im_end|>")
MASKS = ("[MASK]", "<mask>")


def content(value: object) -> str | None:
    """The text of a token that is written as a string or as a mapping with "content"."""
    value = value.get("content") if isinstance(value, Mapping) else value
    return value if isinstance(value, str) else None


Name = Annotated[
    str | None,
    BeforeValidator(lambda value: content(value) or value),
    Field(description='a token, written as a string or as {"content": ...}'),
]


class TokenizerConfig(BaseModel):
    """The fields of tokenizer_config.json that are read; encoders call bos and eos cls and sep."""

    cls_token: Name = None
    bos_token: Name = None
    sep_token: Name = None
    eos_token: Name = None
    add_bos_token: Annotated[Flag | None, Field(description="true or false")] = None


def read_config(folder: Path) -> dict[str, Any]:
    """The fields of both files together; empty where neither is there.

    As in transformers 5.23, the older file counts where the newer one does not list its tokens with their ids.
    """
    config = read_json(folder / CONFIG) if (folder / CONFIG).is_file() else {}
    if "added_tokens_decoder" not in config and (folder / MAP).is_file():
        config |= {
            key: {"__type": "AddedToken", **value, "special": True} if isinstance(value, dict) else value
            for key, value in read_json(folder / MAP).items()
            if key != "additional_special_tokens"
        }
    return config


class Ends(NamedTuple):
    """How a tokenizer begins and ends texts: ids, and whether prompts begin with the first."""

    bos_token: int | None
    eos_token: int | None
    add_bos_token: bool


def ends_of(tokenizer: Tokenizer) -> Ends:
    """The ends of a tokenizer as they are now."""
    return Ends(tokenizer.bos, next(iter(tokenizer.eos), None), tokenizer.adds_bos)


def write_config(
    folder: Path,
    tokenizer: Tokenizer,
    config: Mapping[str, Any],
    name_of: Callable[[int], str],
    opened: Ends | None = None,
) -> None:
    """Write a configuration as it was read, with bos and eos as far as they were changed.

    Args:
        folder: to write to.
        tokenizer: whose ends are written, the first eos where there are several.
        config: the contents of the file that the tokenizer was opened from.
        name_of: the token of an id.
        opened: its ends then (None: no file said them, so that all are written).
    """
    ends = ends_of(tokenizer)._asdict()
    changed = {
        key: value if isinstance(value, bool) or value is None else name_of(value)
        for key, value in ends.items()
        if opened is None or value != getattr(opened, key)
    }
    if config or changed:
        write_json(folder / CONFIG, {**config, **changed})


def apply_config(tokenizer: Tokenizer, config: Mapping[str, Any], id_of: Callable[[str], int | None]) -> None:
    """Set bos, eos and adds_bos where the configuration has them.

    Args:
        tokenizer: changed in place.
        config: the contents of tokenizer_config.json.
        id_of: the id of a token, or None where the vocabulary lacks it.

    Raises:
        DataError: names the key whose token is not in the vocabulary, or whose value is of the wrong type.
    """
    parsed = validated(TokenizerConfig, config, CONFIG)
    for key in ("cls_token", "bos_token", "sep_token", "eos_token"):  # of two for one, the later counts
        if key not in parsed.model_fields_set:
            continue
        name = getattr(parsed, key)
        id = None if name is None else id_of(check_utf8(name))
        if name is not None and id is None:
            raise DataError(f"{CONFIG}: {key}", f"{name!r} is not in the vocabulary", "do the files belong together?")
        if key in ("cls_token", "bos_token"):
            tokenizer.bos = id
        else:
            tokenizer.eos = () if id is None else (id,)
    if parsed.add_bos_token is not None:
        tokenizer.adds_bos = parsed.add_bos_token
    tokenizer.adds_bos = tokenizer.adds_bos and tokenizer.bos is not None


def set_known(tokenizer: Tokenizer, special: Mapping[str, int]) -> None:
    """Set bos and eos by the names that published tokenizers give them.

    Args:
        tokenizer: changed in place.
        special: the ids of its special tokens, by name.
    """
    tokenizer.bos = next((special[name] for name in KNOWN_BOS if name in special), None)
    tokenizer.eos = tuple(special[name] for name in KNOWN_EOS if name in special)


def start_of_text(row: Sequence[int], ids: Sequence[int]) -> int:
    """Where the ids of a text begin within its row, after the special tokens before it."""
    return next(start for start in range(len(row)) if row[start : start + len(ids)] == ids)


def mask_id(tokenizer: Tokenizer) -> int:
    """The id that stands for a masked token: the tokenizer's own, or one beyond its vocabulary."""
    special = tokenizer.special_tokens
    return next((special[name] for name in MASKS if name in special), tokenizer.vocab_size)


def special_names(tokenizer: Tokenizer, pad: object) -> dict[str, str]:
    """bos_token, eos_token and pad_token as a tokenizer spells them, where there are such.

    Args:
        tokenizer: which knows the first two.
        pad: the id of the third, as a file says it.
    """
    ids = {"bos_token": tokenizer.bos, "eos_token": tokenizer.eos[0] if tokenizer.eos else None, "pad_token": pad}
    names = {id: name for name, id in tokenizer.special_tokens.items()}
    return {
        key: names.get(id) or tokenizer.token(id)
        for key, id in ids.items()
        if isinstance(id, int) and 0 <= id < tokenizer.vocab_size
    }
