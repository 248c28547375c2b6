"""What every content of a block is asked, be it a mixer or a feed-forward part."""

from collections.abc import Iterator
from typing import Any

from archetype.roles.parallel import InLayout


class Content(InLayout):
    """Base of the contents of a block."""

    def named_parts(self) -> Iterator[tuple[str, Any]]:
        """The parts that it is made of, by the path of their modules inside its own: itself, unless it joins others."""
        yield "", self

    def each(self) -> Iterator[Any]:
        """The parts that it is made of."""
        return (part for _, part in self.named_parts())

    @property
    def tokens_read_by(self) -> str | None:
        """The field by which it reads ids of tokens, which no stack of vectors alone has; None where none does."""
        return None

    @property
    def layer_features(self) -> int:
        """Features of the vectors that it reads of what the embedding gives its layer; 0 where it reads none."""
        return 0
