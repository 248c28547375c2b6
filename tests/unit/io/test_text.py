"""Text files, plain and packed."""

import gzip
from pathlib import Path

import pytest

from archetype.errors import DataError
from archetype.io.text import read_text

TEXT = "first line\r\nzweite Zeile äöü\n" * 20


def refusal(file: Path) -> str:
    with pytest.raises(DataError) as caught:
        read_text(file)
    return str(caught.value).removeprefix(f"{file}: ")


def test_a_packed_file_is_read_as_the_plain_one(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(TEXT.encode())
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(TEXT.encode()))
    assert read_text(tmp_path / "a.txt") == read_text(tmp_path / "a.txt.gz") == TEXT
    (tmp_path / "two.gz").write_bytes(gzip.compress(b"one ") + gzip.compress(b"two"))
    assert read_text(tmp_path / "two.gz") == "one two"


def test_a_packed_file_cut_short_anywhere_is_refused(tmp_path: Path) -> None:
    whole, file = gzip.compress(TEXT.encode(), mtime=0), tmp_path / "a.gz"
    for length in range(1, len(whole)):
        file.write_bytes(whole[:length])
        assert refusal(file) == "is not a complete gzip file; download it again"


def test_a_packed_file_with_a_damaged_byte_is_refused_or_unchanged(tmp_path: Path) -> None:
    whole, file = gzip.compress(TEXT.encode(), mtime=0), tmp_path / "a.gz"
    refused = 0
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 0xFF
        file.write_bytes(damaged)
        try:
            assert read_text(file) == TEXT  # the date in the header may be any
        except DataError as error:
            assert "is not a complete gzip file" in str(error)
            refused += 1
    assert refused > len(whole) * 0.8


def test_what_is_in_a_packed_file_must_be_text_too(tmp_path: Path) -> None:
    (tmp_path / "a.gz").write_bytes(b"plain text")
    assert refusal(tmp_path / "a.gz") == "is not a complete gzip file; download it again"
    (tmp_path / "b.gz").write_bytes(gzip.compress(b""))
    assert refusal(tmp_path / "b.gz") == "is empty; choose a file with text"
    (tmp_path / "c.gz").write_bytes(gzip.compress(b"a\nb \xff"))
    assert refusal(tmp_path / "c.gz").startswith("is not UTF-8 at byte 4 (line 2); ")
    assert refusal(tmp_path / "none.gz") == "there is no such file; check the path"


def test_a_text_is_read_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes("\ufeffone\r\ntwo é\n".encode())
    assert read_text(tmp_path / "a") == "one\r\ntwo é\n"


@pytest.mark.parametrize(
    "data, expected",
    [
        (b"", "is empty; choose a file with text"),
        (b"\xef\xbb\xbf", "is empty"),
        (b"one\ntwo\nth\xffree\n", r"is not UTF-8 at byte 10 \(line 3\); save it as UTF-8"),
        (b"\xe6\x97", r"is not UTF-8 at byte 0 \(line 1\)"),
    ],
)
def test_a_faulty_file_is_refused(tmp_path: Path, data: bytes, expected: str) -> None:
    (tmp_path / "a").write_bytes(data)
    with pytest.raises(DataError, match=expected):
        read_text(tmp_path / "a")


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no such file"):
        read_text(tmp_path / "absent")
    with pytest.raises(DataError, match="is a folder"):
        read_text(tmp_path)
    (tmp_path / "a").write_text("a")
    with pytest.raises(DataError, match="cannot be read: Not a directory"):
        read_text(tmp_path / "a" / "b")


def test_a_packed_file_out_of_all_proportion_is_not_unpacked(tmp_path: Path) -> None:
    (tmp_path / "a.gz").write_bytes(gzip.compress(b"\0" * 2**24) * 8)  # a thousandth of what it holds
    assert refusal(tmp_path / "a.gz").startswith("decompresses to more than 71 MiB")
