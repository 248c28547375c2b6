"""Data files that nobody would write: each is read, or refused in one line with its place; no trace, nothing else."""

import csv
import io
import json
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from archetype.apps.cli.prompt_file import read_prompts
from archetype.data.pairs import read_pairs
from archetype.data.records import TEXT_AND_LABEL, read_records
from archetype.data.sources import Sources
from archetype.errors import DataError

TEXTS = (
    "plain", "", " ", "a,b", 'say "so"', "two\nlines", "cr\rhere", "\x00", "\ufeff", "\u2028 \x85 \x1c", "é世界🙂",
    "x" * 140_000,
    "\\", "'", "\t", '"', "null", "\ud83d", "\ude00x", "=1+1",
)  # fmt: skip
# What happens to a whole file on its way.
DAMAGE: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "none": lambda data, draw: data,
    "byte-order mark": lambda data, draw: b"\xef\xbb\xbf" + data,
    "cut": lambda data, draw: data[: draw.randrange(len(data))],
    "NUL": lambda data, draw: _put(data, draw, b"\x00"),
    "a quote": lambda data, draw: _put(data, draw, b'"'),
    "a byte": lambda data, draw: _put(data, draw, bytes([draw.randrange(256)])),
    "a surrogate's bytes": lambda data, draw: _put(data, draw, b"\xed\xa0\xbd"),
    "line ends": lambda data, draw: data.replace(b"\n", draw.choice((b"\r\n", b"\r", b"\n\n"))),
    "UTF-16": lambda data, draw: data.decode("utf-8", "replace").encode("utf-16"),
    "deep": lambda data, draw: b'{"text": ' + b"[" * 100_000,
    "a number": lambda data, draw: b'{"text": 1' + b"0" * 5000 + b', "label": NaN}\n',
}


def _put(data: bytes, draw: random.Random, piece: bytes) -> bytes:
    place = draw.randrange(len(data) + 1)
    return data[:place] + piece + data[place:]


def json_lines(records: list[dict[str, str]], draw: random.Random) -> bytes:
    lines = [json.dumps(record, ensure_ascii=draw.random() < 0.7) for record in records]
    return "\n".join(lines).encode("utf-8", "surrogatepass")


def csv_file(records: list[dict[str, str]], draw: random.Random) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(records[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue().encode("utf-8", "surrogatepass")


def strings(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from (text for item in value.values() for text in strings(item))
    elif isinstance(value, list | tuple):
        yield from (text for item in value for text in strings(item))


def _documents(file: Path) -> list[str]:
    sources = Sources((str(file),))
    return [text for piece in sources.pieces() for text in sources.documents(piece)]


READERS: dict[str, tuple[tuple[str, ...], Callable[[Path], Any]]] = {
    "records": (("text", "label"), lambda file: read_records(file, TEXT_AND_LABEL)),
    "pairs": (("source", "target"), lambda file: read_pairs(file)[:2]),
    "documents": (("text",), _documents),
    "prompts": (("prompt",), lambda file: [prompt.text for prompt in read_prompts(file)]),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_data_file_is_read_or_refused_in_one_line(damage: str, tmp_path: Path) -> None:
    draw = random.Random(damage)
    read = 0
    for number in range(60):
        name = draw.choice(list(READERS))
        fields, reader = READERS[name]
        is_csv = name in ("records", "pairs") and draw.random() < 0.5
        records = [{field: draw.choice(TEXTS) for field in fields} for _ in range(draw.randint(1, 4))]
        file = tmp_path / f"{number}.{'csv' if is_csv else 'jsonl'}"
        file.write_bytes(DAMAGE[damage]((csv_file if is_csv else json_lines)(records, draw), draw))
        try:
            records_read = reader(file)
        except DataError as error:
            assert "\n" not in str(error) and str(file) in error.place, (damage, error)
            continue
        read += 1
        "".join(strings(records_read)).encode()
        if damage in ("none", "byte-order mark") and name in ("records", "pairs"):
            assert [*strings(records_read)] == ([*strings(records)] if name == "records"
                else [record[field] for field in fields for record in records])  # fmt: skip
    assert read or damage in ("a surrogate's bytes", "UTF-16", "deep", "a number")


def test_a_long_field_and_half_a_pair(tmp_path: Path) -> None:
    long = "x" * 200_000
    (tmp_path / "a.csv").write_text(f"text,label\n{long},1\n")
    before = csv.field_size_limit()
    fields = TEXT_AND_LABEL
    assert read_records(tmp_path / "a.csv", fields) == [{"text": long, "label": "1"}]
    assert csv.field_size_limit() == before
    (tmp_path / "a.jsonl").write_text(
        '{"text": "fine \\ud83d\\ude00", "label": "1"}\n{"text": "x", "label": "\\ud83d"}\n'
    )
    with pytest.raises(DataError) as caught:
        read_records(tmp_path / "a.jsonl", fields)
    cause = "contains an unpaired surrogate (U+D83D), which is not a character; replace or remove it"
    assert str(caught.value) == f"{tmp_path / 'a.jsonl'}: line 2: {cause}"
    for text, cause in {
        'text,label\n"a,1\n': "line 2: is not CSV: unexpected end of data",
        "text,text,label\na,b,c\n": "line 1: has two columns named text",
    }.items():
        (tmp_path / "a.csv").write_text(text)
        with pytest.raises(DataError, match=cause):
            read_records(tmp_path / "a.csv", fields)
