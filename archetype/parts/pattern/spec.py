"""Which pairs of positions an attention allows, by the field's names; `archetype/patterns` has their rules."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from archetype.roles.pattern import Pattern
from archetype.spec.base import MAX_SIZE, Flag, Size, invalid
from archetype.spec.kinds import part

__all__ = ["BigBird", "Chunked", "Fixed", "Full", "GlobalWindow", "Strided", "Window"]


@part
class Full(Pattern):
    """All pairs."""

    kind: Literal["full"] = "full"


@part
class Window(Pattern):
    """The newest `size` positions, itself included: i - size < j <= i (Child 2019; Mistral).

    Where both directions are seen: size / 2 positions on each side, |i - j| <= size / 2 (Beltagy 2020).

    Attributes:
        size: positions that are seen.
    """

    kind: Literal["window"] = "window"
    size: Size


@part
class Chunked(Pattern):
    """The positions of its own chunk of `size` (Llama 4).

    Attributes:
        size: positions of a chunk.
    """

    letters: ClassVar[Mapping[str, str]] = {"W": "positions of a chunk"}
    kind: Literal["chunked"] = "chunked"
    size: Size


@part
class Strided(Pattern):
    """The newest `stride` positions, and every `stride`-th before them (Child 2019, section 4.2).

    Attributes:
        stride: near positions, and the distance of the far ones.
    """

    kind: Literal["strided"] = "strided"
    stride: Size


@part
class Fixed(Pattern):
    """The positions of its own block of `stride`, and the last `num_summary` of all (Child 2019, section 4.2).

    Attributes:
        stride: positions of a block.
        num_summary: positions at the end of each block that all see.
    """

    renamed: ClassVar[dict[str, str]] = {"summary": "num_summary"}
    letters: ClassVar[Mapping[str, str]] = {"g": "summary positions of each stride"}
    kind: Literal["fixed"] = "fixed"
    stride: Size
    num_summary: Size

    @model_validator(mode="after")
    def _summary_is_part(self) -> "Fixed":
        if self.num_summary > self.stride:
            cause = f"{self.num_summary} is more than stride {self.stride}"
            invalid("num_summary", cause, f"use at most {self.stride}")
        return self


@part
class GlobalWindow(Pattern):
    """A window, and `num_global_tokens` at the start that see all and are seen by all (Beltagy 2020).

    With `global_projections` the global tokens look through queries, keys and values of their own, as Longformer's
    published weights have them.

    Attributes:
        size: positions of the window.
        num_global_tokens: tokens at the start that see all and are seen by all.
        global_projections: whether global tokens have queries, keys and values of their own.
    """

    renamed: ClassVar[dict[str, str]] = {"global_tokens": "num_global_tokens"}
    kind: Literal["global_window"] = "global_window"
    size: Size
    num_global_tokens: Size = 1
    global_projections: Flag = False


@part
class BigBird(Pattern):
    """By blocks of positions: neighbours, the first and last as global ones, and a few at random (Zaheer 2020).

    Of `global_blocks` the larger half stands at the start. The random blocks of each row are drawn from `seed`, the
    layer and the number of blocks, among those that the row would not see otherwise. A text of at most
    `dense_up_to_blocks` blocks is seen whole.

    Attributes:
        block: positions of a block.
        window_blocks: neighbouring blocks that are seen, its own included; odd.
        random_blocks: blocks that are drawn for each row.
        global_blocks: blocks at start and end that see all and are seen by all.
        dense_up_to_blocks: blocks up to which a text is seen whole.
        seed: of the random blocks.
    """

    renamed: ClassVar[dict[str, str]] = {"full_up_to": "dense_up_to_blocks"}
    letters: ClassVar[Mapping[str, str]] = {"W": "keys of a query: its window, random and global blocks"}
    kind: Literal["bigbird"] = "bigbird"
    block: Size = 64
    window_blocks: Size = 3
    random_blocks: Size = 3
    global_blocks: Size = 2
    dense_up_to_blocks: Annotated[int, Field(strict=True, ge=0, le=MAX_SIZE)] = 0
    seed: Annotated[int, Field(strict=True, ge=0, lt=2**63)] = 0

    @model_validator(mode="after")
    def _window_has_a_middle(self) -> "BigBird":
        if self.window_blocks % 2 == 0:
            invalid("window_blocks", f"{self.window_blocks} blocks have no middle", "use an odd number")
        return self
