"""A run has one owner at a time, and a dead one is none."""

import os
import signal
from pathlib import Path

import pytest

from archetype.errors import CheckpointError
from archetype.io.lock import FILE, locked
from tests.helpers import forked

KILLED = """
import os, signal, sys
from pathlib import Path
from archetype.io.lock import locked
with locked(Path(sys.argv[1])):
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_second_owner_is_refused_until_the_first_is_done(tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(CheckpointError) as caught, locked(tmp_path):
        pass
    cause = f"another process ({os.getpid()}) is training this run"
    assert str(caught.value) == f"{tmp_path}: {cause}; wait for it, or stop it"
    with locked(tmp_path):
        assert (tmp_path / FILE).read_text() == str(os.getpid())
    assert list(tmp_path.iterdir()) == []


def test_the_lock_of_a_dead_owner_is_taken_over(tmp_path: Path) -> None:
    command = ["python", "-c", KILLED, str(tmp_path)]
    assert forked.run(command).returncode == -signal.SIGKILL
    assert (tmp_path / FILE).is_file()
    with locked(tmp_path):
        assert (tmp_path / FILE).read_text() == str(os.getpid())


def test_a_lock_whose_file_was_removed_is_not_shared(tmp_path: Path) -> None:
    """Who waited for a file that its owner then removed must not hold a lock that nobody else can see."""
    with locked(tmp_path):
        (tmp_path / FILE).unlink()
        with locked(tmp_path), pytest.raises(CheckpointError), locked(tmp_path):
            pass


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    (tmp_path / FILE).mkdir()
    with pytest.raises(CheckpointError, match="cannot be written: Is a directory"), locked(tmp_path):
        pass
