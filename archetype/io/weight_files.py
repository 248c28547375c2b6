"""Which files of a folder hold a checkpoint's tensors, and the tensors' names, types and shapes. No torch.

The files are safetensors; pickles of older checkpoints are looked for on request.
"""

from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from archetype.errors import CheckpointError
from archetype.io.files import MAX_INDEX_BYTES, read_json

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
PICKLED_INDEX = "pytorch_model.bin.index.json"
PICKLED = "pytorch_model.bin"


class TensorHeader(NamedTuple):
    """What a safetensors file says of one tensor."""

    dtype: str  # as the format spells it: F32, BF16, F8_E4M3, U8, ...
    shape: tuple[int, ...]


Header = dict[str, TensorHeader]  # by the names of the tensors


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
    weight_map = read_json(index, MAX_INDEX_BYTES, CheckpointError).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(shard, str) for shard in weight_map.values()):
        raise CheckpointError(str(index), "its weight_map is not a mapping of names", "download it again")
    files = {path.name for path in index.parent.iterdir() if path.is_file()}
    for name, shard in weight_map.items():
        place = f"{index}: weight_map: {name}"
        if shard in ("", "..") or PurePosixPath(shard).name != shard or "\\" in shard:
            raise CheckpointError(place, f"{shard!r} points outside the model's folder", "do not trust this checkpoint")
        if shard not in files:
            raise CheckpointError(place, f"{shard!r} is missing", "download it")
    return {name: index.parent / shard for name, shard in weight_map.items()}


def header(folder: Path) -> Header:
    """The type and shape of every tensor of a checkpoint in safetensors, by name, without reading the tensors."""
    file = find(folder)
    handles = [opened(shard, "np") for shard in (sorted(set(listed(file).values())) if is_index(file) else [file])]
    return {name: tensor_header(handle, name) for handle in handles for name in list(handle.keys())}


def tensor_header(handle: Any, name: str) -> TensorHeader:
    """What an open file says of one tensor."""
    tensor = handle.get_slice(name)
    return TensorHeader(tensor.get_dtype(), tuple(tensor.get_shape()))


def opened(file: Path, framework: str) -> Any:
    """An open safetensors file, whose tensors are made by `framework`."""
    from safetensors import SafetensorError, safe_open

    try:
        return safe_open(file, framework=framework)
    except (SafetensorError, OSError, MemoryError) as error:
        cause = " ".join(str(error).split())
        raise CheckpointError(str(file), f"is not a whole safetensors file: {cause}", "download it again") from None
