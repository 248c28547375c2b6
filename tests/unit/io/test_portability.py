"""What only POSIX systems have is used with a fallback; tests/unit/test_portability.py imports all without it."""

import os
from pathlib import Path

import pytest

from archetype.io import atomic
from archetype.models.build import build


def test_folders_are_not_flushed_where_that_cannot_be_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flags: dict[str, int] = {}
    plain_open = os.open

    def as_on_windows(path: Path, flag: int) -> int:
        assert not path.is_dir()
        flags[path.name] = flag
        return plain_open(path, flag)

    monkeypatch.setattr(atomic, "WINDOWS", True)
    with atomic.new_folder(tmp_path / "folder") as temporary:
        (temporary / "a").write_bytes(b"a")
        monkeypatch.setattr(os, "open", as_on_windows)
    assert (tmp_path / "folder" / "a").read_bytes() == b"a"
    assert flags == {"a": os.O_RDWR}


def test_an_empty_folder_is_filled_where_no_folder_takes_anothers_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain_replace = Path.replace

    def as_on_windows(path: Path, target: Path) -> Path:
        if target.is_dir():
            raise PermissionError(13, "Access is denied")
        return plain_replace(path, target)

    monkeypatch.setattr(Path, "replace", as_on_windows)
    (tmp_path / "folder").mkdir()
    with atomic.new_folder(tmp_path / "folder") as temporary:
        (temporary / "a").write_bytes(b"a")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
    assert (tmp_path / "folder" / "a").read_bytes() == b"a"


def test_a_model_is_built_where_the_memory_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    from archetype.families.llama import llama

    spec = llama(num_layers=1, d_model=8, num_heads=2, num_kv_heads=1, d_ff=12, vocab_size=9, context_length=8)
    monkeypatch.delattr(os, "sysconf")
    assert build(spec).state_dict()
