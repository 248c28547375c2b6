"""Specification of native sparse attention: compressed blocks, selected blocks and a window."""

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import model_validator

from archetype.parts.attention.spec import Attention
from archetype.parts.position.spec import Rotary
from archetype.roles.mixer import Mixer
from archetype.roles.pattern import Pattern
from archetype.roles.position import AttentionSizes
from archetype.spec.base import Flag, Index, Size, Spec
from archetype.spec.errors import invalid
from archetype.spec.kinds import part
from archetype.spec.sizes import Heads, HeadWidth, Width

BRANCHES = ("compressed", "selected", "window")


class BlockCompression(Spec):
    """One key and one value per block of positions, visible to queries once the block is complete.

    With `hidden`, a block is compressed by the MLP down(GELU(up(block + positions))), with one MLP for keys and one for
    values, which all heads share (Yuan 2025, equation 7, does not specify the network). Without `hidden`, a block is
    averaged (flash-linear-attention). Keys are rotated before compression.

    Attributes:
        block: positions per block.
        stride: positions from the start of a block to the start of the next (absent: `block`, without overlap).
        hidden: hidden width of the MLP (absent: the mean of the block, without parameters).
    """

    block: Size
    stride: Size | None = None
    hidden: Width | None = None

    @property
    def step(self) -> int:
        return self.block if self.stride is None else self.stride

    def complete(self, length: int) -> int:
        """Return how many blocks end within `length` positions."""
        return max(0, (length - self.block) // self.step + 1)


class BlockSelection(Spec):
    """Selection of the blocks whose keys each query reads individually.

    A block's score is the attention weight of its positions in the compressed branch, summed over the query heads of a
    key head; compressed blocks that overlap the block count in proportion to the overlap (Yuan 2025, equations 9 and
    10). The selection has no gradient. Ties go to the earlier block.

    Attributes:
        block: positions per block, a multiple of the stride of compressed blocks.
        top_blocks: number of blocks that a query reads, including the always selected ones.
        first_blocks: number of always selected blocks at the start of the sequence.
        local_blocks: number of always selected blocks up to and including the query's own.
    """

    block: Size
    top_blocks: Size
    first_blocks: Index = 1
    local_blocks: Size = 2


@part
class NativeSparseAttention(Mixer):
    """sum_c g_c softmax(q k_c^T) v_c over compressed blocks, selected blocks and a sliding window (Yuan 2025, NSA).

    The branches share queries. Each branch has its own keys and values, or all share them (`shared_keys`, as in
    flash-linear-attention). The gates sigmoid(x Wg) are one number per token, head and branch. A query before the end
    of the first compressed block reads nothing in the compressed branch.

    The state holds all keys and values and the compressed ones. Without `shared_keys`, it also holds those of the
    window and of incomplete compressed blocks.

    Attributes:
        num_heads: query heads, H.
        num_kv_heads: key/value heads, K, each with its own selection (absent: `num_heads`).
        head_dim: features of each head, P.
        v_head_dim: features of each head's value, Q (absent: `head_dim`).
        position: rotary embedding of queries and keys (absent: none).
        window: size of the sliding window in positions, W.
        compression: compression of blocks of keys to single keys.
        selection: selection of blocks whose keys are read individually.
        shared_keys: whether all branches read the same keys and values.
    """

    title: ClassVar[str] = "Native sparse attention"
    letters: ClassVar[Mapping[str, str]] = {
        "W": "positions of the window",
        "s": "positions from one compressed block to the next",
        "j": "positions of the selected blocks",
        "c": "positions of a compressed block",
        "w": "hidden features of the map that compresses a block",
        "N": "compressed blocks",
    }
    kind: Literal["native_sparse"] = "native_sparse"
    num_heads: Heads
    num_kv_heads: Heads | None = None
    head_dim: HeadWidth
    v_head_dim: HeadWidth | None = None
    position: Rotary | None = Rotary()
    window: Size
    compression: BlockCompression
    selection: BlockSelection
    shared_keys: Flag = False

    @model_validator(mode="after")
    def _sizes_fit(self) -> "NativeSparseAttention":
        if self.num_heads % self.kv_heads:
            invalid("num_kv_heads", f"{self.kv_heads} does not divide num_heads {self.num_heads}", "use a divisor")
        step, chosen = self.compression.step, self.selection
        if step > self.compression.block or self.compression.block % step:
            cause = f"{step} does not divide the block of {self.compression.block} positions"
            invalid("compression.stride", cause, "use a divisor")
        if chosen.block % step:
            cause = f"{chosen.block} is not a multiple of {step}, the stride of compressed blocks"
            invalid("selection.block", cause, "use a multiple")
        if (always := chosen.first_blocks + chosen.local_blocks) > chosen.top_blocks:
            cause = f"{chosen.top_blocks} is less than the {always} blocks that are always selected"
            invalid("selection.top_blocks", cause, f"use at least {always}")
        if self.position is not None:
            self.position.check_heads(self.head_dim)
            self.position.check_kept_keys("stored compressed keys cannot be rotated again when the sequence grows")
        return self

    def check(self, width: int, causal: bool) -> None:
        if not causal:
            invalid("", "compressed blocks cover only earlier positions", "use a decoder, or another mixer")

    @property
    def kv_heads(self) -> int:
        """Key/value heads, K."""
        return self.num_heads if self.num_kv_heads is None else self.num_kv_heads

    @property
    def value_width(self) -> int:
        """Features of each head's value, Q."""
        return self.head_dim if self.v_head_dim is None else self.v_head_dim

    @property
    def with_keys(self) -> tuple[str, ...]:
        """Branches with separate keys and values."""
        return ("selected",) if self.shared_keys else BRANCHES

    def blocks(self, length: int) -> int:
        """Return the number of compressed blocks that are computed for `length` positions: one of them may be open."""
        return max(1, self.compression.complete(length))

    def attention(self, pattern: Pattern) -> Attention:
        """Return the attention whose pairs of queries and keys a branch computes."""
        return Attention(
            num_heads=self.num_heads, num_kv_heads=self.kv_heads, head_dim=self.head_dim, v_head_dim=self.value_width,
            pattern=pattern,
        )  # fmt: skip

    def attention_sizes(self, width: int) -> AttentionSizes:
        rotary_dim = 0 if self.position is None else self.position.dim or self.head_dim
        return AttentionSizes(self.num_heads, self.kv_heads, self.head_dim, rotary_dim, width)
