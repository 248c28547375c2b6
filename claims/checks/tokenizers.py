"""Vocabularies: bytes per token, and texts that cannot be encoded."""

import ast
import random
from collections.abc import Sequence
from itertools import pairwise
from math import log2
from pathlib import Path

from archetype.data.library_text import library_text
from archetype.errors import DataError
from archetype.studies.outcome import Axes, Control, Curve, Outcome
from archetype.studies.registry import check
from archetype.tokenizers import Tokenizer, train_tokenizer
from archetype.tokenizers.token_bytes import TokenBytes
from claims.fit import line

PLANES = ((0x20, 0x7F), (0x80, 0x800), (0x800, 0xD800), (0xE000, 0x10000), (0x10000, 0x20000), (0x20000, 0x110000))
CONTROLS = (0x00, 0x20)


def texts(quick: bool) -> tuple[str, str, str]:
    """Return English to train on, held-out English, and source code: docstrings and code of Python's library."""
    if quick:
        from pydoc_data.topics import topics

        passages = [text for name, text in sorted(topics.items())][:40]
    else:
        passages = library_text().split("\n\n")
    held_out = passages[::10]
    training = [passage for number, passage in enumerate(passages) if number % 10]
    return "\n\n".join(training), "\n\n".join(held_out), Path(ast.__file__).read_text(encoding="utf-8")


def bytes_a_token(tokenizer: Tokenizer, text: str) -> float:
    return len(text.encode()) / len(tokenizer.encode(text))


@check("tokenizers.bytes_a_token", claim=16, part="a", kind="simulation")
def lengths(quick: bool) -> Outcome:
    """Bytes per token of held-out text grow with the logarithm of the vocabulary."""
    training, held_out, code = texts(quick)
    sizes = (300, 400, 600, 1000) if quick else (512, 1024, 2048, 4096, 8192)
    english, other = [], []
    for size in sizes:
        tokenizer = train_tokenizer("byte_bpe", [training], size)
        english.append(bytes_a_token(tokenizer, held_out))
        other.append(bytes_a_token(tokenizer, code))
    single = bytes_a_token(train_tokenizer("bytes", [], None), held_out)
    logarithmic = line([log2(size) for size in sizes], english)
    rises = all(one < two for one, two in pairwise([single, *english]))
    proportional = english[0] * sizes[-1] / sizes[0]
    x = tuple(map(float, sizes))
    axes: Axes = {"x_name": "vocabulary", "y_name": "bytes a token", "log_x": True}
    text = ", ".join(f"{value:.2f} at {size:,}" for size, value in zip(sizes, english, strict=True))
    return Outcome(
        rises and logarithmic.r_squared > 0.97 and single == 1.0,
        f"held-out English has {single:.2f} bytes a token as bytes and {text} of byte-level BPE: "
        f"{logarithmic.slope:.2f} "
        f"more with each doubling (R^2 {logarithmic.r_squared:.3f}); source code by the same tables {other[0]:.2f} to "
        f"{other[-1]:.2f}",
        {f"english_{size}": value for size, value in zip(sizes, english, strict=True)}
        | {f"code_{size}": value for size, value in zip(sizes, other, strict=True)}
        | {"per_doubling": logarithmic.slope, "r_squared": logarithmic.r_squared},
        (Control("growth in proportion to the vocabulary (relative error)", proportional / english[-1] - 1, 0.1),),
        (
            Curve("English", x, tuple(english), **axes),
            Curve("source code", x, tuple(other), **axes),
        ),
    )


@check("tokenizers.round_trip", claim=16, part="b")
def round_trip(quick: bool) -> Outcome:
    """Byte-level BPE decodes every text to itself; words, characters and plain BPE do not."""
    training, _, _ = texts(True)
    strings = random_strings(2000 if quick else 100_000)
    tables = {kind: train_tokenizer(kind, [training], size) for kind, size in SIZES.items()}
    byte_level = tables["byte_bpe"]
    wrong = sum(byte_level.decode(byte_level.encode(string)) != string for string in strings)
    wrong += sum(byte_level.decode(byte_level.encode(chr(code))) != chr(code) for code in range(0x20))
    bytes_of = TokenBytes(byte_level)
    alphabet = {token for id in range(byte_level.vocab_size) if len(token := bytes_of(id)) == 1}
    unknown = {kind: share_not_given_back(tables[kind], strings) for kind in ("bpe", "words", "characters")}
    text = ", ".join(f"{share:.0%} of them by {kind}" for kind, share in unknown.items())
    return Outcome(
        wrong == 0 and len(alphabet) == 256,
        f"{len(strings):,} strings over all planes of Unicode come back as they were, and all {len(alphabet)} bytes "
        "are "
        f"tokens; lost are {text}: byte-level BPE starts from 256 tokens and needs no larger table for it",
        {"strings": len(strings), "wrong": wrong, "bytes": len(alphabet)}
        | {f"lost_{k}": v for k, v in unknown.items()},
        tuple(
            Control(f"a table of kind {kind} (share of strings lost)", share, 1e-3) for kind, share in unknown.items()
        ),
    )


SIZES = {"byte_bpe": 600, "bpe": 600, "words": 2000, "characters": None}


def random_strings(number: int) -> Sequence[str]:
    """Return strings of 1 to 12 characters, from one plane each or from all, without halves of surrogate pairs."""
    draw = random.Random(0)
    strings = []
    for _ in range(number):
        planes = PLANES if draw.random() < 0.3 else [draw.choice((*PLANES, CONTROLS))]
        characters = (chr(draw.randrange(*draw.choice(planes))) for _ in range(draw.randint(1, 12)))
        strings.append("".join(characters))
    return strings


def share_not_given_back(tokenizer: Tokenizer, strings: Sequence[str]) -> float:
    """Return the share of strings that a tokenizer refuses, or decodes to another text."""
    return sum(not _comes_back(tokenizer, string) for string in strings) / len(strings)


def _comes_back(tokenizer: Tokenizer, string: str) -> bool:
    try:
        return tokenizer.decode(tokenizer.encode(string)) == string
    except DataError:
        return False
