"""Read the tensors of GGUF files in the model's layout: dequantized, with features in the model's order."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from archetype.convert.gguf.changes import Change
from archetype.convert.gguf.header import Entry, Header, gguf_library
from archetype.convert.gguf.keys import Gguf
from archetype.errors import CheckpointError
from archetype.io.tensors import Tensors
from archetype.models.spec import ModelSpec

PLAIN = {
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F64": torch.float64,
    "I32": torch.int32,
}
WEIGHTS_AT_ONCE = 2**20  # dequantized in one step
FUSED, HALVES = "ffn_gate_up_exps.weight", ("ffn_gate_exps.weight", "ffn_up_exps.weight")


class FileTensors(Tensors):
    """Tensors named by the weight rules, read from GGUF files on demand."""

    def __init__(
        self, header: Header, target: Gguf, model: ModelSpec, names: Iterable[str], dtype: torch.dtype
    ) -> None:
        self._header, self._model, self._dtype = header, model, dtype
        self._maps: dict[Path, Any] = {}
        entries = header.entries
        self._changes: dict[str, tuple[Change, list[str]]] = {}
        for name in names:
            change = target.change(name)
            stored = change.names(name) if change is not None else []
            if change is not None and stored and all(part in entries for part in stored):
                self._changes[name] = change, stored
        # newer files may have the gates and projections of all experts in one tensor, (E, 2 F, D)
        self._halves = {
            f"{name.removesuffix(FUSED)}{half}": (name, index)
            for name in entries
            if name.endswith(FUSED)
            for index, half in enumerate(HALVES)
        }
        # tensors that only exist as parts of a converted one have no rule of their own
        parts = {part for _, stored in self._changes.values() for part in stored}
        parts |= {name for name, _ in self._halves.values()}
        self._numbers_of_layers = dict(_numbers_of_layers(header, target, model.num_layers))
        self._names = [
            *(*self._changes, *self._halves, *self._numbers_of_layers),
            *(name for name in entries if name not in parts),
        ]

    def names(self) -> list[str]:
        """Return the names of the converted tensors, then of all other tensors in the file."""
        return self._names

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape that a tensor has in the model, without reading data."""
        if name in self._numbers_of_layers:
            return tuple(self._numbers_of_layers[name].shape)
        if name in self._halves:
            experts, rows, width = self._header.entries[self._halves[name][0]].shape
            return experts, rows // 2, width
        if name not in self._changes:
            return self._header.entries[name].shape
        # the conversion on meta tensors gives the shape
        change, stored = self._changes[name]
        empty = tuple(torch.empty(self._header.entries[part].shape, device="meta") for part in stored)
        try:
            return tuple(change.read(empty, self._model).shape)
        except (RuntimeError, ValueError, IndexError):
            shapes = " and ".join(str(list(self._header.entries[part].shape)) for part in stored)
            cause = f"has shape {shapes}, which does not match the file's heads"
            raise CheckpointError(f"{self._header.place}: {stored[0]}", cause, "is the file complete?") from None

    def mapped(self, name: str) -> Tensor:
        """Return a tensor in the requested dtype: a view of the file if possible, otherwise a copy."""
        if name in self._numbers_of_layers:
            return self._numbers_of_layers[name].to(self._dtype)
        if name in self._changes:
            change, stored = self._changes[name]
            return change.read(tuple(map(self._stored, stored)), self._model).to(self._dtype).contiguous()
        if name in self._halves:
            fused, half = self._halves[name]
            gates, projections = self._stored(fused).chunk(2, dim=1)
            return (projections if half else gates).to(self._dtype).contiguous()
        entry = self._header.entries[name]
        if PLAIN.get(entry.type) == self._dtype:
            return self._plain(self._bytes(entry, shared=True), entry)
        return self._numbers(name, self._dtype)

    def stored(self, name: str) -> Tensor:
        """Return a tensor of token ids or counters: int64 in a model, int32 in a file."""
        stored = self._stored(name)
        return stored.long() if stored.dtype == torch.int32 else stored

    @contextmanager
    def copied(self, name: str, of_weights: bool = True) -> Iterator[Tensor]:
        """Yield a tensor that is valid while the context is open."""
        yield self.mapped(name)

    def is_exact(self, dtype: torch.dtype) -> bool:
        """Return whether `dtype` represents all float32 tensors of the file exactly."""
        return all(self._stays(name, dtype) for name in self._names)

    def _stays(self, name: str, dtype: torch.dtype) -> bool:
        if name in self._halves:
            return True  # a matrix
        if name in self._numbers_of_layers:
            number = self._numbers_of_layers[name]
            return torch.equal(number.to(dtype).float(), number)
        change, names = self._changes.get(name, (None, [name]))
        if {self._header.entries[part].type for part in names} != {"F32"}:
            return True
        stored = tuple(map(self._stored, names))
        if change is None:
            return torch.equal(stored[0].to(dtype).float(), stored[0])
        # round trip: what would be written from the narrower parameter must be what the file has
        written = change.write(change.read(stored, self._model).to(dtype), self._model, None)
        return all(torch.equal(tensor.float(), other) for tensor, other in zip(written, stored, strict=True))

    def _stored(self, name: str) -> Tensor:
        entry = self._header.entries[name]
        if entry.type in PLAIN:
            return self._plain(self._bytes(entry), entry)
        return self._numbers(name, torch.float32)

    def _bytes(self, entry: Entry, shared: bool = False) -> Any:
        shape = (entry.num_rows, entry.row_bytes)
        if not shared:  # a mapping of this tensor only, freed with the array
            return np.memmap(entry.file, np.uint8, "c", entry.offset, shape).view(np.ndarray)
        if entry.file not in self._maps:  # one mapping of the file for all views
            self._maps[entry.file] = np.memmap(entry.file, np.uint8, "c")
        mapped = self._maps[entry.file]
        return mapped[entry.offset : entry.offset + entry.num_bytes].reshape(shape)

    @staticmethod
    def _plain(data: Any, entry: Entry) -> Tensor:
        return torch.from_numpy(data).view(PLAIN[entry.type]).view(entry.shape)

    def _numbers(self, name: str, dtype: torch.dtype) -> Tensor:
        entry = self._header.entries[name]
        data = self._bytes(entry)
        if entry.type in PLAIN:
            return self._plain(data, entry).to(dtype)
        library = gguf_library()
        kind = library.GGMLQuantizationType[entry.type]
        weights = torch.empty(entry.num_rows, entry.shape[-1], dtype=dtype)
        step = max(1, WEIGHTS_AT_ONCE // entry.shape[-1])  # rows; bounds the float32 copies that gguf makes
        try:
            with np.errstate(all="ignore"):  # a corrupt scale may be infinite or NaN
                for start in range(0, entry.num_rows, step):
                    piece = library.quants.dequantize(data[start : start + step], kind)
                    weights[start : start + step] = torch.from_numpy(piece)
        except NotImplementedError:
            cause = f"has type {entry.type}, which gguf cannot dequantize"
            raise CheckpointError(f"{self._header.place}: {name}", cause, "quantize it in another type") from None
        return weights.view(entry.shape)


def _numbers_of_layers(header: Header, target: Gguf, num_layers: int) -> Iterator[tuple[str, Tensor]]:
    # parameters that are keys of the file: a list with one for each layer, or one for all
    for key, shape in target.numbers.items():
        values = header.metadata.get(key)
        values = values if isinstance(values, list) else [values] * num_layers
        if len(values) < num_layers or not all(isinstance(value, float) for value in values):
            cause = f"{values!r:.80} does not have a number for each of {num_layers} layers"
            raise CheckpointError(f"{header.place}: {key}", cause, "is the file complete?")
        for layer, value in enumerate(values[:num_layers]):
            yield f"{key}.{layer}", torch.full(shape, value)
