"""Where caches go: also with a home that is read-only, is no folder, or is not there."""

import os
import tempfile
from pathlib import Path

import pytest

from archetype.errors import Notice
from archetype.io import cache
from tests.helpers import forked
from tests.helpers.cases import case


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (folder := tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    cache._writable.cache_clear()
    return folder


@pytest.mark.parametrize("home", ["a file", "/proc", "/proc/1/none", "/dev/null"])
def test_a_home_that_cannot_be_written_to(
    home: str, temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Paths that root cannot write to either; it is said once, and the next process finds the same folder."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HOME", str(tmp_path / "file") if home == "a file" else home)
    with pytest.warns(Notice) as caught:
        folders = [cache.cache_folder() for _ in range(3)]
    assert len(caught) == 1 and str(caught[0].message).startswith(f"{os.environ['HOME']}/.cache/archetype: cannot be")
    assert set(folders) == {temporary / f"archetype-{os.getuid()}"} and f"caches go to {folders[0]}" in str(
        caught[0].message
    )
    cache._writable.cache_clear()
    with pytest.warns(Notice):
        assert cache.cache_folder() == folders[0]


@pytest.mark.parametrize("planted", ["open to all", "a link", "a file"])
def test_a_temporary_folder_that_others_may_write_to_is_not_used(
    planted: str, temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels are opened from there."""
    place = temporary / f"archetype-{os.getuid()}"
    if planted == "open to all":
        place.mkdir()
        place.chmod(0o777)
    elif planted == "a link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        place.symlink_to(tmp_path / "elsewhere")
    else:
        place.write_text("")
    monkeypatch.setenv("HOME", "/proc")
    with pytest.warns(Notice):
        folder = cache.cache_folder()
    assert folder != place and folder.parent == temporary and folder.stat().st_mode & 0o777 == 0o700


def test_a_verb_runs_without_a_home(tmp_path: Path) -> None:
    for number in range(40):
        (tmp_path / f"{number}.txt").write_text(f"text {number}: the model reads a token\n" * 9)
    words = "train 1?.txt 2?.txt 3?.txt --spec llama-tiny --set data.kind=documents --set data.validation_fraction=0.2"
    words += " --tokenizer bytes --plan"
    for home, lines in (("/proc", 1), (str(tmp_path), 0)):
        with case(home):
            environment = {"HOME": home, "XDG_CACHE_HOME": "", "ARCHETYPE_CACHE": ""}
            done = forked.run(["archetype", *words.split()], environment, cwd=tmp_path)
            assert done.returncode == 0, done.stderr
            assert done.stderr.count(b"caches go to ") == lines
    assert [*(tmp_path / ".cache" / "archetype").rglob("*.json")]  # where the last home can be written to
