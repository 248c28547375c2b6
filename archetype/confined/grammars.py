"""Try out a grammar in a child process, since compiling it may take unbounded time and memory."""

import ctypes
import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import lru_cache
from typing import Any

import llguidance

from archetype.errors import shorten

LONGEST = 1000  # characters of an error, which may repeat the grammar
STEPS = 64  # tokens to follow, to detect growth per token
PLACED = 20_000  # characters of a JSON schema; in a larger one, the faulty part is not searched
LONGEST_PLACE = 100  # characters
PER_CHARACTER = 10_000  # bytes of a compiled grammar; an upper bound where the system cannot measure it


def answer(kind: str, source: str, whitespace: str | None, num_tokens: int = 0) -> tuple[str | None, int]:
    """Compile a grammar and follow it for some single-byte tokens.

    Args:
        kind: json_schema, regex or lark.
        whitespace: pattern of whitespace between JSON tokens; None for any.
        num_tokens: size of the vocabulary if the grammar refers to token ids; otherwise 0.

    Returns:
        The error, or None; the size of the compiled grammar in bytes.
    """
    text = text_of(kind, source, whitespace)
    tokenizer, before = _bytes(num_tokens), allocated()
    matcher = llguidance.LLMatcher(tokenizer, text, log_level=0, limits=limits())
    for _ in range(STEPS):
        if matcher.is_stopped():
            break
        mask = int.from_bytes(matcher.compute_bitmask(), "little")
        matcher.consume_token(mask.bit_length() - 1)
    size = PER_CHARACTER * len(source) if before is None else (allocated() or 0) - before
    fault = fault_of(matcher)
    if fault is not None and kind == "json_schema" and len(source) <= PLACED:
        with suppress(RecursionError):  # the schema is nested too deeply; the error says so
            fault = f"{place_of(json.loads(source), fault)}{fault}"
    return fault, max(size, len(source))


def place_of(schema: object, fault: str) -> str:
    """Return the path of the innermost part of a JSON schema that alone causes the error, as "properties.a: "."""
    path: list[str] = []
    inner: list[str] | None = []
    while inner is not None:
        path += inner
        inner, schema = next(
            ((keys, part) for keys, part in _parts(schema) if _fault_alone(part) == fault), (None, schema)
        )
    return f"{shorten('.'.join(path), LONGEST_PLACE)}: " if path else ""


def _parts(schema: object) -> Iterator[tuple[list[str], object]]:
    # mappings up to two levels deep, with their keys: each may be a schema
    for key, value in _items(schema):
        if isinstance(value, dict):
            yield [key], value
        for inner_key, inner in _items(value):
            if isinstance(inner, dict):
                yield [key, inner_key], inner


def _items(value: object) -> Iterable[tuple[str, object]]:
    if isinstance(value, dict):
        return value.items()
    return ((str(index), item) for index, item in enumerate(value)) if isinstance(value, list) else ()


def _fault_alone(schema: object) -> str | None:
    text = text_of("json_schema", json.dumps(schema), None)
    return fault_of(llguidance.LLMatcher(_bytes(0), text, log_level=0, limits=limits()))


def text_of(kind: str, source: str, whitespace: str | None) -> str:
    """Convert a grammar to llguidance's format; same arguments as `answer`.

    Raises:
        ValueError: the schema is not a JSON object.
    """
    matcher = llguidance.LLMatcher
    if kind == "json_schema":
        defaults: Any = None if whitespace is None else {"whitespace_pattern": whitespace}
        return matcher.grammar_from_json_schema(source, defaults)  # the schema's own "x-guidance" takes precedence
    return matcher.grammar_from_regex(source) if kind == "regex" else matcher.grammar_from_lark(source)


def limits() -> Any:
    """Return llguidance's parser limits for each token."""
    # The number of items in a parser row bounds the time: a row of 1,000 items takes 8 kB, and 40 ms if all pairs are
    # combined, as in `start: start start | "a"`. A JSON schema needs 4 items for each property that is still possible.
    return llguidance.LLParserLimits(max_items_in_row=1000, max_lexer_states=100_000, verbose_errors=False)


def fault_of(matcher: Any) -> str | None:
    """Return the error of a matcher, or None."""
    return str(matcher.get_error()).partition("<state>")[0].strip()[:LONGEST] if matcher.is_error() else None


def allocated() -> int | None:
    """Return the bytes that this process has allocated and not freed; None if they cannot be measured."""
    if sys.platform != "linux" or not hasattr(library := ctypes.CDLL(None), "mallinfo2"):
        return None
    library.mallinfo2.restype = _Allocations
    allocations = library.mallinfo2()
    return int(allocations.uordblks + allocations.hblkhd)


class _Allocations(ctypes.Structure):
    """`struct mallinfo2` of the GNU C library."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    ]


class _Bytes:
    """Vocabulary of 256 bytes, an end token, and tokens without text up to `num_tokens`."""

    bos_token_id, eos_token_id, special_token_ids = None, 256, (256,)

    def __init__(self, num_tokens: int) -> None:
        self.tokens = (*(bytes([byte]) for byte in range(256)), *[b""] * max(1, num_tokens - 256))

    def __call__(self, text: str | bytes) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


@lru_cache(maxsize=4)
def _bytes(num_tokens: int) -> Any:
    return llguidance.LLTokenizer(llguidance.TokenizerWrapper(_Bytes(num_tokens)))
