"""What a rank file does not say: the pattern that splits a text into words, and the special tokens.

The published files are told by their number of ranks. Sources: tiktoken_ext/openai_public.py (OpenAI) and
llama/tokenizer.py (Llama 3, Meta).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from archetype.errors import DataError

COMPANION = "tiktoken.json"

GPT2 = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"
CL100K = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]"
    r"|\s+(?!\S)|\s"
)
O200K = "|".join(
    (
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class Format:
    """How a text is split before its bytes are merged, and the tokens that stand for no text.

    `bos` and `eos` are names among the special tokens; None leaves them to their usual names.
    """

    pattern: str
    special_tokens: dict[str, int] = field(default_factory=dict)
    adds_bos: bool = False
    bos: str | None = None
    eos: tuple[str, ...] | None = None


def of_size(ranks: int) -> Format:
    """The format of the published file with this many ranks.

    Raises:
        DataError: none has; asks for the companion file.
    """
    match ranks:
        case 50_256:
            return Format(GPT2, {"<|endoftext|>": 50256})
        case 50_280:  # p50k: runs of spaces after the end-of-text's id
            return Format(GPT2, {"<|endoftext|>": 50256})
        case 100_256:
            return Format(CL100K, _openai(100257, prefix=100258, middle=100259, suffix=100260, endofprompt=100276))
        case 199_998:
            return Format(O200K, {"<|endoftext|>": 199999, "<|endofprompt|>": 200018})
        case 128_000:
            return Format(LLAMA3, {name: 128_000 + n for n, name in enumerate(_llama3())}, adds_bos=True)
    remedy = f'put a {COMPANION} beside it: {{"pattern": "...", "special_tokens": {{"<|endoftext|>": {ranks}}}}}'
    raise DataError("", f"its {ranks:,} ranks belong to no published tokenizer", remedy)


def of_companion(data: Mapping[str, Any]) -> Format:
    """The format that a companion file describes.

    Raises:
        DataError: names the key at fault.
    """
    pattern, special = data.get("pattern"), data.get("special_tokens", {})
    if not isinstance(pattern, str) or not pattern:
        raise DataError(f"{COMPANION}: pattern", "is missing or not text", "give the regular expression that splits")
    if not isinstance(special, dict) or not all(type(id) is int and 0 <= id < 2**31 for id in special.values()):
        raise DataError(f"{COMPANION}: special_tokens", "is not a mapping to ids", 'write {"<|endoftext|>": 50256}')
    if len(set(special.values())) != len(special):
        raise DataError(f"{COMPANION}: special_tokens", "two of them have the same id", "give each its own")
    bos, eos, adds_bos = data.get("bos"), data.get("eos"), data.get("adds_bos", False)
    named = [name for name in (bos, *(eos if isinstance(eos, list) else [])) if name is not None]
    if not (eos is None or isinstance(eos, list)) or not all(isinstance(n, str) and n in special for n in named):
        raise DataError(f"{COMPANION}: bos, eos", "are not names of special tokens", 'write "bos": NAME, "eos": [NAME]')
    if not isinstance(adds_bos, bool):
        raise DataError(f"{COMPANION}: adds_bos", f"{adds_bos!r} is neither true nor false", "use true or false")
    return Format(pattern, special, adds_bos, bos, None if eos is None else tuple(eos))


def _openai(end: int, *, prefix: int, middle: int, suffix: int, endofprompt: int) -> dict[str, int]:
    fill_in = {"<|fim_prefix|>": prefix, "<|fim_middle|>": middle, "<|fim_suffix|>": suffix}
    return {"<|endoftext|>": end, **fill_in, "<|endofprompt|>": endofprompt}


def _llama3() -> list[str]:
    """Llama 3's 256 names; 3.1 and 3.2 give some of the reserved ones new names, and the same ids to all others."""
    first = ["<|begin_of_text|>", "<|end_of_text|>", *map(_reserved, range(4))]
    headers = ["<|start_header_id|>", "<|end_header_id|>", _reserved(4), "<|eot_id|>"]
    return [*first, *headers, *map(_reserved, range(5, 251))]


def _reserved(n: int) -> str:
    return f"<|reserved_special_token_{n}|>"
