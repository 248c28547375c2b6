"""Checkpoints of a training run: safetensors and a manifest that proves them whole. No pickle."""

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
WEIGHTS, MOMENTS = "weights", "optimizer"  # folders of slices, which many processes write
MANIFEST = "manifest.json"
KEPT = 2  # the newest, and one before it in case a disk damages the newest
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Checkpoint:
    """One whole checkpoint on disk."""

    folder: Path
    manifest: dict[str, Any]

    @property
    def step(self) -> int:
        """Optimizer steps taken."""
        return int(self.manifest["step"])

    @property
    def weights_file(self) -> Path:
        """The model's parameters under our own names: a file, or a folder of slices that many processes wrote."""
        return self.folder / (WEIGHTS if (self.folder / WEIGHTS).is_dir() else SINGLE)

    @property
    def average_file(self) -> Path | None:
        """The moving average of the parameters, where the run has one."""
        return self.folder / AVERAGE if AVERAGE in self.manifest["files"] else None

    def optimizer(self) -> Iterator[tuple[str, Tensor]]:
        """The optimizer's tensors, by name, one after the other."""
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
    """Write a checkpoint that appears whole or not at all, and drop all but the newest.

    Args:
        checkpoints: the run's folder of checkpoints.
        provenance: what else the manifest says: fingerprints of the specification and the data, versions.
        average: the moving average of the weights.
        keep: how many checkpoints stay.
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
    """Write a checkpoint as `write` does, of files that `fill` writes into the folder that it is called with.

    Args:
        checkpoints: the run's folder of checkpoints.
        fill: returns the names of its files.
        provenance: what else the manifest says.
        keep: how many checkpoints stay.
    """
    folder = checkpoints / f"step-{step:08d}"
    if folder.exists():  # saved, then interrupted: what is whole stays, for a run's step determines its weights
        try:
            return opened(folder)
        except CheckpointError:
            shutil.rmtree(folder)
    atomic.remove_unfinished(checkpoints)
    with atomic.new_folder(folder) as temporary:
        files = {name: _identity(temporary / name) for name in fill(temporary)}
        manifest = {"step": step, "files": files} | provenance
        atomic.write_json(temporary / MANIFEST, manifest | {"sha256": _seal(manifest)})
    remove_older(checkpoints, keep)
    return Checkpoint(folder, manifest)


def remove_older(checkpoints: Path, keep: int) -> None:
    """Remove all but the newest checkpoints; a kill on the way leaves none in half under its own name."""
    for old in _folders(checkpoints)[:-keep]:
        with suppress(OSError):
            shutil.rmtree(old.rename(old.with_name(f".{old.name}.removed.partial")))


def latest(checkpoints: Path, on_damage: Callable[[str], None] = log.warning) -> Checkpoint | None:
    """The newest checkpoint that is whole; None where there is none at all.

    Args:
        checkpoints: the run's folder of checkpoints.
        on_damage: is told in one line of damaged ones and of the one that is used in their place.

    Raises:
        CheckpointError: there are checkpoints, but all are damaged; names a file of the newest.
    """
    damages: list[CheckpointError] = []
    for folder in reversed(_folders(checkpoints)):
        try:
            checkpoint = opened(folder)
        except CheckpointError as error:
            damages.append(error)
            continue
        if damages:
            on_damage(f"{damages[0].place}: {damages[0].cause}; going on from {folder.name}, the one before")
        return checkpoint
    if damages:
        raise damages[0]
    return None


def set_aside(checkpoints: Path, step: int) -> None:
    """Give damaged checkpoints after a step other names, so that the run can go on from there."""
    for folder in _folders(checkpoints):
        if int(folder.name[5:]) > step:
            shutil.rmtree(folder.with_suffix(".damaged"), ignore_errors=True)
            folder.rename(folder.with_suffix(".damaged"))


def newest_step(checkpoints: Path) -> int | None:
    """The step of the newest checkpoint by its name, without reading it; None where there is none."""
    folders = _folders(checkpoints)
    return int(folders[-1].name[5:]) if folders else None


def opened(folder: Path) -> Checkpoint:
    """A checkpoint after its sizes and hashes were checked."""
    manifest = _manifest(folder)
    for name, expected in manifest["files"].items():
        file = folder / name
        try:
            check_regular(file)
            # the size first: to hash another, longer file may take long
            is_whole = file.stat().st_size == expected["bytes"] and _identity(file) == expected
        except FileNotFoundError:
            raise _damaged(folder, name, "is missing") from None
        except DataError as error:
            raise _damaged(folder, name, error.cause) from None
        except OSError as error:
            raise _damaged(folder, name, f"cannot be read: {error.strerror}") from None
        if not is_whole:
            raise _damaged(folder, name, "is not what was saved")
    return Checkpoint(folder, manifest)


def _manifest(folder: Path) -> dict[str, Any]:
    with suppress(DataError, ValueError, RecursionError):
        manifest = read_json(folder / MANIFEST)
        if manifest.pop("sha256", None) == _seal(manifest):
            return manifest
    raise _damaged(folder, MANIFEST, "is missing or damaged")


def _seal(manifest: dict[str, Any]) -> str:
    """The hash of everything that the manifest says."""
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _damaged(folder: Path, name: str, cause: str) -> CheckpointError:
    return CheckpointError(str(folder / name), cause, "restore it, or start a new run")


def _folders(checkpoints: Path) -> list[Path]:
    """Checkpoint folders, oldest first."""
    folders = [path for path in checkpoints.glob("step-*") if path.name[5:].isdecimal() and path.is_dir()]
    return sorted(folders, key=lambda path: int(path.name[5:]))


def _identity(file: Path) -> dict[str, Any]:
    with file.open("rb") as stream:
        return {"bytes": file.stat().st_size, "sha256": hashlib.file_digest(stream, "sha256").hexdigest()}
