"""How tokens and patches become vectors."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from archetype.parts.norm.spec import NoNorm
from archetype.parts.position.spec import NoPosition
from archetype.roles.embedding import TokenEmbedding
from archetype.roles.norm import AnyNorm
from archetype.roles.position import AnyEmbeddingPosition
from archetype.spec.base import MAX_SIZE, Flag, Positive, Probability
from archetype.spec.kinds import part

__all__ = ["Embedding", "PairEmbedding"]


@part
class Embedding(TokenEmbedding):
    """Token vectors times `scale`, plus positions and one of `num_token_types` vectors, then a norm and dropout.

    With `norm_first` the norm stands before positions and types are added (BlenderbotSmall).
    Types say which part of the input a token belongs to (Devlin 2018); where nothing says it, all are of the first.

    Attributes:
        position: vectors of positions that are added.
        scale: factor of the tokens' vectors.
        round_scale: whether the factor is rounded to the type of the vectors first (Gemma).
        num_token_types: vectors of types, one of which is added (0: none).
        norm: of the sum.
        norm_first: whether the norm stands before positions and types are added.
        dropout: of what the norm gives, while training.
    """

    renamed: ClassVar[dict[str, str]] = {"token_types": "num_token_types"}
    embeds_patches: ClassVar[bool] = True
    kind: Literal["table"] = "table"
    position: AnyEmbeddingPosition = NoPosition()
    scale: Positive = 1.0
    round_scale: Flag = False
    num_token_types: Annotated[int, Field(strict=True, ge=0, le=MAX_SIZE)] = 0
    norm: AnyNorm = NoNorm()
    norm_first: Flag = False
    dropout: Probability = 0.0

    def check(self, width: int) -> None:
        """The positions have to fit."""
        self.position.check(width)


@part
class PairEmbedding(Embedding):
    """The embeddings of an encoder and a decoder: one table for both where `shared`, else one each.

    Attributes:
        shared: one table for encoder and decoder.
    """

    embeds_text: ClassVar[bool] = False
    embeds_pairs: ClassVar[bool] = True
    embeds_patches: ClassVar[bool] = False
    kind: Literal["pair"] = "pair"  # type: ignore[assignment]
    shared: Flag = True

    @property
    def is_shared(self) -> bool:
        """As it says."""
        return self.shared
