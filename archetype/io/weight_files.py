"""Which files of a folder hold a checkpoint's tensors, and what they say of them without being read. No torch.

The files are safetensors; pickles of older checkpoints count where that is asked for.
"""

import json
from pathlib import Path, PurePosixPath
from typing import Any

from archetype.errors import CheckpointError

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
PICKLED_INDEX = "pytorch_model.bin.index.json"
PICKLED = "pytorch_model.bin"


def find(folder: Path, pickled: bool = False) -> Path:
    """The index of a checkpoint in several files, or its only file; pickles only if they may be.

    Raises:
        CheckpointError: none is there.
    """
    names = [INDEX, SINGLE] + ([PICKLED_INDEX, PICKLED] if pickled else [])
    for name in names:
        if (folder / name).is_file():
            return folder / name
    old = sorted(path.name for path in [*folder.glob("*.bin"), *folder.glob("*.pt"), *folder.glob("*.pth")])
    remedy = "is it a model folder?"
    if {PICKLED, PICKLED_INDEX} & {path.name for path in folder.iterdir()}:
        remedy = f"{old[0]} is a pickle: `archetype load --pickled` reads one, without running what is in it"
    elif old:
        remedy = f"convert {old[0]} to safetensors; pickled files are not read"
    raise CheckpointError(str(folder), f"there is neither {SINGLE} nor {INDEX}", remedy)


def is_index(file: Path) -> bool:
    """Whether a file lists others."""
    return file.name in (INDEX, PICKLED_INDEX)


def listed(index: Path) -> dict[str, Path]:
    """The file of each tensor that an index lists, which must be in its own folder."""
    return {name: _shard(index, name, shard) for name, shard in _weight_map(index).items()}


def shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor of a checkpoint in safetensors, by name; numbers are not read."""
    found = find(folder)
    handles = [opened(file, "np") for file in (sorted(set(listed(found).values())) if is_index(found) else [found])]
    return {name: tuple(file.get_slice(name).get_shape()) for file in handles for name in list(file.keys())}


def opened(file: Path, framework: str) -> Any:
    """An open safetensors file, whose tensors are made by `framework`."""
    from safetensors import SafetensorError, safe_open

    try:
        return safe_open(file, framework=framework)
    except (SafetensorError, OSError) as error:
        cause = " ".join(str(error).split())
        raise CheckpointError(str(file), f"is not a whole safetensors file: {cause}", "download it again") from None


def _weight_map(index: Path) -> dict[str, str]:
    try:
        found = json.loads(index.read_bytes())["weight_map"]
    except (ValueError, KeyError, TypeError, OSError, RecursionError) as error:
        raise CheckpointError(str(index), f"is not an index: {error}", "download it again") from None
    if not isinstance(found, dict) or not all(isinstance(name, str) for pair in found.items() for name in pair):
        raise CheckpointError(str(index), "its weight_map is not a mapping of names", "download it again")
    return found


def _shard(index: Path, name: str, shard: str) -> Path:
    parts = PurePosixPath(shard).parts
    if len(parts) != 1 or parts[0] in ("..", "/") or "\\" in shard:
        cause = f"{shard!r} points outside the model's folder"
        raise CheckpointError(f"{index}: weight_map: {name}", cause, "do not trust this checkpoint")
    file = index.parent / shard
    if not file.is_file():
        raise CheckpointError(f"{index}: weight_map: {name}", f"{shard!r} is missing", "download it")
    return file
