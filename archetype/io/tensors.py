"""Memory-mapped tensors of a checkpoint in one or more files.

The files are safetensors. Pickles of older checkpoints are read on request, with torch's weights-only unpickler.
"""

import mmap
import pickle
import warnings
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from math import prod
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from archetype.errors import CheckpointError
from archetype.io import atomic
from archetype.io import weight_files as files
from archetype.io.slices import Slices

SHARD_BYTES = 5 * 10**9
MAPPED_BYTES = 2**20  # smaller tensors use the ordinary allocator
NO_SETTINGS = "there is no quantization_config that explains it"
# safetensors' names of the types in a pickle.
PICKLED_TYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64}


class Tensors:
    """Names, shapes and data of a checkpoint's tensors.

    `mapped` returns a view of the file. `copied` yields a view to copy from, and releases the pages of the file after
    the block.
    """

    def __init__(self, files: dict[Path, Any], where: dict[str, Path]) -> None:
        self._files = files
        self._where = where

    @classmethod
    def open(cls, folder: Path, allow_pickle: bool = False) -> "Tensors":
        """Open the checkpoint in a folder: an index with shards, or a single file.

        Args:
            allow_pickle: whether to read pytorch_model.bin if there are no safetensors files.

        Raises:
            CheckpointError: there is no checkpoint, a file is truncated, or the index names a file outside the folder.
        """
        file = files.find(folder, allow_pickle)
        return cls.sharded(file) if files.is_index(file) else cls.single(file)

    @classmethod
    def single(cls, file: Path) -> "Tensors":
        handle = _open(file)
        return cls({file: handle}, dict.fromkeys(handle.keys(), file))

    @classmethod
    def sharded(cls, index: Path) -> "Tensors":
        """Open the tensors in an index, after a check that each tensor is in its shard."""
        where = files.listed(index)
        handles = {file: _open(file) for file in sorted(set(where.values()))}
        present = {file: set(handle.keys()) for file, handle in handles.items()}
        for name, file in where.items():
            if name not in present[file]:
                raise CheckpointError(f"{index}: {name}", f"is not in {file.name}", "download the checkpoint again")
        unlisted = sorted(name for names in present.values() for name in names if name not in where)
        if unlisted:
            raise CheckpointError(f"{index}: {unlisted[0]}", "is in a shard but not in the index", "fix the index")
        return cls(handles, where)

    def names(self) -> list[str]:
        return list(self._where)

    def header(self) -> files.Header:
        slices = {name: self._files[file].get_slice(name) for name, file in self._where.items()}
        return {name: files.TensorHeader(entry.get_dtype(), tuple(entry.get_shape())) for name, entry in slices.items()}

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._files[self._where[name]].get_slice(name).get_shape())

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: self.shape(name) for name in self.names()}

    def dtype(self, name: str) -> torch.dtype:
        return self.mapped(name).dtype

    def mapped(self, name: str) -> Tensor:
        """Return a weight as a view of its file."""
        return self._read(name, self._files[self._where[name]])

    def stored(self, name: str) -> Tensor:
        """Return a tensor with any dtype as a view of its file."""
        return self._files[self._where[name]].get_tensor(name)

    @contextmanager
    def copied(self, name: str, of_weights: bool = True) -> Iterator[Tensor]:
        """Yield a tensor to copy from within the block. `of_weights` refuses dtypes that weights cannot have."""
        # a separate mapping, whose pages the system can drop when the block ends
        handle = _open(self._where[name])
        yield self._read(name, handle) if of_weights else handle.get_tensor(name)
        del handle

    def _read(self, name: str, handle: Any) -> Tensor:
        try:
            tensor: Tensor = handle.get_tensor(name)
        except SafetensorError as error:  # a type that torch does not have
            raise CheckpointError(name, f"cannot be read: {error}", NO_SETTINGS) from None
        if not tensor.dtype.is_floating_point or tensor.dtype.itemsize == 1:
            cause = f"is stored as {str(tensor.dtype).removeprefix('torch.')}"
            raise CheckpointError(name, cause, NO_SETTINGS)
        return tensor


class Selected(Mapping[str, Tensor]):
    """Mapping of selected tensors in a checkpoint, which are read on each access."""

    def __init__(self, tensors: Tensors, names: Iterable[str]) -> None:
        self._tensors, self._names = tensors, dict.fromkeys(names)

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._names:
            raise KeyError(name)
        return self._tensors.mapped(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def empty(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device | None = None) -> Tensor:
    """Allocate an uninitialized tensor (default: on the CPU) whose memory returns to the system when it is freed."""
    # the heap of the C library may keep freed memory; an anonymous mapping never does
    size = prod(shape) * dtype.itemsize
    if size < MAPPED_BYTES or device not in (None, torch.device("cpu")):
        return torch.empty(shape, dtype=dtype, device=device)
    flags = {} if not hasattr(mmap, "MAP_ANONYMOUS") else {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS}
    return torch.frombuffer(mmap.mmap(-1, size, **flags), dtype=dtype).view(shape)


def save(path: Path, tensors: Mapping[str, Tensor]) -> None:
    def write(temporary: Path) -> None:
        try:
            save_file({name: t.detach().contiguous() for name, t in tensors.items()}, temporary, {"format": "pt"})
        except SafetensorError as error:  # with the system's error as its text
            raise atomic.refused(path, error) from None

    atomic.write_with(path, write)


class _Pickle(dict[str, Tensor]):
    """Pickle of tensors, with the interface of an open safetensors file."""

    def __init__(self, file: Path) -> None:
        try:
            mapped = zipfile.is_zipfile(file)  # the format before torch 1.6 is not a zip archive and cannot be mapped
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about other protocols, which the unpickler reads or refuses
                tensors = torch.load(file, map_location="cpu", weights_only=True, mmap=mapped)
        except (pickle.UnpicklingError, RuntimeError, OSError, ValueError, EOFError, KeyError) as error:
            cause = " ".join(str(error).split())[:200]
            remedy = "download it again, or look for safetensors"
            raise CheckpointError(str(file), f"is not a pickle of tensors only: {cause}", remedy) from None
        if not isinstance(tensors, dict) or not all(isinstance(tensor, Tensor) for tensor in tensors.values()):
            raise CheckpointError(str(file), "does not map names to tensors", "look for safetensors")
        super().__init__(tensors)

    def get_tensor(self, name: str) -> Tensor:
        return self[name].detach()  # a pickled parameter may require a gradient

    def get_slice(self, name: str) -> SimpleNamespace:
        tensor = self[name]
        dtype = PICKLED_TYPES.get(tensor.dtype, str(tensor.dtype).removeprefix("torch."))
        return SimpleNamespace(get_shape=lambda: list(tensor.shape), get_dtype=lambda: dtype)


def _open(file: Path) -> Any:
    if file.is_dir():
        return Slices(file)
    return _Pickle(file) if file.suffix == ".bin" else files.opened(file, "pt")


def dtype_of(dtype: str | torch.dtype | None) -> torch.dtype | None:
    """Return the torch dtype with a name such as "bfloat16". Dtypes and None are returned unchanged."""
    if isinstance(dtype, str) and dtype not in DTYPES:
        raise CheckpointError("dtype", f"unknown dtype {dtype!r}", f"use one of {', '.join(DTYPES)}")
    return DTYPES[dtype] if isinstance(dtype, str) else dtype
