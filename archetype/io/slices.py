"""Tensors split into slices over several safetensors files, as torch.distributed.checkpoint writes them."""

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from archetype.errors import CheckpointError
from archetype.io import weight_files

KEY, OFFSETS = "DCP_SHARDING_INFO", "saved_offsets"  # of a file's metadata


class Slices:
    """Folder of slices, with the interface of an open safetensors file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._slices: dict[str, list[tuple[list[int], Any]]] = {}
        for file in sorted(folder.glob("*.safetensors")):
            handle = weight_files.opened(file, "pt")
            try:
                sharding = json.loads((handle.metadata() or {})[KEY])
                for name in handle.keys():  # noqa: SIM118  # not a mapping
                    self._slices.setdefault(name, []).append(([*map(int, sharding[name][OFFSETS])], handle))
            except (KeyError, TypeError, ValueError):
                cause = "has no valid metadata of slices"
                raise CheckpointError(str(file), cause, "restore the checkpoint") from None
        if not self._slices:
            raise CheckpointError(str(folder), "contains no slices of tensors", "restore the checkpoint")

    def keys(self) -> list[str]:
        return [*self._slices]

    def get_slice(self, name: str) -> SimpleNamespace:
        return SimpleNamespace(get_shape=lambda: self._shape(name))

    def get_tensor(self, name: str) -> Tensor:
        shape, slices = self._shape(name), self._slices[name]
        parts = [(offsets, handle.get_tensor(name)) for offsets, handle in slices]
        # a tensor in a single slice needs no copy
        if len(parts) == 1 and list(parts[0][1].shape) == shape:
            return parts[0][1]
        if sum(part.numel() for _, part in parts) != math.prod(shape):
            raise CheckpointError(
                f"{self.folder}: {name}", "is incomplete: a slice is missing", "restore the checkpoint"
            )
        tensor = torch.empty(shape, dtype=parts[0][1].dtype)
        for offsets, part in parts:
            tensor[tuple(slice(first, first + size) for first, size in zip(offsets, part.shape, strict=True))] = part
        return tensor

    def _shape(self, name: str) -> list[int]:
        # the shape of the whole is not stored: it is the largest end of a slice along each axis
        ends = [
            [first + size for first, size in zip(offsets, handle.get_slice(name).get_shape(), strict=True)]
            for offsets, handle in self._slices[name]
        ]
        return [max(sizes) for sizes in zip(*ends, strict=True)]
