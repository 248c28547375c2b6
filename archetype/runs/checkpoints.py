"""Checkpoints of a training run: safetensors files and a manifest with sizes and hashes. No pickle."""

import hashlib
import json
import logging
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from archetype.errors import CheckpointError, DataError
from archetype.io import atomic
from archetype.io.files import check_regular, read_json
from archetype.io.tensors import Tensors, save
from archetype.io.weight_files import SINGLE

OPTIMIZER, AVERAGE = "optimizer.safetensors", "ema.safetensors"
WEIGHTS, MOMENTS = "weights", "optimizer"  # folders of shards, written by several processes
MANIFEST = "manifest.json"
KEPT = 2  # the newest, and the previous one in case the newest is damaged
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Checkpoint:
    """Complete checkpoint on disk."""

    folder: Path
    manifest: dict[str, Any]

    @property
    def step(self) -> int:
        return int(self.manifest["step"])

    @property
    def weights_file(self) -> Path:
        """File of model parameters under Archetype's names, or folder of shards from several processes."""
        return self.folder / (WEIGHTS if (self.folder / WEIGHTS).is_dir() else SINGLE)

    @property
    def average_file(self) -> Path | None:
        return self.folder / AVERAGE if AVERAGE in self.manifest["files"] else None

    def optimizer(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the optimizer's tensors by name."""
        slices = self.folder / MOMENTS
        tensors = Tensors.single(slices if slices.is_dir() else self.folder / OPTIMIZER)
        return ((name, tensors.stored(name)) for name in tensors.names())


def write(
    checkpoints: Path,
    step: int,
    weights: dict[str, Tensor],
    optimizer: dict[str, Tensor],
    provenance: dict[str, Any],
    average: dict[str, Tensor] | None = None,
    keep: int = KEPT,
) -> Checkpoint:
    """Write a checkpoint atomically, and remove all but the `keep` newest.

    Args:
        provenance: additional fields of the manifest: fingerprints of specification and data, versions.
        average: moving average of the weights, if the run keeps one.
    """

    def fill(temporary: Path) -> list[str]:
        for name, contents in tensors.items():
            save(temporary / name, contents)
        return [*tensors]

    tensors = {SINGLE: weights, OPTIMIZER: optimizer} | ({} if average is None else {AVERAGE: average})
    return write_with(checkpoints, step, fill, provenance, keep)


def write_with(
    checkpoints: Path, step: int, fill: Callable[[Path], list[str]], provenance: dict[str, Any], keep: int = KEPT
) -> Checkpoint:
    """Write a checkpoint as `write` does, with files that `fill` writes into a folder. `fill` returns their names."""
    folder = checkpoints / f"step-{step:08d}"
    if folder.exists():  # saved before an interruption: keep it, because the step of a run determines its weights
        try:
            return opened(folder)
        except CheckpointError:
            shutil.rmtree(folder)
    atomic.remove_unfinished(checkpoints)
    with atomic.new_folder(folder) as temporary:
        # hashed as written: a later difference is damage
        files = {name: _identity(temporary / name) for name in fill(temporary)}
        # the manifest is written last and contains a hash of itself
        manifest = {"step": step, "files": files} | provenance
        atomic.write_json(temporary / MANIFEST, manifest | {"sha256": _seal(manifest)})
    remove_older(checkpoints, keep)
    return Checkpoint(folder, manifest)


def remove_older(checkpoints: Path, keep: int) -> None:
    """Remove all but the `keep` newest checkpoints."""
    for old in _folders(checkpoints)[:-keep]:
        with suppress(OSError):
            # renamed first: a kill leaves no partial checkpoint under its name
            shutil.rmtree(old.rename(old.with_name(f".{old.name}.removed.partial")))


def latest(checkpoints: Path, on_damage: Callable[[str], None] = log.warning) -> Checkpoint | None:
    """Return the newest undamaged checkpoint; None if there are no checkpoints.

    Args:
        on_damage: called with one line that names a damaged checkpoint and the earlier one used instead.

    Raises:
        CheckpointError: all checkpoints are damaged; the message names a damaged file of the newest checkpoint.
    """
    damages: list[CheckpointError] = []
    for folder in reversed(_folders(checkpoints)):
        try:
            checkpoint = opened(folder)
        except CheckpointError as error:
            damages.append(error)
            continue
        if damages:
            on_damage(f"{damages[0].place}: {damages[0].cause}; resuming from the earlier {folder.name}")
        return checkpoint
    if damages:
        raise damages[0]
    return None


def set_aside(checkpoints: Path, step: int) -> None:
    """Rename damaged checkpoints after `step`, so that the run can resume from `step`."""
    for folder in _folders(checkpoints):
        if int(folder.name[5:]) > step:
            # an earlier damaged checkpoint of the same step
            shutil.rmtree(folder.with_suffix(".damaged"), ignore_errors=True)
            folder.rename(folder.with_suffix(".damaged"))


def newest_step(checkpoints: Path) -> int | None:
    """Return the step in the newest checkpoint's name, without reading the checkpoint; None without checkpoints."""
    folders = _folders(checkpoints)
    return int(folders[-1].name[5:]) if folders else None


def opened(folder: Path) -> Checkpoint:
    """Open a checkpoint after checking its sizes and hashes."""
    manifest = _manifest(folder)
    for name, expected in manifest["files"].items():
        file = folder / name
        try:
            check_regular(file)
            # the size first: hashing a longer file may take long
            is_whole = file.stat().st_size == expected["bytes"] and _identity(file) == expected
        except FileNotFoundError:
            raise _damaged(folder, name, "is missing") from None
        except DataError as error:
            raise _damaged(folder, name, error.cause) from None
        except OSError as error:
            raise _damaged(folder, name, f"cannot be read: {error.strerror}") from None
        if not is_whole:
            raise _damaged(folder, name, "is damaged: it differs from the manifest")
    return Checkpoint(folder, manifest)


def _manifest(folder: Path) -> dict[str, Any]:
    with suppress(DataError, ValueError, RecursionError):
        manifest = read_json(folder / MANIFEST)
        if manifest.pop("sha256", None) == _seal(manifest):
            return manifest
    raise _damaged(folder, MANIFEST, "is missing or damaged")


def _seal(manifest: dict[str, Any]) -> str:
    # sorted keys: the hash does not depend on the order in which fields were added or read
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _damaged(folder: Path, name: str, cause: str) -> CheckpointError:
    return CheckpointError(str(folder / name), cause, "restore it, or start a new run")


def _folders(checkpoints: Path) -> list[Path]:
    # oldest first; names of damaged and removed checkpoints do not match
    folders = [path for path in checkpoints.glob("step-*") if path.name[5:].isdecimal() and path.is_dir()]
    return sorted(folders, key=lambda path: int(path.name[5:]))


def _identity(file: Path) -> dict[str, Any]:
    with file.open("rb") as stream:
        return {"bytes": file.stat().st_size, "sha256": hashlib.file_digest(stream, "sha256").hexdigest()}
