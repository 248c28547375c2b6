"""InferenceReport text files, and what is wrong with those that cannot be read."""

from pathlib import Path

import pytest

from archetype.errors import DataError
from archetype.io.text import read_text


def test_a_text_is_read_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes("\ufeffone\r\ntwo é\n".encode())
    assert read_text(tmp_path / "a") == "one\r\ntwo é\n"


@pytest.mark.parametrize(
    "data, expected",
    [
        (b"", "is empty; choose a file that holds text"),
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
