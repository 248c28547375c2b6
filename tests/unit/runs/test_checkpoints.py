"""Checkpoints of a run: whole or not there, proved by a manifest, and never the last one lost."""

import errno
import hashlib
import json
import os
from pathlib import Path

import pytest
import torch

from archetype.errors import CheckpointError
from archetype.io.tensors import Tensors
from archetype.io.weight_files import SINGLE
from archetype.runs import checkpoints as training
from archetype.runs.checkpoints import KEPT, MANIFEST, OPTIMIZER, latest, opened, write
from tests.unit.io.test_atomic import operations_of, refusal_at

FILES = (SINGLE, OPTIMIZER, MANIFEST)


def save(checkpoints: Path, step: int) -> training.Checkpoint:
    value = torch.full((3,), float(step))
    return write(checkpoints, step, {"w": value}, {"moment": value + 0.5}, {"data": "abcd", "seed": 7})


def damage(checkpoint: training.Checkpoint) -> str:
    with pytest.raises(CheckpointError) as caught:
        opened(checkpoint.folder)
    return str(caught.value)


def steps(checkpoints: Path) -> list[str]:
    return sorted(path.name for path in checkpoints.iterdir())


@pytest.fixture
def two(tmp_path: Path) -> tuple[training.Checkpoint, training.Checkpoint]:
    return save(tmp_path / "checkpoints", 5), save(tmp_path / "checkpoints", 10)


def test_where_there_is_none_there_is_none(tmp_path: Path) -> None:
    assert latest(tmp_path / "absent") is None
    assert latest(tmp_path) is None


def test_a_checkpoint_is_read_as_it_was_written(tmp_path: Path) -> None:
    written, newest = save(tmp_path, 5), latest(tmp_path)
    assert newest == written
    assert newest.step == 5
    assert (newest.manifest["data"], newest.manifest["seed"]) == ("abcd", 7)
    assert torch.equal(Tensors.single(newest.weights_file).mapped("w"), torch.full((3,), 5.0))
    assert torch.equal(dict(newest.optimizer())["moment"], torch.full((3,), 5.5))


def test_the_newest_is_found_by_its_number(tmp_path: Path) -> None:
    for step in (900, 1000):
        save(tmp_path, step)
    assert latest(tmp_path).step == 1000


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4):
        save(tmp_path, step)
    assert steps(tmp_path) == ["step-00000003", "step-00000004"]
    assert KEPT == 2
    for step in (5, 6, 7):
        write(tmp_path, step, {}, {}, {}, keep=3)
    assert steps(tmp_path) == ["step-00000005", "step-00000006", "step-00000007"]


def test_a_kill_while_an_older_one_is_removed_leaves_none_in_half(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(folder: Path) -> None:
        next(path for path in folder.iterdir() if path.is_file()).unlink()
        raise KeyboardInterrupt

    for step in (1, 2):
        save(tmp_path, step)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(training.shutil, "rmtree", killed)
        training.remove_older(tmp_path, 1)
    assert [name for name in steps(tmp_path) if not name.startswith(".")] == ["step-00000002"]
    save(tmp_path, 3)
    assert steps(tmp_path) == ["step-00000002", "step-00000003"]


def test_the_manifest_says_size_and_hash_of_every_file(tmp_path: Path) -> None:
    folder = save(tmp_path, 1).folder
    manifest = json.loads((folder / MANIFEST).read_text())
    assert set(manifest["files"]) == {SINGLE, OPTIMIZER}
    assert {name: identity["bytes"] for name, identity in manifest["files"].items()} == {
        name: (folder / name).stat().st_size for name in (SINGLE, OPTIMIZER)
    }
    assert steps(folder) == sorted(FILES)


@pytest.mark.parametrize("file", FILES)
def test_a_damaged_newest_is_said_and_the_one_before_is_used(
    two: tuple[training.Checkpoint, training.Checkpoint], file: str
) -> None:
    (two[1].folder / file).unlink()
    messages: list[str] = []
    assert latest(two[1].folder.parent, messages.append) == two[0]
    cause = "is missing or damaged" if file == MANIFEST else "is missing"
    assert messages == [f"{two[1].folder / file}: {cause}; resuming from the earlier step-00000005"]
    (two[0].folder / file).unlink()
    with pytest.raises(CheckpointError, match=f"step-00000010/{file}: {cause}; restore it, or start a new run"):
        latest(two[1].folder.parent)


def test_a_damaged_one_is_set_aside(two: tuple[training.Checkpoint, training.Checkpoint]) -> None:
    training.set_aside(two[0].folder.parent, 5)
    assert steps(two[0].folder.parent) == ["step-00000005", "step-00000010.damaged"]
    assert training.newest_step(two[0].folder.parent) == 5


def test_the_moving_average_is_a_file_of_its_own_and_what_is_read(tmp_path: Path) -> None:
    written = write(tmp_path, 5, {"w": torch.zeros(3)}, {}, {}, {"w": torch.ones(3)})
    assert steps(written.folder) == sorted((*FILES, training.AVERAGE))
    assert written.average_file and torch.equal(Tensors.single(written.average_file).mapped("w"), torch.ones(3))
    assert save(tmp_path, 6).average_file is None


@pytest.mark.parametrize("file", FILES)
def test_a_file_cut_short_anywhere_is_named(two: tuple[training.Checkpoint, training.Checkpoint], file: str) -> None:
    whole = (two[1].folder / file).read_bytes()
    shortest_lie = len(whole) - (2 if file == MANIFEST else 1)  # the newline after the manifest says nothing
    for length in range(shortest_lie + 1):
        (two[1].folder / file).write_bytes(whole[:length])
        assert damage(two[1]).startswith(f"{two[1].folder / file}: is ")


@pytest.mark.parametrize("file", FILES)
def test_a_flipped_bit_in_any_byte_is_found_and_the_file_named(
    two: tuple[training.Checkpoint, training.Checkpoint], file: str
) -> None:
    whole = (two[1].folder / file).read_bytes()
    for place in range(len(whole)):
        flipped = bytearray(whole)
        flipped[place] ^= 1 << place % 8
        (two[1].folder / file).write_bytes(flipped)
        with pytest.raises(CheckpointError) as caught:
            opened(two[1].folder)
        assert caught.value.place == str(two[1].folder / file)


@pytest.mark.parametrize(
    "text", ["", "null", "[]", "7", "{}", '{"step": 1, "files": []}', '{"sha256": null}', "[" * 100_000, "\x00", "NaN"]
)
def test_a_manifest_that_is_none_is_named(tmp_path: Path, text: str) -> None:
    checkpoint = save(tmp_path, 1)
    (checkpoint.folder / MANIFEST).write_text(text)
    expected = f"{checkpoint.folder / MANIFEST}: is missing or damaged; restore it, or start a new run"
    assert damage(checkpoint) == expected


def test_a_file_that_the_disk_refuses_to_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = save(tmp_path, 1)

    def refuse(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(hashlib, "file_digest", refuse)
    assert damage(checkpoint).startswith(f"{checkpoint.weights_file}: cannot be read: Input/output error")


def test_what_is_no_file_is_not_opened(tmp_path: Path) -> None:
    checkpoint = save(tmp_path, 1)
    (checkpoint.folder / OPTIMIZER).unlink()
    (checkpoint.folder / OPTIMIZER).mkdir()
    assert damage(checkpoint).startswith(f"{checkpoint.folder / OPTIMIZER}: is not a regular file")


def test_a_refused_save_leaves_every_checkpoint_before_it(tmp_path: Path) -> None:
    save(tmp_path / "counted", 5)
    operations = operations_of(lambda: save(tmp_path / "counted", 10))
    last = len(operations) - 1 - operations[::-1].index("replace")
    for number in range(1, len(operations)):  # the first makes the folder of checkpoints, which is there
        checkpoints = tmp_path / f"at {number}"
        before = save(checkpoints, 5)
        error = refusal_at(number, 28, lambda: save(checkpoints, 10))  # noqa: B023
        if error is None:  # without a lock, and without removing an empty folder, it is saved all the same
            assert latest(checkpoints).step == 10
            continue
        assert "No space left on device" in error.cause
        assert latest(checkpoints).step == (5 if number <= last else 10)
        assert opened(before.folder) == before
        assert not list(checkpoints.glob(".*"))
        if number in (1, last):
            assert save(checkpoints, 15).step == latest(checkpoints).step == 15  # and the run goes on


def test_saving_a_step_again_never_puts_it_at_stake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = save(tmp_path, 5)

    def full(*arguments: object) -> None:
        raise CheckpointError("", "No space left on device")

    monkeypatch.setattr(training, "save", full)
    assert save(tmp_path, 5) == first == latest(tmp_path)


def test_a_damaged_step_is_written_anew(tmp_path: Path) -> None:
    (save(tmp_path, 5).folder / SINGLE).write_bytes(b"")
    assert save(tmp_path, 5) == latest(tmp_path)


def test_what_a_killed_save_left_is_no_checkpoint(tmp_path: Path) -> None:
    checkpoint = save(tmp_path, 5)
    (tmp_path / ".step-00000010.abc.partial").mkdir()
    assert latest(tmp_path) == checkpoint
