"""Checks of a tokenizer.json before the library opens it.

The library trusts its files: an invalid file causes a panic, which it prints, or ends the process. So the effect of
each step on the length of a text is bounded, and the tokenizer is tried on sample texts with its output discarded.
"""

import base64
import binascii
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from archetype.errors import DataError
from archetype.io.files import DAMAGED
from archetype.tokenizers.files import library_errors

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

FILE = "tokenizer.json"
STEPS = ("normalizer", "pre_tokenizer", "post_processor", "decoder", "truncation", "padding")
MAX_STEP = 2**16  # characters of JSON; published ones have about 5,000
MAX_GROWTH = 1024  # largest factor by which steps may lengthen a text; published ones reach 8 by this estimate
CHARSMAP = "precompiled_charsmap"
# texts that expose invalid patterns and tables: many kinds of characters, runs of them, and no text
SAMPLES: tuple[str, ...] = ("", "Hello, world! don't\r\n\t <s></s> ▁é e\u0301 αβγ 你好 ﬁ 🙂\x00")
SAMPLES += tuple(f"{character * 40}!{character * 40}zyxcba0\n" for character in "aA1 .\n_é你")


def check_definition(definition: Mapping[str, Any]) -> None:
    """Refuse definitions that would crash the library and this process, or would exhaust memory.

    Raises:
        DataError: a step of the definition is invalid. The message names the step.
    """
    match definition.get("model"):
        case {"continuing_subword_prefix": str(prefix), "merges": [*merges]} if prefix and _are_pairs(merges):
            # the library slices the prefix off without a check, and panics
            if not all(pair(merge)[1].startswith(prefix) for merge in merges):
                cause = f"a merge's second part lacks the prefix {prefix!r:.80}"
                raise DataError(f"{FILE}: model.merges", cause, DAMAGED)
        case {}:
            pass
        case _:
            raise DataError(f"{FILE}: model", "is missing", DAMAGED)
    for name in STEPS:
        steps = [*_steps(definition.get(name))]
        size = len(json.dumps(definition.get(name))) - sum(len(str(step.get(CHARSMAP, ""))) for step in steps)
        # steps in sequence multiply
        growth = math.prod(map(_growth, steps))
        if size > MAX_STEP or growth > MAX_GROWTH:
            cause = f"has {size:,} characters" if size > MAX_STEP else f"can make a text {growth:,.0f} times as long"
            raise DataError(f"{FILE}: {name}", cause, DAMAGED)
        for step in steps:
            if CHARSMAP in step and not _is_charsmap(step[CHARSMAP]):
                raise DataError(f"{FILE}: {name}: {CHARSMAP}", "is damaged", DAMAGED)


def try_backend(backend: "Backend") -> None:
    """Encode and decode sample texts, so that panics of the library occur here and are reported.

    Raises:
        DataError: the library panics. The error quotes the panic's message.
    """
    with without_panics(), library_errors(FILE, "cannot be used", DAMAGED):
        for text in SAMPLES:
            with suppress(Exception):  # other errors concern the text, such as a character without a token
                backend.decode([0, 1, 1, *backend.encode(text).ids[:100]])


@contextmanager
def without_panics() -> Iterator[None]:
    """Discard standard error within the block, because the library prints its panics there.

    The block calls the library and nothing else: a warning inside would be discarded, too.
    """
    try:
        before = os.dup(2)
    except OSError:  # standard error is closed
        yield
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)
        os.close(nowhere)


def pair(merge: str | Sequence[str]) -> Sequence[str]:
    # older files write a merge as one string
    return merge.split(" ", 1) if isinstance(merge, str) else merge


def _are_pairs(merges: Sequence[object]) -> bool:
    # the library reports malformed merges itself
    listed = all(isinstance(merge, list) and [type(part) for part in merge] == [str, str] for merge in merges)
    return listed or all(isinstance(merge, str) and " " in merge for merge in merges)


def _steps(value: Any) -> Iterator[Mapping[str, Any]]:
    # a stack instead of recursion, since the file may nest deeply
    waiting = [value]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            yield part
            waiting += part.values()
        elif isinstance(part, list):
            waiting += part


def _growth(step: Mapping[str, Any]) -> float:
    match step:
        case {"type": "Replace", "pattern": {"String": str(pattern)}, "content": str(content)}:
            return max(1.0, len(content) / max(1, len(pattern))) if pattern else 1.0 + len(content)
        case {"type": "Replace", "content": str(content)}:
            return 1.0 + len(content) if len(content) > 1 else 1.5  # the pattern may match the empty string
        case {"type": "Prepend", "prepend": str(text)}:
            return 1.0 + len(text)
        case {"Sequence": _}:
            return 1.5  # a post-processor may repeat the text
    return 1.0


def _is_charsmap(value: object) -> bool:
    # all lookups must stay within the trie and the replacements; see `Charsmap` for the format
    import numpy as np

    try:
        data = base64.b64decode(value, validate=True) if isinstance(value, str) else b""
    except (binascii.Error, ValueError):
        return False
    size = int.from_bytes(data[:4], "little")
    if not size or size % 1024 or size > len(data) - 4:
        return False
    units = np.frombuffer(data, np.uint32, size // 4, 4).astype(np.int64)  # (size / 4,)
    strings = data[4 + size :]
    # bit 9 scales the offset by 256
    children = np.arange(len(units)) ^ ((units >> 10) << ((units & 512) >> 6))
    is_node = units < 2**31
    is_node[0] = True
    if (children[is_node] >= len(units)).any():
        return False
    values = units[children[is_node & (units & 256 != 0)]] & (2**31 - 1)  # bit 8 marks nodes with a leaf
    starts = np.frombuffer(strings + b"\0", np.uint8)
    is_utf8 = strings.decode(errors="ignore").encode() == strings
    return bool(is_utf8 and (values <= len(strings)).all() and (starts[values] & 0xC0 != 0x80).all())
