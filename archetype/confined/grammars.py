"""A grammar tried out, for a process that can be killed: its compiler may recurse, build and search without bound."""

import ctypes
import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import lru_cache
from typing import Any

import llguidance

from archetype.errors import shorten

LONGEST = 1000  # characters of what is wrong: it repeats the grammar
STEPS = 64  # tokens of a text that are tried: what grows with each of them shows
PLACED = 20_000  # characters of a JSON schema whose fault is looked for part by part
LONGEST_PLACE = 100  # characters
PER_CHARACTER = 10_000  # bytes of a compiled grammar at most, where the system does not say how many it takes


def answer(kind: str, source: str, whitespace: str | None, num_tokens: int = 0) -> tuple[str | None, int]:
    """Follow a grammar for some tokens, each a byte.

    Args:
        kind: json_schema, regex or lark.
        source: of the grammar.
        whitespace: at one place of JSON, as an expression; None for any.
        num_tokens: of the tokenizer whose tokens the grammar names by their ids; 0 where it names none.

    Returns:
        What is wrong with it, None where nothing is; and the bytes that it takes.
    """
    text = text_of(kind, source, whitespace)
    tokenizer, before = _bytes(num_tokens), allocated()
    matcher = llguidance.LLMatcher(tokenizer, text, log_level=0, limits=limits())
    for _ in range(STEPS):
        if matcher.is_stopped():
            break
        mask = int.from_bytes(matcher.compute_bitmask(), "little")
        matcher.consume_token(mask.bit_length() - 1)
    taken = PER_CHARACTER * len(source) if before is None else (allocated() or 0) - before
    fault = fault_of(matcher)
    if fault is not None and kind == "json_schema" and len(source) <= PLACED:
        with suppress(RecursionError):  # then it is too deep, as its fault says
            fault = f"{place_of(json.loads(source), fault)}{fault}"
    return fault, max(taken, len(source))


def place_of(schema: object, fault: str) -> str:
    """Where a JSON schema is wrong, such as "properties.a: ": its innermost part that has the same fault alone."""
    path: list[str] = []
    inner: list[str] | None = []
    while inner is not None:
        path += inner
        inner, schema = next(
            ((keys, part) for keys, part in _parts(schema) if _fault_alone(part) == fault), (None, schema)
        )
    return f"{shorten('.'.join(path), LONGEST_PLACE)}: " if path else ""


def _parts(schema: object) -> Iterator[tuple[list[str], object]]:
    """The mappings in a mapping or list and in these, each with its keys: one of both is a schema."""
    for key, value in _items(schema):
        if isinstance(value, dict):
            yield [key], value
        for inner_key, inner in _items(value):
            if isinstance(inner, dict):
                yield [key, inner_key], inner


def _items(value: object) -> Iterable[tuple[str, object]]:
    if isinstance(value, dict):
        return value.items()
    return ((str(index), one) for index, one in enumerate(value)) if isinstance(value, list) else ()


def _fault_alone(schema: object) -> str | None:
    text = text_of("json_schema", json.dumps(schema), None)
    return fault_of(llguidance.LLMatcher(_bytes(0), text, log_level=0, limits=limits()))


def text_of(kind: str, source: str, whitespace: str | None) -> str:
    """A grammar as llguidance reads it; arguments as for `answer`.

    Raises:
        ValueError: it is no JSON object.
    """
    matcher = llguidance.LLMatcher
    if kind == "json_schema":
        defaults: Any = None if whitespace is None else {"whitespace_pattern": whitespace}
        return matcher.grammar_from_json_schema(source, defaults)  # the schema's own "x-guidance" comes after these
    return matcher.grammar_from_regex(source) if kind == "regex" else matcher.grammar_from_lark(source)


def limits() -> Any:
    """What each step of a grammar may take; llguidance counts, and the time follows.

    A row of 1,000 items takes 40 ms where each is combined with each, as in `start: start start | "a"`, and 8 kB; the
    row of a JSON schema has 4 items for each property that may still come.
    """
    return llguidance.LLParserLimits(max_items_in_row=1000, max_lexer_states=100_000, verbose_errors=False)


def fault_of(matcher: Any) -> str | None:
    """Why a text cannot be followed any more; None where it can."""
    return str(matcher.get_error()).partition("<state>")[0].strip()[:LONGEST] if matcher.is_error() else None


def allocated() -> int | None:
    """Bytes that this process has allocated and not freed; None where only the system could say."""
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
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
        )
    ]  # fmt: skip


class _Bytes:
    """256 tokens of a byte each, one that ends a text, and others without a text."""

    bos_token_id, eos_token_id, special_token_ids = None, 256, (256,)

    def __init__(self, num_tokens: int) -> None:
        self.tokens = (*(bytes([byte]) for byte in range(256)), *[b""] * max(1, num_tokens - 256))

    def __call__(self, text: str | bytes) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


@lru_cache(maxsize=4)
def _bytes(num_tokens: int) -> Any:
    return llguidance.LLTokenizer(llguidance.TokenizerWrapper(_Bytes(num_tokens)))
