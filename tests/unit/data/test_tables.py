"""Files of records in every form say the same; bad records are refused with their place, or left out and counted."""

import csv
import gzip
import io
import json
from pathlib import Path

import pytest

from archetype.data.records import TEXT_AND_LABEL, read_records
from archetype.data.skipping import read_counting, sentence, skipping
from archetype.data.sources import Sources
from archetype.errors import DataError

RECORDS = [
    {"text": 'He said "yes",\nand left.', "label": "a"},
    {"text": "semi;colon, comma\tand tab", "label": "b"},
    {"text": "é世界🙂", "label": "a"},
]


def table(delimiter: str, line_end: str = "\n") -> bytes:
    file = io.StringIO(newline="")
    writer = csv.DictWriter(file, ["label", "id", "text"], delimiter=delimiter, lineterminator=line_end)
    writer.writeheader()
    writer.writerows(record | {"id": number} for number, record in enumerate(RECORDS))
    return file.getvalue().encode()


BOM = b"\xef\xbb\xbf"
LINES = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in RECORDS).encode()
FILES = {
    "a.csv": table(","), "b.csv": BOM + table(";", "\r\n"), "c.csv": table("\t"), "d.tsv": table("\t"),
    "e.csv.gz": gzip.compress(table(",")), "f.jsonl": BOM + LINES, "g.json": json.dumps(RECORDS, indent=1).encode(),
    "h.json": LINES, "i.jsonl": json.dumps(RECORDS).encode(), "j.jsonl.gz": gzip.compress(LINES),
    "k.json.gz": gzip.compress(BOM + json.dumps(RECORDS).encode()),
}  # fmt: skip


def documents(file: Path, field: str = "text") -> list[str]:
    sources = Sources((str(file),), field)
    return [text for piece in sources.pieces() for text in sources.documents(piece)]


@pytest.mark.parametrize("name", FILES)
def test_every_form_says_the_same(name: str, tmp_path: Path) -> None:
    (file := tmp_path / name).write_bytes(FILES[name])
    assert read_records(file, TEXT_AND_LABEL) == RECORDS
    assert documents(file) == [record["text"] for record in RECORDS]
    renamed = read_records(file, TEXT_AND_LABEL, columns={"text": "label", "label": "text"})
    assert renamed == [{"text": record["label"], "label": record["text"]} for record in RECORDS]


BAD = {  # of a file: its records, of which some are bad, and what is said of each
    "a.csv": (b'text,label\na,1\nb,c,2\n,1\nd\xff,1\n"e"f,1\ng,1\n', "ag", {
        "line 3": "has 3 fields, but the header has 2", "line 4": "has no text", "line 5": "is not UTF-8",
        "line 6": "is not CSV: ',' expected after '\"'"}),
    "a.jsonl": (b'{"text": "a", "label": 1}\nno\n{"text": "b"}\n{"text": 3, "label": 1}\n'
        b'{"text": "c\xff", "label": 1}\n' b'{"text": "\\ud83d", "label": 1}\n[]\n{"text": "g", "label": 1}', "ag", {
        "line 2": "is not a JSON object", "line 3": "has no label; it has text", "line 4: text": "3 is not a text",
        "line 5": "is not UTF-8", "line 6": "contains an unpaired surrogate", "line 7": "is not a JSON object"}),
    "a.json": (b'[{"text": "a", "label": 1}, 3, {"text": "\xff", "label": 1}, {"text": "g", "label": 2}]', "ag", {
        "record 2": "is not a JSON object", "record 3": "is not UTF-8"}),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_records_are_left_out_with_a_count_and_no_more(name: str, tmp_path: Path) -> None:
    data, good, bad = BAD[name]
    (file := tmp_path / name).write_bytes(data)
    with skipping(len(bad)) as skipped:
        assert "".join(record["text"] for record in read_records(file, TEXT_AND_LABEL)) == good
        read_records(file, TEXT_AND_LABEL)  # counts none of them twice
    assert skipped.count == len(bad)
    for (place, (error, _)), (at, cause) in zip(skipped.records.items(), bad.items(), strict=True):
        assert place == f"{file}: {at}" and error.cause.startswith(cause)
    assert sentence(skipped.count, skipped.named()).startswith(f"{len(bad)} bad records were left out: {file}: ")
    first = next(iter(bad))
    for limit in range(len(bad)):
        with skipping(limit), pytest.raises(DataError) as caught:
            read_counting(lambda: read_records(file, TEXT_AND_LABEL))
        assert str(caught.value).endswith(f", or skip all bad records: --skip-bad {len(bad)}")
        assert limit or caught.value.place == f"{file}: {first}"
    with pytest.raises(DataError) as caught:  # where nobody can ask for it, nobody is told to
        read_records(file, TEXT_AND_LABEL)
    assert "--skip-bad" not in str(caught.value)


def test_a_quote_that_swallows_lines_counts_as_many_and_an_open_one_is_refused(tmp_path: Path) -> None:
    rows = "".join(f"text {number},1\n" for number in range(9))
    (file := tmp_path / "a.csv").write_text(f'text,label\na,1\n"b,1\n{rows}"c",1\nd,1\n')
    with skipping(10) as skipped, pytest.raises(DataError, match="more than --skip-bad 10 are bad"):
        read_records(file, TEXT_AND_LABEL)
    with skipping(11) as skipped:
        assert [record["text"] for record in read_records(file, TEXT_AND_LABEL)] == ["a", "d"]
    assert skipped.count == 11  # lines, of which nine may have been records
    file.write_text(f'text,label\na,1\n"b,1\n{rows}')
    with skipping(99), pytest.raises(DataError, match="line 12: is not CSV: unexpected end of data"):
        read_records(file, TEXT_AND_LABEL)


def test_texts_that_pandas_takes_for_missing_values_stay_texts(tmp_path: Path) -> None:
    (file := tmp_path / "a.csv").write_text("text,label\nNA,1\nnull,0\nNone,1\n")
    texts = [record["text"] for record in read_records(file, TEXT_AND_LABEL)]
    assert texts == documents(file) == ["NA", "null", "None"]


def test_what_all_rows_lack_is_not_left_out(tmp_path: Path) -> None:
    (file := tmp_path / "a.csv").write_text("id,review,stars\n1,fine day,5\n2,bad day,1\n3,good,5\n")
    with skipping(99), pytest.raises(DataError) as caught:
        read_counting(lambda: read_records(file, TEXT_AND_LABEL, columns={}))
    assert str(caught.value) == (
        f"{file}: line 2: has no text; it has id, review, stars; select the columns: "
        "--column text=review --column label=stars"
    )
    read = read_records(file, TEXT_AND_LABEL, columns={"text": "review", "label": "stars"})
    assert read[0] == {"text": "fine day", "label": "5"}
    with pytest.raises(DataError, match=r"has no column 'reviews'; it has id, review, stars; did you mean review\?"):
        read_records(file, TEXT_AND_LABEL, columns={"text": "reviews"})
    with skipping(99), pytest.raises(DataError, match="line 2: has no column 'text'; it has id, review, stars"):
        documents(file)
    (lines := tmp_path / "a.jsonl").write_text('{"id": 1}\n{"id": 2}\n')
    with skipping(0), pytest.raises(DataError) as caught:
        read_counting(lambda: read_records(lines, TEXT_AND_LABEL, columns={}))
    assert "--skip-bad" not in str(caught.value)


def test_a_first_line_that_is_no_names_is_named(tmp_path: Path) -> None:
    (file := tmp_path / "a.csv").write_text("a day,1\nb day,0\n")
    with pytest.raises(DataError, match="it has a day, 1; add a header line, such as text,label"):
        read_records(file, TEXT_AND_LABEL, columns={})


@pytest.mark.parametrize(("text", "cause"), [("[", "is not JSON"), ('[{"text": "a"}', "followed by a comma or the end"),
    ('[{"text": "a"}] x', "not followed by a comma or the end"), ("[]", "contains no records")])  # fmt: skip
def test_a_list_that_is_not_whole_is_refused(text: str, cause: str, tmp_path: Path) -> None:
    (file := tmp_path / "a.json").write_text(text)
    with skipping(99), pytest.raises(DataError, match=cause):
        read_records(file, {"text": TEXT_AND_LABEL["text"]})


def test_lines_of_a_text_that_are_not_utf8_are_left_out(tmp_path: Path) -> None:
    (file := tmp_path / "a.txt").write_bytes(b"one\ntwo \xff\r\nthree\n")
    with skipping(1) as skipped:
        assert documents(file) == ["one\n\r\nthree\n"]
    assert [*skipped.records] == [f"{file}: line 2"]
