"""Interface shared by mixers and feed-forward parts, the sublayers of a block."""

from collections.abc import Iterator
from typing import Any

from archetype.roles.parallel import InLayout


class Content(InLayout):
    """Base class of block sublayers: mixers and feed-forward parts."""

    def named_parts(self) -> Iterator[tuple[str, Any]]:
        """Yield (module path, part) for each part. Sublayers that combine several parts override this method."""
        yield "", self

    def each(self) -> Iterator[Any]:
        return (part for _, part in self.named_parts())

    @property
    def tokens_read_by(self) -> str | None:
        """Field that makes this sublayer read token ids; None if it reads only vectors."""
        return None

    @property
    def layer_features(self) -> int:
        """Width of the per-layer embedding vectors that this sublayer reads; 0 if it does not read them."""
        return 0
