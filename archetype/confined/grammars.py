"""A grammar tried out, for a process that can be killed: its compiler may recurse, build and search without bound."""

from functools import cache
from typing import Any

import llguidance

LONGEST = 1000  # characters of what is wrong: it repeats the grammar
STEPS = 64  # tokens of a text that are tried: what grows with each of them shows


def answer(kind: str, source: str) -> str | None:
    """Follow a grammar for some tokens, each a byte.

    Args:
        kind: json_schema, regex or lark.
        source: of the grammar.

    Returns:
        What is wrong with it; None where nothing is.
    """
    text = getattr(llguidance.LLMatcher, f"grammar_from_{kind}")(source)
    matcher = llguidance.LLMatcher(_bytes(), text, log_level=0)
    for _ in range(STEPS):
        if matcher.is_error():
            return str(matcher.get_error()).partition("<state>")[0][:LONGEST]
        if matcher.is_stopped():
            break
        allowed = int.from_bytes(matcher.compute_bitmask(), "little")
        matcher.consume_token(allowed.bit_length() - 1)
    return None


class _Bytes:
    """256 tokens of a byte each, and one that ends a text."""

    bos_token_id, eos_token_id, special_token_ids = None, 256, (256,)
    tokens = (*(bytes([byte]) for byte in range(256)), b"")

    def __call__(self, text: str | bytes) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


@cache
def _bytes() -> Any:
    return llguidance.LLTokenizer(llguidance.TokenizerWrapper(_Bytes()))
