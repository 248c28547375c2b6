"""Checkpoints of a training run: safetensors and a manifest that proves them whole. No pickle."""

import hashlib
import json
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from archetype.errors import CheckpointError, DataError
from archetype.io import atomic
from archetype.io.files import check_regular, read_json
from archetype.io.tensors import save
from archetype.io.weight_files import SINGLE

OPTIMIZER = "optimizer.safetensors"
MANIFEST = "manifest.json"
KEPT = 2  # the newest, and one before it in case a disk damages the newest


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
        """The model's parameters under our own names."""
        return self.folder / SINGLE

    def optimizer(self) -> dict[str, Tensor]:
        """The optimizer's tensors."""
        return load_file(self.folder / OPTIMIZER)


def write(
    checkpoints: Path, step: int, weights: dict[str, Tensor], optimizer: dict[str, Tensor], provenance: dict[str, Any]
) -> Checkpoint:
    """Write a checkpoint that appears whole or not at all, and drop all but the newest `KEPT`.

    Args:
        checkpoints: the run's folder of checkpoints.
        provenance: what else the manifest says: fingerprints of the specification and the data, versions.
    """
    folder = checkpoints / f"step-{step:08d}"
    if folder.exists():  # saved, then interrupted: what is whole stays, for a run's step determines its weights
        try:
            return opened(folder)
        except CheckpointError:
            shutil.rmtree(folder)
    atomic.remove_unfinished(checkpoints)
    with atomic.new_folder(folder) as temporary:
        save(temporary / SINGLE, weights)
        save(temporary / OPTIMIZER, optimizer)
        files = {name: _identity(temporary / name) for name in (SINGLE, OPTIMIZER)}
        manifest = {"step": step, "files": files} | provenance
        atomic.write_json(temporary / MANIFEST, manifest | {"sha256": _seal(manifest)})
    for old in _folders(checkpoints)[:-KEPT]:
        shutil.rmtree(old, ignore_errors=True)
    return Checkpoint(folder, manifest)


def latest(checkpoints: Path) -> Checkpoint | None:
    """The newest checkpoint that is whole; None where there is none at all.

    Raises:
        CheckpointError: there are checkpoints, but the newest is damaged; names the file, and offers the one before.
    """
    folders = _folders(checkpoints)
    return opened(folders[-1]) if folders else None


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
    others = [other for other in _folders(folder.parent) if other != folder]
    remedy = f"remove {folder} to go on from {others[-1].name}" if others else f"remove {folder} and start again"
    return CheckpointError(str(folder / name), cause, remedy)


def _folders(checkpoints: Path) -> list[Path]:
    """Checkpoint folders, oldest first."""
    folders = [path for path in checkpoints.glob("step-*") if path.name[5:].isdecimal() and path.is_dir()]
    return sorted(folders, key=lambda path: int(path.name[5:]))


def _identity(file: Path) -> dict[str, Any]:
    with file.open("rb") as stream:
        return {"bytes": file.stat().st_size, "sha256": hashlib.file_digest(stream, "sha256").hexdigest()}
