"""A learned index of keys: each query sees those with the largest scores."""

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import model_validator

from archetype.parts.norm.spec import LayerNorm
from archetype.parts.position.spec import Rotary
from archetype.roles.norm import VectorNorm
from archetype.roles.position import AttentionSizes
from archetype.roles.selection import KeySelection
from archetype.spec.base import NotNegative, Size, invalid
from archetype.spec.kinds import part
from archetype.spec.sizes import Heads, HeadWidth

__all__ = ["LightningIndex"]


@part
class LightningIndex(KeySelection):
    """The `top_k` keys s with the largest I(t, s) = sum_j w_tj ReLU(q_tj k_s) for each query t (DeepSeek-AI 2025).

    Queries q_tj of `num_heads` heads are made from the attention's low-rank queries where it has them, else from x;
    the one head of keys and the weights w_t = x Ww / sqrt(H P) from x. Of equal scores the earlier key is chosen.

    The choice has no gradient. The index learns by the loss KL(p_t || softmax I(t, .)) over the chosen keys, where p_t
    is the mean of the attention's weights over its heads; nothing else learns from that loss, and the index from no
    other. With `top_k` at least the length of a text nothing is left out: the index learns beside dense attention.

    Attributes:
        top_k: keys that a query sees.
        num_heads: heads of queries, H.
        head_dim: features of each head, P.
        position: the rotation of queries and keys (absent: none).
        norm: of the keys.
        loss_weight: weight of the loss by which it learns; 0: it does not learn.
    """

    title: ClassVar[str] = "Lightning index"
    letters: ClassVar[Mapping[str, str]] = {
        "H": "heads of the index", "P": "features of a head of the index", "r": "rank of queries"
    }  # fmt: skip
    kind: Literal["lightning"] = "lightning"
    top_k: Size
    num_heads: Heads
    head_dim: HeadWidth
    position: Rotary | None = None
    norm: VectorNorm = LayerNorm(eps=1e-6)
    loss_weight: NotNegative = 1.0

    @model_validator(mode="after")
    def _rotation_fits(self) -> "LightningIndex":
        if self.position is None:
            return self
        if self.position.dim is None and self.head_dim % 2:
            cause = f"{self.head_dim} features cannot be paired for rotary positions"
            invalid("head_dim", cause, "use an even head_dim, or position.dim")
        if self.position.dim is not None and self.position.dim > self.head_dim:
            cause = f"{self.position.dim} is more than head_dim {self.head_dim}"
            invalid("position.dim", cause, f"use at most {self.head_dim}")
        self.position.scaling.check(self.position.dim or self.head_dim)
        if self.position.scaling.follows_length:
            cause = f"{self.position.scaling.kind} scaling follows the length of a text, which is not done here"
            invalid("position.scaling", cause, "use another scaling")
        return self

    @property
    def adds_to_loss(self) -> bool:
        """Where its loss has a weight."""
        return self.loss_weight > 0

    @property
    def sizes(self) -> AttentionSizes:
        """Heads and features, as rotary positions take them."""
        rotary_dim = 0 if self.position is None else self.position.dim or self.head_dim
        return AttentionSizes(self.num_heads, 1, self.head_dim, rotary_dim)
