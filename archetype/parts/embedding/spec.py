"""Embeddings of tokens and patches."""

from typing import ClassVar, Literal, Self

from pydantic import model_validator

from archetype.parts.norm.spec import NoNorm, RMSNorm
from archetype.parts.position.spec import NoPosition
from archetype.roles.embedding import TokenEmbedding
from archetype.roles.norm import AnyNorm, VectorNorm
from archetype.roles.position import AnyEmbeddingPosition
from archetype.spec.base import Flag, Index, Length, Positive, Probability, Spec
from archetype.spec.errors import invalid
from archetype.spec.kinds import part
from archetype.spec.sizes import Width


class PerLayerEmbedding(Spec):
    """Per-layer embeddings: a second table with a vector per token id and reading layer (Gemma 3n).

    With the layer's d features t of the token's row and the token's embedding x of D features, a layer gets (norm(x W /
    sqrt(D)) + sqrt(d) t) / sqrt(2), which `feedforward: {kind: per_layer_input}` reads.

    Attributes:
        features: width of each layer's vector, d.
        norm: norm of each layer's slice of the projection.
        rows: rows of the table; token ids beyond them read row 0 (absent: a row for each token id).
    """

    features: Width
    norm: VectorNorm = RMSNorm()
    rows: Length | None = None


@part
class Embedding(TokenEmbedding):
    """Token embeddings times `scale`, plus position and token type embeddings, then norm and dropout.

    With `norm_first`, the norm comes before positions and types are added (BlenderbotSmall). A type is the segment that
    a token belongs to (Devlin 2018); the default type is 0. Tables of a smaller `width` are projected to d_model (Lan
    2019); with `project_first`, only the token embeddings are narrow, and are projected before anything is added (OPT
    350M). The table has `extra_rows` for ids that are never predicted, such as image placeholders (Llama 3.2 Vision).

    Attributes:
        position: position embeddings that are added.
        scale: factor on the token embeddings.
        round_scale: whether `scale` is first rounded to the embeddings' dtype (Gemma).
        num_token_types: number of token types (0: no type embeddings).
        extra_rows: rows of the token table beyond the vocabulary.
        norm: norm of the sum.
        norm_first: whether the norm comes before positions and types are added.
        per_layer: per-layer embeddings (absent: none).
        dropout: dropout probability of the output in training.
        width: width of tables and norm, followed by a projection to d_model (absent: d_model, no projection).
        project_first: whether token embeddings are projected first, without a bias, so everything added later has width
            d_model.
    """

    embeds_patches: ClassVar[bool] = True
    kind: Literal["table"] = "table"
    position: AnyEmbeddingPosition = NoPosition()
    scale: Positive = 1.0
    round_scale: Flag = False
    num_token_types: Index = 0
    extra_rows: Index = 0
    norm: AnyNorm = NoNorm()
    norm_first: Flag = False
    per_layer: PerLayerEmbedding | None = None
    dropout: Probability = 0.0
    width: Width | None = None
    project_first: Flag = False

    @model_validator(mode="after")
    def _projects_narrow_vectors(self) -> Self:
        if self.project_first and self.width is None:
            invalid("project_first", "the embeddings already have width d_model", "set width, or remove it")
        return self

    @property
    def added_width(self) -> int | None:
        """Width of the vectors added to token vectors, and of the norm; None for d_model."""
        return None if self.project_first else self.width

    @property
    def layer_features(self) -> int:
        return 0 if self.per_layer is None else self.per_layer.features

    def check(self, width: int) -> None:
        self.position.check(self.added_width or width)

    @property
    def table_width(self) -> int | None:
        return self.width

    @property
    def unpredicted_rows(self) -> int:
        return self.extra_rows


@part
class PairEmbedding(Embedding):
    """Embeddings of an encoder-decoder model: one table if `shared`, else a table for each side.

    With `source` only the token table is shared: the source has its own positions and norm (Lewis 2019).

    Attributes:
        shared: whether encoder and decoder share one table.
        source: embedding settings of the source, around the shared token table (absent: the target's modules).
    """

    embeds_text: ClassVar[bool] = False
    embeds_pairs: ClassVar[bool] = True
    embeds_patches: ClassVar[bool] = False
    kind: Literal["pair"] = "pair"  # type: ignore[assignment]
    shared: Flag = True
    source: Embedding | None = None

    def check(self, width: int) -> None:
        super().check(width)
        if self.source is not None:
            self.source.check(width)

    @property
    def source_placement(self) -> Embedding | None:
        return self.source

    @model_validator(mode="after")
    def _source_shares_a_table(self) -> Self:
        if self.source is not None and not self.shared:
            invalid(
                "source", "without a shared table, each side has its own embedding", "remove it, or use shared: true"
            )
        if self.source is not None and self.source.per_layer is not None:
            invalid("source.per_layer", "the source shares the token table and has no per-layer table", "remove it")
        if self.source is not None and self.source.extra_rows:
            invalid("source.extra_rows", "the source shares the token table", "remove it")
        if self.source is not None and self.source.width != self.width:
            invalid("source.width", "the shared table has a different width", "use the same for both")
        if self.source is not None and self.source.project_first != self.project_first:
            invalid("source.project_first", "differs from the target's project_first", "use the same for both")
        return self

    @property
    def is_shared(self) -> bool:
        return self.shared
