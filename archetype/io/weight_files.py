"""Search for a checkpoint's weight files, and names, dtypes and shapes of its tensors without torch.

The files are safetensors. Pickles of older checkpoints are considered on request.
"""

from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from archetype.errors import CheckpointError
from archetype.io.files import MAX_INDEX_BYTES, check_regular, json_object, read_json

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
PICKLED_INDEX = "pytorch_model.bin.index.json"
PICKLED = "pytorch_model.bin"
NAMES = (SINGLE, INDEX, PICKLED, PICKLED_INDEX)  # the first that exists is read, as in transformers
NAMED = "transformers_weights"  # key of config.json that names the file
MAX_HEADER_BYTES = 100_000_000  # as in the safetensors library
SIZE_BYTES = 8  # of the header's length, at the start of a file


class TensorHeader(NamedTuple):
    """Header entry of a tensor in a safetensors file."""

    dtype: str  # in safetensors' spelling: F32, BF16, F8_E4M3, U8, ...
    shape: tuple[int, ...]


Header = dict[str, TensorHeader]  # by the names of the tensors


def find(folder: Path, allow_pickle: bool = False) -> Path:
    """Return the index of a sharded checkpoint, or its only weight file.

    A folder with several sets is read as in transformers: the file named by config.json comes first, then a single file
    before an index, and safetensors before pickles.

    Args:
        allow_pickle: whether to consider pytorch_model.bin too.

    Raises:
        CheckpointError: the folder has no checkpoint, or config.json names a missing file.
    """
    name = chosen(folder / "config.json", lambda name: (folder / name).is_file(), NAMES if allow_pickle else NAMES[:2])
    if name is not None:
        return folder / name
    old = sorted(path.name for path in [*folder.glob("*.bin"), *folder.glob("*.pt"), *folder.glob("*.pth")])
    remedy = "is it a model folder?"
    if {PICKLED, PICKLED_INDEX} & {path.name for path in folder.iterdir()}:
        remedy = f"{old[0]} is a pickle: `archetype import --allow-pickle` reads it without running code"
    elif old:
        remedy = f"convert {old[0]} to safetensors; pickled files are not read"
    raise CheckpointError(str(folder), f"there is neither {SINGLE} nor {INDEX}", remedy)


def chosen(config: Path, is_there: Callable[[str], bool], names: Sequence[str] = NAMES[:2]) -> str | None:
    """Return the weight file or index that transformers would read, in a folder or on the hub; None if there is none.

    Args:
        config: path of config.json, which may not exist and may name the file.
        is_there: returns whether the checkpoint has a file of this name.
        names: candidate names in order of preference.

    Raises:
        CheckpointError: config.json names a missing file.
    """
    if (named := _named(config, is_there)) is not None:
        return named
    return next((name for name in names if is_there(name)), None)


def has_weights(folder: Path) -> bool:
    return chosen(folder / "config.json", lambda name: (folder / name).is_file(), NAMES) is not None


def _named(config: Path, is_there: Callable[[str], bool]) -> str | None:
    name = read_json(config, MAX_INDEX_BYTES, CheckpointError).get(NAMED) if config.is_file() else None
    if name is None:
        return None
    field = f"{config}: {NAMED}"
    if not isinstance(name, str) or not name.endswith((".safetensors", ".safetensors.index.json")):
        raise CheckpointError(field, f"{name!r} is not a safetensors file or its index", "fix the file")
    if PurePosixPath(name).name != name or "\\" in name:
        raise CheckpointError(field, f"{name!r} points outside the model's folder", "do not trust this checkpoint")
    if not is_there(name):
        raise CheckpointError(field, f"{name!r} is missing", "download it")
    return name


def unread_set(folder: Path) -> str | None:
    """Return a notice about a second set of safetensors files that is not read; None if there is only one set."""
    file = find(folder, allow_pickle=True)
    others = [name for name in NAMES[:2] if name != file.name and (folder / name).is_file()]
    if not others:
        return None
    return f"{others[0]} is another set of weights, which is not read; only {file.name} is, as in transformers"


def is_index(file: Path) -> bool:
    return file.name.endswith(".index.json")


def weight_map(index: Path) -> dict[str, str]:
    """Return {tensor: file name} from an index. Refuse paths outside its folder."""
    names = read_json(index, MAX_INDEX_BYTES, CheckpointError).get("weight_map")
    if not isinstance(names, dict) or not all(isinstance(shard, str) for shard in names.values()):
        raise CheckpointError(
            str(index), "weight_map does not map tensor names to file names", "download the file again"
        )
    for name, shard in names.items():
        # "\\" is a separator on Windows only, but an index is read on every system
        if shard in ("", "..") or PurePosixPath(shard).name != shard or "\\" in shard:
            cause = f"{shard!r} points outside the model's folder"
            raise CheckpointError(f"{index}: weight_map: {name}", cause, "do not trust this checkpoint")
    return names


def listed(index: Path) -> dict[str, Path]:
    """Return {tensor: path} from an index. Refuse missing files and paths outside its folder."""
    files = {path.name for path in index.parent.iterdir() if path.is_file()}
    names = weight_map(index)
    for name, shard in names.items():
        if shard not in files:
            raise CheckpointError(f"{index}: weight_map: {name}", f"{shard!r} is missing", "download it")
    return {name: index.parent / shard for name, shard in names.items()}


def header(folder: Path) -> Header:
    """Return the dtype and shape of every tensor in a safetensors checkpoint. Only the headers are read."""
    file = find(folder)
    shards = sorted(set(listed(file).values())) if is_index(file) else [file]
    return {name: tensor for shard in shards for name, tensor in file_header(shard).items()}


def file_header(file: Path) -> Header:
    """Read the header of a safetensors file without checking the data after the header."""
    check_regular(file, CheckpointError)
    try:
        with file.open("rb") as stream:
            size = int.from_bytes(stream.read(SIZE_BYTES), "little")
            data = stream.read(size) if size <= MAX_HEADER_BYTES else b""
    except OSError as problem:
        cause = f"cannot be read: {problem.strerror or problem}"
        raise CheckpointError(str(file), cause, "check the path and its permissions") from None
    if len(data) < max(size, 2):
        raise CheckpointError(str(file), "does not begin with a complete safetensors header", "download it again")
    entries = json_object(data, str(file), CheckpointError)
    return {name: _tensor(f"{file}: {name}", entry) for name, entry in entries.items() if name != "__metadata__"}


def _tensor(field: str, entry: Any) -> TensorHeader:
    dtype, shape = (entry.get("dtype"), entry.get("shape")) if isinstance(entry, dict) else (None, None)
    if (
        not isinstance(dtype, str)
        or not isinstance(shape, list)
        or not all(type(size) is int and size >= 0 for size in shape)
    ):
        raise CheckpointError(field, "has no type and shape in the header", "download the file again")
    return TensorHeader(dtype, tuple(shape))


def opened(file: Path, framework: str) -> Any:
    """Open a safetensors file. Its tensors have the type of `framework`, such as "pt"."""
    from safetensors import SafetensorError, safe_open

    check_regular(file, CheckpointError)
    try:
        return safe_open(file, framework=framework)
    except (SafetensorError, OSError, MemoryError) as error:
        cause = " ".join(str(error).split())
        raise CheckpointError(str(file), f"is not a complete safetensors file: {cause}", "download it again") from None
