"""How tokens and patches become vectors."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from archetype.parts.norm.spec import NoNorm, RMSNorm
from archetype.parts.position.spec import NoPosition
from archetype.roles.embedding import TokenEmbedding
from archetype.roles.norm import AnyNorm, VectorNorm
from archetype.roles.position import AnyEmbeddingPosition
from archetype.spec.base import MAX_SIZE, Flag, Positive, Probability, Spec, invalid
from archetype.spec.kinds import part
from archetype.spec.sizes import Width

__all__ = ["Embedding", "PairEmbedding", "PerLayerEmbedding"]


class PerLayerEmbedding(Spec):
    """A second table, which gives each layer that reads it a vector of each token (Gemma 3n's per-layer embeddings).

    Of the token's row t, which has d features for each such layer, and its embedding x of D features, a layer gets
    (norm(x W / sqrt(D)) + sqrt(d) t) / sqrt(2). It is read by `feedforward: {kind: per_layer_input}`.

    Attributes:
        features: of each layer's vector, d.
        norm: of each layer's share of the projection.
    """

    features: Width
    norm: VectorNorm = RMSNorm()


@part
class Embedding(TokenEmbedding):
    """Token vectors times `scale`, plus positions and one of `num_token_types` vectors, then a norm and dropout.

    With `norm_first` the norm stands before positions and types are added (BlenderbotSmall).
    Types say which part of the input a token belongs to (Devlin 2018); where nothing says it, all are of the first.
    Tables of a smaller `width` are followed by a projection to the model's (Lan 2019); with `project_first` the token
    vectors alone are narrow, and are projected before anything is added to them (OPT 350M).

    Attributes:
        position: vectors of positions that are added.
        scale: factor of the tokens' vectors.
        round_scale: whether the factor is rounded to the type of the vectors first (Gemma).
        num_token_types: vectors of types, one of which is added (0: none).
        norm: of the sum.
        norm_first: whether the norm stands before positions and types are added.
        per_layer: vectors of each token for single layers (absent: none).
        dropout: of what the norm gives, while training.
        width: features of tables and norm, which are then projected to d_model (absent: d_model, and not projected).
        project_first: whether token vectors are projected first, without a bias, and all else has d_model features.
    """

    embeds_patches: ClassVar[bool] = True
    kind: Literal["table"] = "table"
    position: AnyEmbeddingPosition = NoPosition()
    scale: Positive = 1.0
    round_scale: Flag = False
    num_token_types: Annotated[int, Field(strict=True, ge=0, le=MAX_SIZE)] = 0
    norm: AnyNorm = NoNorm()
    norm_first: Flag = False
    per_layer: PerLayerEmbedding | None = None
    dropout: Probability = 0.0
    width: Width | None = None
    project_first: Flag = False

    @model_validator(mode="after")
    def _projects_narrow_vectors(self) -> Self:
        if self.project_first and self.width is None:
            invalid("project_first", "the vectors have d_model features already", "give width, or leave it out")
        return self

    @property
    def added_width(self) -> int | None:
        """Features of what is added to the tokens' vectors, and of the norm, where they are not d_model."""
        return None if self.project_first else self.width

    @property
    def layer_features(self) -> int:
        """Those of its second table."""
        return 0 if self.per_layer is None else self.per_layer.features

    def check(self, width: int) -> None:
        """The positions have to fit."""
        self.position.check(self.added_width or width)

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
        if self.source is not None and self.source.per_layer is not None:
            invalid("source.per_layer", "the source shares the table of tokens, and has no other", "leave it out")
        if self.source is not None and self.source.width != self.width:
            invalid("source.width", "the shared table has another width", "give both the same")
        if self.source is not None and self.source.project_first != self.project_first:
            invalid("source.project_first", "the target's vectors are projected elsewhere", "give both the same")
        return self

    @property
    def is_shared(self) -> bool:
        """As it says."""
        return self.shared
