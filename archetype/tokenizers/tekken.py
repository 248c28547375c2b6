"""Mistral's tekken.json: byte-level BPE by ranks, with special tokens at the lowest ids."""

from base64 import b64decode, b64encode
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field

from archetype.errors import DataError
from archetype.io.files import DAMAGED, read_json
from archetype.tokenizers.files import validated
from archetype.tokenizers.special_tokens import read_config
from archetype.tokenizers.tiktoken import TiktokenTokenizer
from archetype.tokenizers.tokenizer import Tokenizer

FILE = "tekken.json"
# Special tokens by id that files up to version 7 may leave out (mistral_common/tokens/tokenizers/tekken.py).
UNSAID = (
    "<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]",
    "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]",
)  # fmt: skip
VERSIONS = ("v1", "v2", "v3", "v7")  # versions that may omit them
Count = Annotated[int, Field(strict=True, ge=0, lt=2**24, description="a count")]


class Ranked(BaseModel):
    rank: Count
    token_bytes: str


class Special(BaseModel):
    rank: Count
    token_str: str


class Config(BaseModel):
    pattern: Annotated[str, Field(min_length=1, description="the regular expression that splits a text")]
    default_vocab_size: Count
    default_num_special_tokens: Count
    version: str = ""


class TekkenFile(BaseModel):
    config: Annotated[Config, Field(description="a mapping with pattern, default_vocab_size and version")]
    vocab: Annotated[list[Ranked], Field(description="a list of mappings with rank and token_bytes")]
    special_tokens: Annotated[list[Special] | None, Field(description="a list of mappings with rank and token_str")] = (
        None
    )


class TekkenTokenizer(TiktokenTokenizer):
    """Tokenizer defined by a tekken.json, which is converted to an equivalent rank file."""

    kind = "tekken"
    files = (FILE,)
    other_names = ("tekken*.json",)

    @classmethod
    def open(cls, file: Path) -> Tokenizer:
        ranks, companion = rank_file(read_json(file))
        return TiktokenTokenizer(ranks, companion, read_config(file.parent))


def rank_file(data: dict[str, Any]) -> tuple[bytes, dict[str, Any]]:
    """Convert a tekken.json to the lines of an equivalent rank file, and to its companion file.

    Raises:
        DataError: a key is wrong. The message names it.
    """
    file = validated(TekkenFile, data)
    special, first = _special_tokens(file), file.config.default_num_special_tokens
    count = file.config.default_vocab_size - first
    # a file may list more ranks than its vocabulary uses
    tokens = sorted((token.rank, token.token_bytes) for token in file.vocab)[: max(count, 0)]
    if [rank for rank, _ in tokens] != list(range(count)):
        raise DataError("vocab", f"does not have the ranks from 0 to {count - 1:,}", DAMAGED)
    lines = [f"{_checked(token, rank)} {first + rank}\n" for rank, token in tokens]
    return "".join(lines).encode(), {"pattern": file.config.pattern, "special_tokens": special, "adds_bos": True}


def _special_tokens(file: TekkenFile) -> dict[str, int]:
    count = file.config.default_num_special_tokens
    if file.special_tokens is not None:
        named = {token.token_str: token.rank for token in file.special_tokens}
    elif file.config.version in VERSIONS:
        named = {name: id for id, name in enumerate(UNSAID)}
    else:
        raise DataError("special_tokens", "is missing", "fetch the file again: newer versions name them")
    named |= {f"<SPECIAL_{id}>": id for id in range(count) if id not in named.values()}  # placeholders, as in Mistral's
    if sorted(named.values()) != list(range(count)):
        raise DataError("special_tokens", f"does not have the ranks from 0 to {count - 1:,}, once each", DAMAGED)
    return named


def _checked(token: str, rank: int) -> str:
    try:
        return b64encode(b64decode(token, validate=True)).decode()
    except ValueError:
        raise DataError(f"vocab: rank {rank}", "token_bytes is not base64", DAMAGED) from None


KINDS = (TekkenTokenizer,)
