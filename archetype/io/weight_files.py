"""Which files of a folder hold a checkpoint's tensors, and the tensors' names and shapes. No torch.

The files are safetensors; pickles of older checkpoints are looked for on request.
"""

import json
from pathlib import Path, PurePosixPath
from typing import Any

from archetype.errors import CheckpointError

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
PICKLED_INDEX = "pytorch_model.bin.index.json"
PICKLED = "pytorch_model.bin"


def find(folder: Path, allow_pickle: bool = False) -> Path:
    """The index of a checkpoint in several files, or its only file.

    Args:
        folder: of the checkpoint.
        allow_pickle: whether to look for pytorch_model.bin as well.

    Raises:
        CheckpointError: none is there.
    """
    names = [INDEX, SINGLE] + ([PICKLED_INDEX, PICKLED] if allow_pickle else [])
    for name in names:
        if (folder / name).is_file():
            return folder / name
    old = sorted(path.name for path in [*folder.glob("*.bin"), *folder.glob("*.pt"), *folder.glob("*.pth")])
    remedy = "is it a model folder?"
    if {PICKLED, PICKLED_INDEX} & {path.name for path in folder.iterdir()}:
        remedy = f"{old[0]} is a pickle: `archetype import --allow-pickle` reads one, without running what is in it"
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
    """The shape of every tensor of a checkpoint in safetensors, by name, without reading the tensors."""
    file = find(folder)
    handles = [opened(shard, "np") for shard in (sorted(set(listed(file).values())) if is_index(file) else [file])]
    return {name: tuple(handle.get_slice(name).get_shape()) for handle in handles for name in list(handle.keys())}


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
        weight_map = json.loads(index.read_bytes())["weight_map"]
    except (ValueError, KeyError, TypeError, OSError, RecursionError) as error:
        raise CheckpointError(str(index), f"is not an index of weights: {error}", "download it again") from None
    if not isinstance(weight_map, dict) or not all(isinstance(n, str) for pair in weight_map.items() for n in pair):
        raise CheckpointError(str(index), "its weight_map is not a mapping of names", "download it again")
    return weight_map


def _shard(index: Path, name: str, shard: str) -> Path:
    parts = PurePosixPath(shard).parts
    if len(parts) != 1 or parts[0] in ("..", "/") or "\\" in shard:
        cause = f"{shard!r} points outside the model's folder"
        raise CheckpointError(f"{index}: weight_map: {name}", cause, "do not trust this checkpoint")
    file = index.parent / shard
    if not file.is_file():
        raise CheckpointError(f"{index}: weight_map: {name}", f"{shard!r} is missing", "download it")
    return file
