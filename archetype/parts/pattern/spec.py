"""Specifications of attention patterns: which pairs of positions may attend. The patterns' rules are in this folder."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from archetype.roles.pattern import Pattern
from archetype.spec.base import MAX_SIZE, Flag, Size
from archetype.spec.errors import invalid
from archetype.spec.kinds import part


@part
class Full(Pattern):
    """All pairs of positions."""

    reach: ClassVar[int] = 0
    kind: Literal["full"] = "full"


@part
class Window(Pattern):
    """Sliding window: the last `size` positions including the query's own, i - size < j <= i (Child 2019; Mistral).

    Bidirectional: size / 2 positions on each side, |i - j| <= size / 2 (Beltagy 2020).

    Attributes:
        size: window size in positions.
    """

    kind: Literal["window"] = "window"
    size: Size

    @property
    def reach(self) -> int:
        return self.size


@part
class Chunked(Pattern):
    """Chunked attention: only the query's own chunk of `size` positions (Llama 4).

    Attributes:
        size: chunk size in positions.
    """

    letters: ClassVar[Mapping[str, str]] = {"W": "positions of a chunk"}
    kind: Literal["chunked"] = "chunked"
    size: Size


@part
class BlockCausal(Pattern):
    """Block-causal attention: the query's own block of `size` positions, and all blocks before it (Arriola 2025).

    An encoder with this pattern in each layer generates block by block and caches the keys of finished blocks. In a
    decoder, the pattern equals full attention.

    Attributes:
        size: block size in positions.
    """

    kind: Literal["block_causal"] = "block_causal"
    size: Size

    @property
    def block_length(self) -> int:
        return self.size


@part
class Strided(Pattern):
    """Strided attention: the last `stride` positions, and every `stride`-th position before (Child 2019, section 4.2).

    Attributes:
        stride: number of recent positions, and distance between earlier positions.
    """

    kind: Literal["strided"] = "strided"
    stride: Size


@part
class Fixed(Pattern):
    """Fixed attention: the query's block, and the last `num_summary` positions of all blocks (Child 2019, section 4.2).

    Attributes:
        stride: block size in positions.
        num_summary: number of positions at the end of each block that all queries may attend to.
    """

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
    """Sliding window, plus `num_global_tokens` global tokens at the start (Beltagy 2020).

    With `global_projections` the global tokens have separate query, key and value projections, as in Longformer's
    published weights.

    Attributes:
        size: window size in positions.
        num_global_tokens: number of global tokens at the start, which attend to all tokens and are attended to by all.
        global_projections: whether global tokens have their own query, key and value projections.
    """

    kind: Literal["global_window"] = "global_window"
    size: Size
    num_global_tokens: Size = 1
    global_projections: Flag = False


@part
class BigBird(Pattern):
    """Block-sparse attention to neighboring, global and random blocks of positions (Zaheer 2020).

    If `global_blocks` is odd, the extra block is at the start. The random blocks of a query block depend on `seed`, the
    layer and the number of blocks; they are drawn from the blocks that are neither neighboring nor global. A sequence
    of at most `dense_up_to_blocks` blocks uses full attention.

    Attributes:
        block: block size in positions.
        window_blocks: number of neighboring blocks, including the query's own block (odd).
        random_blocks: number of random blocks per block of queries.
        global_blocks: number of global blocks at the start and end, which attend to all positions and are attended to
            by all.
        dense_up_to_blocks: number of blocks up to which attention is full.
        seed: seed of the random blocks.
    """

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
            invalid("window_blocks", f"{self.window_blocks} blocks have no center", "use an odd number")
        return self
