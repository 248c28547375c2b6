"""Specification of attention to a window and to pooled earlier positions."""

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import model_validator

from archetype.parts.norm.spec import RMSNorm
from archetype.parts.position.spec import Rotary
from archetype.roles.mixer import Mixer
from archetype.roles.norm import VectorNorm
from archetype.roles.position import AttentionSizes
from archetype.spec.base import Flag, NotNegative, Size, Spec
from archetype.spec.errors import invalid
from archetype.spec.kinds import part
from archetype.spec.sizes import Heads, HeadWidth, Width


class PooledIndex(Spec):
    """Index of pooled keys: the `top_k` with the largest sum_j w_tj ReLU(q_tj k_s), scored as in `lightning`.

    The index pools its keys like the attention's, to `head_dim` features, with separate weights.

    Attributes:
        top_k: number of pooled keys that a query attends to.
        num_heads: number of query heads of the index.
        head_dim: width of each query head.
        loss_weight: weight of the index's loss against the attention weights (0: the index is not trained).
    """

    top_k: Size
    num_heads: Heads
    head_dim: HeadWidth
    loss_weight: NotNegative = 1.0


class Pooling(Spec):
    """One key per `rate` positions: norm(sum_j softmax_j(x_j Wg + b_j) x_j Wc), with a softmax per feature.

    With `overlap`, the positions of the previous window are pooled too, with separate weights.

    Attributes:
        rate: positions per window.
        overlap: whether each window is pooled together with the previous one.
        index: selection of the pooled keys that each query attends to (absent: all pooled keys).
    """

    rate: Size
    overlap: Flag = False
    index: PooledIndex | None = None


@part
class CompressedAttention(Mixer):
    """Attention to a sliding window and to pooled earlier keys, with one head of shared keys and values (DeepSeek-V4).

    The last `rotary_dim` features of a key norm(x Wk) are rotated. Since the key is also the value, the output is
    rotated back by the query's position. Each head's query is normalized. Heads have sinks. The output projection first
    maps each of the `groups` of heads to `group_rank` features, then all groups to d_model.

    Only complete pooling windows have a pooled key, which is rotated by the window's first position. The state holds
    the keys of the sliding window, the pooled keys, and the projections of the incomplete pooling window.

    Attributes:
        num_heads: query heads, H.
        head_dim: features of each head, P.
        rotary_dim: rotated features of each head, R (absent: all).
        query_rank: width of the query latent, r.
        window: size of the sliding window in positions, W.
        groups: groups of heads in the output projection, g.
        group_rank: features of each group's projection.
        position: rotary embedding of the rotated features.
        norm: norm of keys, pooled keys and the query latent.
        query_norm: norm of each head's query.
        pooling: pooled keys (absent: only the sliding window).
    """

    title: ClassVar[str] = "Compressed attention"
    letters: ClassVar[Mapping[str, str]] = {
        "H": "heads, or heads of the index",
        "P": "features of a head, or of a head of the index",
        "g": "groups of heads",
        "r": "rank of queries",
        "r_g": "features of a group of heads",
        "S": "keys of a window and pooled keys",
        "s": "positions of a pooled key",
    }
    kind: Literal["compressed"] = "compressed"
    num_heads: Heads
    head_dim: HeadWidth
    rotary_dim: HeadWidth | None = None
    query_rank: Width
    window: Size
    groups: Size = 1
    group_rank: Width
    position: Rotary = Rotary(interleaved=True)
    norm: VectorNorm = RMSNorm(eps=1e-6)
    query_norm: VectorNorm = RMSNorm(eps=1e-6, weight=False)
    pooling: Pooling | None = None

    @model_validator(mode="after")
    def _sizes_fit(self) -> "CompressedAttention":
        if self.rotated > self.head_dim:
            invalid("rotary_dim", f"{self.rotated} is more than head_dim {self.head_dim}", "use fewer features")
        if self.rotated % 2:
            invalid("rotary_dim", f"{self.rotated} features cannot be paired", "use an even number")
        if self.num_heads % self.groups:
            invalid("groups", f"{self.groups} does not divide num_heads {self.num_heads}", "use a divisor")
        if self.position.dim is not None:
            invalid("position.dim", "rotary_dim sets the number of rotated features", "remove it")
        self.position.scaling.check(self.rotated)
        self.position.check_kept_keys("stored pooled keys cannot be rotated again when the sequence grows")
        if self.index is not None and self.index.head_dim < self.rotated:
            cause = f"{self.index.head_dim} is less than rotary_dim {self.rotated}"
            invalid("pooling.index.head_dim", cause, "use more features")
        return self

    def check(self, width: int, causal: bool) -> None:
        if not causal:
            invalid("", "pooled keys cover only earlier positions", "use a decoder, or another mixer")

    @property
    def index(self) -> PooledIndex | None:
        return None if self.pooling is None else self.pooling.index

    @property
    def rotated(self) -> int:
        """Rotated features of a head, R."""
        return self.head_dim if self.rotary_dim is None else self.rotary_dim

    @property
    def adds_to_loss(self) -> bool:
        return self.index is not None and self.index.loss_weight > 0

    @property
    def rotary_sizes(self) -> AttentionSizes:
        """Sizes of the rotated part of a head."""
        return AttentionSizes(self.num_heads, 1, self.rotated, self.rotated)

    def attention_sizes(self, width: int) -> AttentionSizes:
        return AttentionSizes(self.num_heads, 1, self.head_dim, self.rotated, width)
