"""Allocations counted: the bytes of all storages that operations return, for as long as they live."""

import weakref
from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


class LiveBytes(TorchDispatchMode):
    """Counts what is allocated, and the most at once; of tensors in shards what this process holds.

    Args:
        before: tensors that are there already and do not count.
    """

    def __init__(self, before: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self.live = self.peak = 0
        self.known = {tensor.untyped_storage()._cdata for tensor in before}
        self._patches = ExitStack()

    def __enter__(self) -> "LiveBytes":
        """Count what native kernels allocate, which would leave their work to torch where something watches it."""
        self._patches.enter_context(patch("archetype.native.kernels.is_watched", lambda: False))
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._patches.close()

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = operation(*args, **(kwargs or {}))
        for value in tree_iter(output):
            value = getattr(value, "_local_tensor", value)
            if isinstance(value, torch.Tensor) and (storage := value.untyped_storage())._cdata not in self.known:
                self._add(storage._cdata, storage.nbytes(), 1)
                weakref.finalize(storage, self._add, storage._cdata, storage.nbytes(), -1)
        return output

    def _add(self, storage: int, size: int, sign: int) -> None:
        (self.known.add if sign > 0 else self.known.discard)(storage)
        self.live += sign * size
        self.peak = max(self.peak, self.live)
