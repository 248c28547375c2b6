"""Reading and writing of bos and eos in tokenizer_config.json and special_tokens_map.json."""

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
# Used for files without a configuration; a model may use several eos.
KNOWN_BOS = ("<s>", "<|begin_of_text|>", "<bos>")
KNOWN_EOS = ("</s>", "<|endoftext|>", "<|end_of_text|>", "<|eot_id|>", "<eos>", "<|im_end|>")
EXTRA, OLDER_EXTRA = "extra_special_tokens", "additional_special_tokens"  # the older key is used if the first is empty
MASKS = ("[MASK]", "<mask>", "<|mdm_mask|>", "<|mask|>")  # the last two: LLaDA, Dream


def content(value: object) -> str | None:
    # a token is written as a string or as a mapping with "content"
    value = value.get("content") if isinstance(value, Mapping) else value
    return value if isinstance(value, str) else None


Name = Annotated[
    str | None,
    BeforeValidator(lambda value: content(value) or value),
    Field(description='a token, written as a string or as {"content": ...}'),
]


class TokenizerConfig(BaseModel):
    """Fields of tokenizer_config.json that are read. Encoders name bos and eos cls and sep."""

    cls_token: Name = None
    bos_token: Name = None
    sep_token: Name = None
    eos_token: Name = None
    add_bos_token: Annotated[Flag | None, Field(description="true or false")] = None


def read_config(folder: Path) -> dict[str, Any]:
    """Return the fields of both files together; no fields if neither file exists.

    As in transformers 5.23, the older file counts only if the newer file does not list tokens with ids.
    """
    config = read_json(folder / CONFIG) if (folder / CONFIG).is_file() else {}
    if "added_tokens_decoder" not in config and (folder / MAP).is_file():
        config |= {
            key: {"__type": "AddedToken", **value, "special": True} if isinstance(value, dict) else value
            for key, value in read_json(folder / MAP).items()
            if key != OLDER_EXTRA
        }
    return config


class Ends(NamedTuple):
    """Bos and eos ids of a tokenizer, and whether its prompts begin with bos."""

    bos_token: int | None
    eos_token: int | None
    add_bos_token: bool


def ends_of(tokenizer: Tokenizer) -> Ends:
    return Ends(tokenizer.bos, next(iter(tokenizer.eos), None), tokenizer.adds_bos)


def write_config(
    folder: Path,
    tokenizer: Tokenizer,
    config: Mapping[str, Any],
    name_of: Callable[[int], str],
    opened: Ends | None = None,
) -> None:
    """Write a configuration as it was read, with changes to bos and eos. Of several eos, the first is written.

    `opened` has bos and eos from the time when the tokenizer was opened; None if the tokenizer was not read from a
    file, so that both are written.
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
    """Set bos, eos and adds_bos from tokenizer_config.json. `id_of` returns None for tokens not in the vocabulary.

    Raises:
        DataError: the token of a key is unknown, or a value has the wrong type.
    """
    parsed = validated(TokenizerConfig, config, CONFIG)
    for key in ("cls_token", "bos_token", "sep_token", "eos_token"):  # bos overrides cls, eos overrides sep
        if key not in parsed.model_fields_set:
            continue
        name = getattr(parsed, key)
        id = None if name is None else id_of(check_utf8(name))
        if name is not None and id is None:
            raise DataError(
                f"{CONFIG}: {key}", f"{name!r} is not in the vocabulary", "are these files from the same model?"
            )
        if key in ("cls_token", "bos_token"):
            tokenizer.bos = id
        else:
            tokenizer.eos = () if id is None else (id,)
    if parsed.add_bos_token is not None:
        tokenizer.adds_bos = parsed.add_bos_token
    tokenizer.adds_bos = tokenizer.adds_bos and tokenizer.bos is not None


def set_known(tokenizer: Tokenizer, special: Mapping[str, int]) -> None:
    """Set bos and eos to the special tokens whose names published tokenizers use."""
    tokenizer.bos = next((special[name] for name in KNOWN_BOS if name in special), None)
    tokenizer.eos = tuple(special[name] for name in KNOWN_EOS if name in special)


def start_of_text(row: Sequence[int], ids: Sequence[int]) -> int:
    return next(start for start in range(len(row)) if row[start : start + len(ids)] == ids)


def mask_id(tokenizer: Tokenizer) -> int:
    special = tokenizer.special_tokens
    # an id beyond the vocabulary matches no token
    return next((special[name] for name in MASKS if name in special), tokenizer.vocab_size)


def special_names(tokenizer: Tokenizer, pad: object) -> dict[str, str]:
    """Return bos_token, eos_token and pad_token (an id from a file), if they exist, as the tokenizer spells them."""
    ids = {"bos_token": tokenizer.bos, "eos_token": tokenizer.eos[0] if tokenizer.eos else None, "pad_token": pad}
    names = {id: name for name, id in tokenizer.special_tokens.items()}
    return {
        key: names.get(id) or tokenizer.token(id)
        for key, id in ids.items()
        if isinstance(id, int) and 0 <= id < tokenizer.vocab_size
    }
