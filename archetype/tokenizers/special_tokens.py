"""bos and eos as model folders name them, in tokenizer_config.json and special_tokens_map.json."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from archetype.errors import DataError
from archetype.io.atomic import write_json
from archetype.tokenizers.reading import read_json
from archetype.tokenizers.tokenizer import Tokenizer

CONFIG = "tokenizer_config.json"
MAP = "special_tokens_map.json"
# For files without a configuration. Of several that end a text, a model may use each.
KNOWN_BOS = ("<s>", "<|begin_of_text|>", "<bos>")
KNOWN_EOS = ("</s>", "<|endoftext|>", "<|end_of_text|>", "<|eot_id|>", "<eos>", "<|im_end|>")


def read_config(folder: Path) -> dict[str, Any]:
    """What the two files say together; empty where neither is there."""
    config: dict[str, Any] = {}
    for name in (MAP, CONFIG):
        if (folder / name).is_file():
            config |= read_json(folder / name)
    return config


def write_config(folder: Path, tokenizer: Tokenizer, config: Mapping[str, Any], name_of: Callable[[int], str]) -> None:
    """Write `config` with the tokenizer's present bos and eos, the first where there are several."""
    names = {
        "bos_token": None if tokenizer.bos is None else name_of(tokenizer.bos),
        "eos_token": name_of(tokenizer.eos[0]) if tokenizer.eos else None,
        "add_bos_token": tokenizer.adds_bos,
    }
    write_json(folder / CONFIG, {**config, **names})


def apply_config(tokenizer: Tokenizer, config: Mapping[str, Any], id_of: Callable[[str], int | None]) -> None:
    """Set bos, eos and adds_bos where the configuration speaks of them.

    Encoders name them cls and sep.

    Raises:
        DataError: names the key whose token is not in the vocabulary, or whose value is of the wrong type.
    """
    for key in ("cls_token", "bos_token"):
        if key in config:
            tokenizer.bos = _id(config, key, id_of) if config[key] is not None else None
    for key in ("sep_token", "eos_token"):
        if key in config:
            tokenizer.eos = (_id(config, key, id_of),) if config[key] is not None else ()
    adds_bos = config.get("add_bos_token")
    if adds_bos is not None:
        if not isinstance(adds_bos, bool):
            raise DataError(f"{CONFIG}: add_bos_token", f"{adds_bos!r} is neither true nor false", "use true or false")
        tokenizer.adds_bos = adds_bos
    tokenizer.adds_bos = tokenizer.adds_bos and tokenizer.bos is not None


def guess(tokenizer: Tokenizer, special: Mapping[str, int]) -> None:
    """Set bos and eos by the names that published tokenizers give them."""
    tokenizer.bos = next((special[name] for name in KNOWN_BOS if name in special), None)
    tokenizer.eos = tuple(special[name] for name in KNOWN_EOS if name in special)


MASKS = ("[MASK]", "<mask>")


def mask_id(tokenizer: Tokenizer) -> int:
    """The id that stands for a hidden token: the tokenizer's own, or one beyond its vocabulary."""
    named = tokenizer.special_tokens
    return next((named[name] for name in MASKS if name in named), tokenizer.vocab_size)


def content(value: object) -> str | None:
    """The text of a token that is written as a string or as a mapping with "content"."""
    value = value.get("content") if isinstance(value, Mapping) else value
    return value if isinstance(value, str) else None


def _id(config: Mapping[str, Any], key: str, id_of: Callable[[str], int | None]) -> int:
    name = content(config[key])
    if name is None:
        raise DataError(f"{CONFIG}: {key}", "is not a token", 'write it as a string, or as {"content": ...}')
    id = id_of(name)
    if id is None:
        raise DataError(f"{CONFIG}: {key}", f"{name!r} is not in the vocabulary", "do the files belong together?")
    return id
