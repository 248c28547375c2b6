"""The interface shared by mixers and feed-forward parts, the contents of a block."""

from collections.abc import Iterator
from typing import Any

from archetype.roles.parallel import InLayout


class Content(InLayout):
    """Base class of the contents of a block."""

    def named_parts(self) -> Iterator[tuple[str, Any]]:
        """Yield (module path, part) for each part; a content that combines several parts overrides this."""
        yield "", self

    def each(self) -> Iterator[Any]:
        return (part for _, part in self.named_parts())

    @property
    def tokens_read_by(self) -> str | None:
        """Field that makes it read token ids, which a stack of vectors does not have; None if it reads none."""
        return None

    @property
    def layer_features(self) -> int:
        """Features of the per-layer embedding vectors that it reads; 0 if it reads none."""
        return 0
