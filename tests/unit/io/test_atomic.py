"""A file or folder appears whole under its name, or not at all, whatever the disk does."""

import errno
import io
import os
import textwrap
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from archetype.errors import CheckpointError
from archetype.io import atomic
from tests.helpers import forked

REFUSALS = (errno.ENOSPC, errno.EIO, errno.EACCES, errno.EROFS)
OPERATIONS = ((io, "open"), *((os, name) for name in ("open", "fsync", "chmod", "replace", "mkdir", "rmdir")))


class Disk:
    """Notes every file operation, and refuses the one whose number is given."""

    def __init__(self, patch: pytest.MonkeyPatch, refused: int | None = None, code: int = 0) -> None:
        self.done: list[str] = []
        self.refused = refused
        self.code = code
        for module, name in OPERATIONS:
            patch.setattr(module, name, self._noted(name, getattr(module, name)))

    def _noted(self, name: str, operation: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*arguments: Any, **options: Any) -> Any:
            self.done.append(name)
            if len(self.done) - 1 == self.refused:
                raise OSError(self.code, os.strerror(self.code))
            return operation(*arguments, **options)

        return noted


def operations_of(work: Callable[[], None]) -> list[str]:
    with pytest.MonkeyPatch.context() as patch:
        disk = Disk(patch)
        work()
    return disk.done


def refusal_at(number: int, code: int, work: Callable[[], None]) -> CheckpointError | None:
    """What is said where one operation is refused; None where the work is done without it."""
    with pytest.MonkeyPatch.context() as patch:
        Disk(patch, number, code)
        try:
            work()
        except CheckpointError as error:
            return error
    return None


def fill(folder: Path) -> None:
    with atomic.new_folder(folder) as temporary:
        atomic.write_bytes(temporary / "a", b"new")
        (temporary / "inner").mkdir()
        atomic.write_json(temporary / "inner" / "b.json", {"b": 1})


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize("code", REFUSALS, ids=errno.errorcode.get)
def test_a_refused_write_leaves_the_old_file(tmp_path: Path, code: int) -> None:
    file = tmp_path / "file"
    operations = operations_of(lambda: atomic.write_bytes(file, b"old"))
    lock, clean = ["open"], ["open", "rmdir"]  # without which it is written all the same
    written = ["open", "chmod", "open", "fsync", "replace", "open", "fsync"]
    assert operations == ["mkdir", *lock, *written, *clean]
    for number in range(len(operations)):
        atomic.write_bytes(file, b"old")
        assert len(list(tmp_path.iterdir())) == 1  # what was left has been removed
        error = refusal_at(number, code, lambda: atomic.write_bytes(file, b"new"))
        replaced = number > operations.index("replace") or number == 1
        assert contents(tmp_path)["file"] == (b"new" if replaced else b"old")
        if number == 1 or number > 8:
            assert error is None
        else:
            assert error is not None and error.place == str(file)
            assert error.cause == f"cannot be written: {os.strerror(code)}"
            assert error.remedy


@pytest.mark.parametrize("code", REFUSALS, ids=errno.errorcode.get)
def test_a_writer_that_fails_half_way_leaves_the_old_file(tmp_path: Path, code: int) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"old")

    def half(temporary: Path) -> None:
        temporary.write_bytes(b"ne")
        raise OSError(code, os.strerror(code))

    with pytest.raises(CheckpointError, match=os.strerror(code)):
        atomic.write_with(file, half)
    assert contents(tmp_path) == {"file": b"old"}


@pytest.mark.parametrize("code", REFUSALS, ids=errno.errorcode.get)
def test_a_refused_folder_leaves_nothing(tmp_path: Path, code: int) -> None:
    operations = operations_of(lambda: fill(tmp_path / "counted" / "folder"))
    last, refused = len(operations) - 1 - operations[::-1].index("replace"), 0
    assert last > 15
    whole = {"folder/a": b"new", "folder/inner/b.json": b'{\n  "b": 1\n}\n'}
    for number in range(len(operations)):
        place = tmp_path / f"at {number}"
        error = refusal_at(number, code, lambda: fill(place / "folder"))  # noqa: B023
        if error is None:  # refused was a lock, or the removal of an empty folder inside
            assert {name: data for name, data in contents(place).items() if "." not in name[:9]} == whole
            continue
        refused += 1
        assert contents(place) == ({} if number <= last else whole)
        assert not list(place.rglob(".*"))
        assert error.place.startswith(str(place / "folder")) or error.place == str(place)
        assert error.cause and error.remedy and ".partial" not in str(error)
    assert refused >= len(operations) - 7


def test_an_error_inside_the_block_leaves_nothing_and_comes_out_unchanged(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), atomic.new_folder(tmp_path / "folder") as temporary:
        atomic.write_bytes(temporary / "a", b"a")
        raise ZeroDivisionError
    assert not list(tmp_path.iterdir())


def test_a_folder_has_no_name_until_it_is_whole(tmp_path: Path) -> None:
    with atomic.new_folder(tmp_path / "very" / "deep" / "folder") as temporary:
        atomic.write_bytes(temporary / "a", b"a")
        assert not (tmp_path / "very" / "deep" / "folder").exists()
    assert contents(tmp_path) == {"very/deep/folder/a": b"a"}


def test_an_empty_folder_is_filled(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    fill(tmp_path / "folder")
    assert (tmp_path / "folder" / "a").read_bytes() == b"new"


def occupied_by_file(path: Path) -> None:
    path.write_bytes(b"mine")


def occupied_by_folder(path: Path) -> None:
    path.mkdir()
    (path / "mine").write_bytes(b"mine")


def occupied_by_broken_link(path: Path) -> None:
    path.symlink_to("nowhere")


@pytest.mark.parametrize("occupy", [occupied_by_file, occupied_by_folder, occupied_by_broken_link])
def test_what_exists_is_never_replaced_by_a_folder(tmp_path: Path, occupy: Callable[[Path], None]) -> None:
    occupy(tmp_path / "folder")
    before = contents(tmp_path)
    with pytest.raises(CheckpointError, match="folder: already exists; choose another folder or remove it"):
        fill(tmp_path / "folder")
    assert contents(tmp_path) == before
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("write", [fill, atomic.make_folder, lambda path: atomic.write_bytes(path, b"")])
def test_a_place_that_cannot_be_is_named_in_one_line(tmp_path: Path, write: Callable[[Path], None]) -> None:
    (tmp_path / "file").write_bytes(b"mine")
    for place in (tmp_path / "file" / "below", tmp_path / ("x" * 300)):
        with pytest.raises(CheckpointError) as caught:
            write(place)
        assert caught.value.place == str(place) and caught.value.cause.startswith("cannot be written: ")
        assert "\n" not in str(caught.value) and len(str(caught.value)) <= 300
    assert contents(tmp_path) == {"file": b"mine"}


@pytest.mark.parametrize(("mask", "file_mode", "folder_mode"), [(0o022, 0o644, 0o755), (0o077, 0o600, 0o700)])
def test_the_umask_is_honoured(tmp_path: Path, mask: int, file_mode: int, folder_mode: int) -> None:
    before = os.umask(mask)
    try:
        fill(tmp_path / "folder")
        assert os.umask(mask) == mask  # looking at it changed nothing
    finally:
        os.umask(before)
    assert (tmp_path / "folder").stat().st_mode & 0o777 == folder_mode
    assert (tmp_path / "folder" / "a").stat().st_mode & 0o777 == file_mode


def test_a_line_is_added_to_a_log(tmp_path: Path) -> None:
    for line in ("one", "two"):
        atomic.append_line(tmp_path / "log", line)
    assert (tmp_path / "log").read_text() == "one\ntwo\n"
    with pytest.raises(CheckpointError, match="cannot be written"):
        atomic.append_line(tmp_path, "three")


KILLED = textwrap.dedent("""
    import io, os, sys
    from pathlib import Path
    from archetype.io import atomic

    work, path, last = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    count = 0

    def noted(operation):
        def wrapped(*arguments, **options):
            global count
            count += 1
            if count > last:
                os._exit(9)
            return operation(*arguments, **options)
        return wrapped

    for module, name in [(io, "open"), (os, "open"), (os, "fsync"), (os, "chmod"), (os, "replace"), (os, "mkdir")]:
        setattr(module, name, noted(getattr(module, name)))
    if work == "file":
        atomic.write_bytes(path, b"new")
    else:
        with atomic.new_folder(path) as temporary:
            atomic.write_bytes(temporary / "a", b"new")
    os._exit(0)  # what libraries do at the end is not counted
""")


def killed_after(operations: int, work: str, path: Path) -> bool:
    code = forked.run(["python", "-c", KILLED, work, str(path), str(operations)]).returncode
    assert code in (0, 9)
    return code == 9


def test_a_killed_write_leaves_the_old_file_or_the_whole_new_one(tmp_path: Path) -> None:
    file, after_each_kill, operations = tmp_path / "file", [], 0
    file.write_bytes(b"old")
    while killed_after(operations, "file", file):
        after_each_kill.append(file.read_bytes())
        operations += 1
    first = after_each_kill.index(b"new")
    assert first > 5 and after_each_kill == [b"old"] * first + [b"new"] * (len(after_each_kill) - first)
    atomic.write_bytes(file, b"newer")  # and removes what the kills have left
    assert file.read_bytes() == b"newer" and len(list(tmp_path.iterdir())) == 1


def test_a_killed_folder_is_absent_or_whole(tmp_path: Path) -> None:
    after_each_kill, operations = [], 0
    while killed_after(operations, "folder", tmp_path / "folder"):
        after_each_kill.append(contents(tmp_path / "folder"))
        operations += 1
        if (tmp_path / "folder").exists():
            break
    assert len(after_each_kill) > 8
    assert after_each_kill == [{}] * (len(after_each_kill) - 1) + [{"a": b"new"}]
    (tmp_path / "folder" / "a").unlink()
    fill(tmp_path / "folder")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_what_a_living_process_writes_is_not_removed_and_other_names_stay(tmp_path: Path) -> None:
    others = [tmp_path / name for name in (".folder.partial", ".folder.old.partial", ".folders.abcdefgh.partial")]
    for path in others:
        path.mkdir()
    dead = tmp_path / ".folder.abcdefgh.partial"
    dead.mkdir()
    with atomic.new_folder(tmp_path / "folder") as first:
        assert not dead.exists()
        atomic.write_bytes(first / "a", b"first")
        with atomic.new_folder(tmp_path / "folder") as second:
            atomic.write_bytes(second / "a", b"second")
            assert first.exists() and second.exists()
            second.joinpath("a").unlink()
        (tmp_path / "folder").rmdir()
    assert contents(tmp_path) == {"folder/a": b"first"}
    assert all(path.exists() for path in others)


WRITES_TOGETHER = """
import sys
from pathlib import Path
from archetype.io import atomic

for number in range(int(sys.argv[2])):
    atomic.write_bytes(Path(sys.argv[1]), sys.argv[3].encode() * 10_000)
"""


def test_processes_that_write_one_file_at_once_are_in_nobodys_way(tmp_path: Path) -> None:
    file = tmp_path / "file"
    commands = [["python", "-c", WRITES_TOGETHER, str(file), "20", letter] for letter in "abc"]
    with ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(forked.run, commands))
    assert [answer.returncode for answer in answers] == [0, 0, 0], [answer.stderr for answer in answers]
    assert file.read_bytes() in [letter.encode() * 10_000 for letter in "abc"]
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
