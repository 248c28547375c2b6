"""Learned index of keys: each query attends to the keys with the largest scores."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import model_validator

from archetype.parts.norm.spec import LayerNorm
from archetype.parts.position.spec import DEPENDS_ON_LENGTH, Rotary
from archetype.roles.norm import VectorNorm
from archetype.roles.position import AttentionSizes
from archetype.roles.selection import KeySelection
from archetype.spec.base import LayerIndex, NotNegative, Size
from archetype.spec.errors import inside, invalid
from archetype.spec.kinds import part
from archetype.spec.sizes import Heads, HeadWidth

__all__ = ["LightningIndex"]


class LearnedIndex(KeySelection):
    """Base class of indexes that are small attentions, with heads of their own and a loss."""

    letters: ClassVar[Mapping[str, str]] = {"H": "heads of the index", "P": "features of a head of the index"}
    if TYPE_CHECKING:  # each kind declares these fields, in its own order
        num_heads: int
        head_dim: int
        position: Rotary | None
        norm: VectorNorm
        loss_weight: float

    @model_validator(mode="after")
    def _rotation_fits(self) -> Self:
        if self.position is not None:
            self.position.check_heads(self.head_dim)
            self.position.check_kept_keys(DEPENDS_ON_LENGTH)
        return self

    @property
    @abstractmethod
    def most_keys(self) -> int:
        """Largest number of keys that a query attends to."""

    @property
    def key_features(self) -> int:
        """Numbers that are kept of each position; 0 for an index without projections."""
        return self.head_dim

    def sees_all(self, length: int) -> bool:
        return self.most_keys >= length

    @property
    def adds_to_loss(self) -> bool:
        return self.loss_weight > 0

    @property
    def sizes(self) -> AttentionSizes:
        rotary_dim = 0 if self.position is None else self.position.dim or self.head_dim
        return AttentionSizes(self.num_heads, 1, self.head_dim, rotary_dim)


@part
class LightningIndex(LearnedIndex):
    """The `top_k` keys s with the largest I(t, s) = sum_j w_tj ReLU(q_tj k_s) for each query t (DeepSeek-AI 2025).

    The queries q_tj of `num_heads` heads are projected from attention's query latent if it has one, otherwise from x.
    The single key head and the weights w_t = x Ww / sqrt(H P) are projected from x. Ties go to the earlier key.

    The selection has no gradient. The index is trained by KL(p_t || softmax I(t, .)) over the selected keys, where p_t
    is the mean of the attention weights over heads. This loss trains only the index, and no other loss trains it. If
    `top_k` is at least the sequence length, all keys are selected, and the index is trained alongside dense attention.

    With `from_layer`, a layer reuses the keys selected by the identical index of an earlier layer (GLM-5.2). Its index
    then has no parameters, state or loss.

    Attributes:
        top_k: number of keys that a query attends to.
        num_heads: number of query heads, H.
        head_dim: width of each head, P.
        position: rotary embedding of queries and keys (absent: none).
        rotates: whether the first or the last (Hy4) `position.dim` features of a head are rotated.
        norm: norm of the keys.
        loss_weight: weight of the index's loss (0: the index is not trained).
        from_layer: earlier layer whose selection is used: its index, or a negative offset from this layer (absent: its
            own selection).
    """

    title: ClassVar[str] = "Lightning index"
    letters: ClassVar[Mapping[str, str]] = {**LearnedIndex.letters, "r": "rank of queries"}
    kind: Literal["lightning"] = "lightning"
    top_k: Size
    num_heads: Heads
    head_dim: HeadWidth
    position: Rotary | None = None
    rotates: Literal["first", "last"] = "first"
    norm: VectorNorm = LayerNorm(eps=1e-6)
    loss_weight: NotNegative = 1.0
    from_layer: LayerIndex | None = None

    @model_validator(mode="after")
    def _rotates_a_part(self) -> "LightningIndex":
        if self.rotates == "last" and (self.position is None or self.position.dim is None):
            invalid("rotates", "needs position.dim", "set position.dim, or use rotates: first")
        return self

    @property
    def most_keys(self) -> int:
        return self.top_k

    @property
    def key_features(self) -> int:
        return self.head_dim if self.from_layer is None else 0

    @property
    def adds_to_loss(self) -> bool:
        return super().adds_to_loss and self.from_layer is None

    def source(self, layer: int) -> int | None:
        return self.from_layer if self.from_layer is None or self.from_layer >= 0 else layer + self.from_layer

    @property
    def own(self) -> "LightningIndex":
        return self if self.from_layer is None else self.model_copy(update={"from_layer": None})

    def check_source(self, source: KeySelection | None) -> None:
        with inside("from_layer"):
            super().check_source(source)
            if not isinstance(source, LightningIndex):
                invalid("", "the referenced layer has a different kind of index", "name a layer of kind lightning")
            own = self.own
            if differing := [name for name in type(self).model_fields if getattr(own, name) != getattr(source, name)]:
                cause = f"{', '.join(differing)} differs from the referenced layer's index"
                invalid("", cause, "make them equal")
