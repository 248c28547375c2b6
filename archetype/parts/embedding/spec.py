"""How tokens and patches become vectors."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from archetype.parts.norm.spec import NoNorm
from archetype.parts.position.spec import NoPosition
from archetype.roles.embedding import TokenEmbedding
from archetype.roles.norm import AnyNorm
from archetype.roles.position import AnyEmbeddingPosition
from archetype.spec.base import MAX_SIZE, Flag, Positive, Probability, Size, invalid
from archetype.spec.kinds import part

__all__ = ["Embedding", "PairEmbedding"]


@part
class Embedding(TokenEmbedding):
    """Token vectors times `scale`, plus positions and one of `num_token_types` vectors, then a norm and dropout.

    With `norm_first` the norm stands before positions and types are added (BlenderbotSmall).
    Types say which part of the input a token belongs to (Devlin 2018); where nothing says it, all are of the first.
    Tables of a smaller `width` are followed by a projection to the model's (Lan 2019).

    Attributes:
        position: vectors of positions that are added.
        scale: factor of the tokens' vectors.
        num_token_types: vectors of types, one of which is added (0: none).
        norm: of the sum.
        norm_first: whether the norm stands before positions and types are added.
        dropout: of what the norm gives, while training.
        width: features of tables and norm, which are then projected to d_model (absent: d_model, and not projected).
    """

    renamed: ClassVar[dict[str, str]] = {"token_types": "num_token_types"}
    embeds_patches: ClassVar[bool] = True
    kind: Literal["table"] = "table"
    position: AnyEmbeddingPosition = NoPosition()
    scale: Positive = 1.0
    num_token_types: Annotated[int, Field(strict=True, ge=0, le=MAX_SIZE)] = 0
    norm: AnyNorm = NoNorm()
    norm_first: Flag = False
    dropout: Probability = 0.0
    width: Size | None = None

    def check(self, width: int) -> None:
        """The positions have to fit."""
        self.position.check(self.width or width)

    @property
    def table_width(self) -> int | None:
        """As it says."""
        return self.width


@part
class PairEmbedding(Embedding):
    """The embeddings of an encoder and a decoder: one table for both where `shared`, else one each.

    With `source` the two share the table of tokens alone: the source has positions and a norm of its own (Lewis 2019).

    Attributes:
        shared: one table for encoder and decoder.
        source: what is added to the source's token vectors, and their norm (absent: as in the target, and the same).
    """

    embeds_text: ClassVar[bool] = False
    embeds_pairs: ClassVar[bool] = True
    embeds_patches: ClassVar[bool] = False
    kind: Literal["pair"] = "pair"  # type: ignore[assignment]
    shared: Flag = True
    source: Embedding | None = None

    def check(self, width: int) -> None:
        """The positions of both sides have to fit."""
        super().check(width)
        if self.source is not None:
            self.source.check(width)

    @property
    def source_placement(self) -> Embedding | None:
        """As it says."""
        return self.source

    @model_validator(mode="after")
    def _source_shares_a_table(self) -> Self:
        if self.source is not None and not self.shared:
            invalid("source", "each side has all of its own where no table is shared", "leave it out, or share one")
        if self.source is not None and self.source.width != self.width:
            invalid("source.width", "the shared table has another width", "give both the same")
        return self

    @property
    def is_shared(self) -> bool:
        """As it says."""
        return self.shared
