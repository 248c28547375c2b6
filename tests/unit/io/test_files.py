"""Files read whole: regular ones, of a stated size, and JSON of a bounded number of items."""

import os
from pathlib import Path

import pytest

from archetype.errors import CheckpointError, DataError
from archetype.io.files import MAX_JSON_ITEMS, check_regular, json_value, read_bytes, read_json


def refusal(file: Path, limit: int = 10) -> str:
    with pytest.raises(CheckpointError) as caught:
        read_bytes(file, limit, CheckpointError)
    return str(caught.value).removeprefix(f"{file}: ")


def test_what_is_no_regular_file_is_refused_without_a_byte_of_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")  # nobody writes to it: a reader would wait for ever
    pipe = "is not a regular file; copy its contents to a file"
    assert refusal(tmp_path / "pipe") == refusal(Path("/dev/zero")) == pipe
    with pytest.raises(DataError, match="is not a regular file"):
        check_regular(tmp_path / "pipe")
    check_regular(tmp_path / "none")
    assert refusal(tmp_path) == "is a folder, not a file; name a file in it"
    assert refusal(tmp_path / "none") == "there is no such file; check the path"
    assert refusal(tmp_path / ("n" * 5000)).endswith("File name too long; check the path and its permissions")
    assert "null byte" in refusal(tmp_path / "a\0b")
    assert read_bytes(Path("/proc/self/status")) == b""  # the kernel's files have no size, and some no end


def test_a_file_has_at_most_the_stated_size(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"0123456789")
    assert read_bytes(file, 10) == b"0123456789"
    with file.open("r+b") as longer:
        longer.truncate(3 * 2**30)  # takes no space on the disk
    assert refusal(file, 2**20) == "is larger than 1 MiB; is it the right file?"


def test_json_of_too_many_items_is_not_made(tmp_path: Path) -> None:
    text = b"[" + b"[]," * (MAX_JSON_ITEMS // 2 + 1) + b"[]]"
    with pytest.raises(DataError, match=r"a: has more than 4,194,304 items; is it the right file\?"):
        json_value(text, "a")
    (tmp_path / "a.json").write_bytes(b"\xef\xbb\xbf" + b'{"a": 1}')
    assert read_json(tmp_path / "a.json") == {"a": 1}
