"""One layer of a GGUF file: its tensors, and its own values of keys."""

from dataclasses import dataclass
from typing import Literal

from archetype.convert.gguf.keys import FileKeys
from archetype.spec.base import MAX_WIDE


@dataclass(frozen=True)
class Layer:
    """One layer of a file: its tensors, and its values of keys, which may be per-layer lists."""

    keys: FileKeys
    index: int

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Return the shape of a tensor of this layer; None if the file does not have it."""
        return self.keys.shapes.get(f"blk.{self.index}.{name}")

    def has(self, name: str) -> bool:
        return self.shape(name) is not None

    def count(self, key: str, default: int | None = None) -> int:
        """Return this layer's value of a key as an integer of at least 0."""
        value = self.keys.get(key, default)
        value = value[self.index] if isinstance(value, list) and len(value) > self.index else value
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_WIDE:
            raise self.keys.error(key, f"{value!r:.80} is not a number of layer {self.index}", "fix the file")
        return value


Has = Literal["no", "any", "all"]  # whether no layer has something, the tensors show it, or every layer has it


def has(has: Has, shown: bool) -> bool:
    return shown if has == "any" else has == "all"
