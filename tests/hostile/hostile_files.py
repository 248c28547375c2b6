"""A generator of hostile files: damaged bytes, values that no field expects, and what is no file at all.

A class is a sound folder, the file in it that is spoiled, and the command that reads it. The same class and number
always give the same case.
"""

import copy
import gzip
import json
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ODD: list[Any] = [
    None, True, False, -1, 0, 1, 2, 1.5, 1e308, float("nan"), 10**12, 2**63, 10**400, "", "x", "1" * 5000, "y" * 10**6,
    "\u0000", "\ud800", "../x", "/dev/zero", [], {}, [[]], [None], {"": 1}, [{"a": []}], {"kind": "x"}, {"type": "x"},
]  # fmt: skip


@dataclass(frozen=True)
class Class:
    """One sort of file.

    Attributes:
        sound: the folder that is copied.
        file: the one of it that is spoiled, or a new one.
        command: of `archetype`; {} stands for the folder.
        texts: what the file may hold instead, beside what is drawn.
    """

    sound: Path
    file: str
    command: tuple[str, ...]
    texts: tuple[str | bytes, ...] = ()

    @property
    def specials(self) -> list[Callable[[Path], None]]:
        """What is no ordinary file, and the texts."""
        texts = [text.encode() if isinstance(text, str) else text for text in self.texts]
        return [*SPECIALS, *(lambda file, text=text: file.write_bytes(text) and None for text in texts)]

    def spoil(self, folder: Path, number: int) -> None:
        """Make case `number` of a copy of the sound folder."""
        file = folder / self.file
        draw = random.Random(f"{self.file} {self.command} {number}")
        data = file.read_bytes() if file.is_file() else b""
        if number < len(self.specials):
            file.unlink(missing_ok=True)
            self.specials[number](file)
        elif draw.random() < 0.6 and (changed := spoiled_json(draw, data)) is not None:
            file.write_bytes(changed)
        elif draw.random() < 0.6 and file.suffix == ".jsonl":
            lines = data.splitlines()
            place = draw.randrange(len(lines))
            lines[place] = spoiled_json(draw, lines[place]) or b""
            file.write_bytes(b"\n".join(lines) + b"\n")
        else:
            file.write_bytes(spoiled_bytes(draw, data))


def spoiled_json(draw: random.Random, data: bytes) -> bytes | None:
    """JSON with one to three values in the wrong place; None for what is not JSON."""
    try:
        value = json.loads(data)
    except ValueError:
        return None
    for _ in range(draw.randint(1, 3)):
        places = list(_places(value))
        if not places:
            break
        inside, key = draw.choice(places)
        match draw.randrange(5):
            case 0:
                del inside[key]
            case 1 if isinstance(inside, dict):
                inside[draw.choice(["", "more", "kind", "x" * 300, "a\nb"])] = copy.deepcopy(draw.choice(ODD))
            case 2 if isinstance(inside, list):
                inside += copy.deepcopy(inside[: draw.randrange(1, 400)])
            case 3 if isinstance(inside[key], int) and not isinstance(inside[key], bool):
                inside[key] = draw.choice([-inside[key], inside[key] * 10**6, inside[key] + 1, str(inside[key])])
            case _:
                inside[key] = copy.deepcopy(draw.choice(ODD))
    return json.dumps(value).encode()


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every value within another, by what holds it and its key; of many alike, the first."""
    match value:
        case dict():
            inner: list[tuple[Any, Any]] = list(value.items())
        case list():
            inner = list(enumerate(value))
        case _:
            inner = []
    for key, one in inner[:40]:
        yield value, key
        yield from _places(one)


def spoiled_bytes(draw: random.Random, data: bytes) -> bytes:
    """Bytes cut, turned, repeated, moved, or put in from nowhere."""
    changed = bytearray(data)
    for _ in range(draw.choice([1, 1, 2, 10])):
        first = draw.randrange(len(changed) + 1)
        last = min(len(changed), first + draw.choice([1, 4, 8, 100, 10**4]))
        match draw.randrange(6):
            case 0:
                del changed[first:]
            case 1:
                del changed[first:last]
            case 2:
                changed[first:last] = draw.randbytes(last - first)
            case 3:
                changed[first:first] = draw.randbytes(draw.choice([1, 8, 1000]))
            case 4:
                changed[first:first] = changed[first:last] * draw.choice([1, 2, 50])
            case _:
                changed[first:last] = draw.choice([b"\xff", b"\0", b"\x7f", b"9"]) * (last - first)
    return bytes(changed)


def _sparse(file: Path) -> None:
    with file.open("wb") as empty:
        empty.truncate(3 * 2**30)


def _bomb(file: Path) -> None:
    packed = gzip.compress(b"\0" * 2**24)
    file.write_bytes(packed * 64)  # a gigabyte


SPECIALS: list[Callable[[Path], None]] = [
    os.mkfifo,
    Path.mkdir,
    lambda file: None,
    Path.touch,
    _sparse,
    _bomb,
    lambda file: file.symlink_to(file),
    lambda file: file.symlink_to("/dev/zero"),
    lambda file: file.symlink_to("/dev/urandom"),
    lambda file: file.symlink_to("/proc/kmsg"),
    lambda file: file.write_bytes(b"[" * 10**6) and None,
    lambda file: file.write_bytes(b'{"a":' * 10**5) and None,
    lambda file: file.write_bytes(b"[[],{}" + b",[],{}" * 2**20 + b"]") and None,
    lambda file: file.write_bytes(b"9" * 10**6) and None,
    lambda file: file.write_bytes(random.Random(0).randbytes(10**5)) and None,
]
