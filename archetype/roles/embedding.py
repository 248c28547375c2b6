"""The role of token embeddings: from token ids to vectors."""

from typing import Annotated, ClassVar

from archetype.spec.kinds import ByKind, Part


class TokenEmbedding(Part):
    """Base class of token embeddings.

    Its module is constructed as `Module(spec, vocab_size, context_length, d_model)` and called `(tokens, context,
    types)` with ids (B, T) and optional segment ids; it returns vectors (B, T, D). Its attribute `token` is an
    `archetype.weights.linear.Table` with one vector per id, which a tied head multiplies by. With `layer_features`, the
    constructor also receives the indices of the layers that read per-layer vectors; the module stores these vectors in
    `context.layer_inputs`.
    """

    needs: ClassVar[str] = "module"
    is_table: ClassVar[bool] = True  # whether the table is (V, D), so that a tied head can multiply by it
    embeds_text: ClassVar[bool] = True  # whether it can be used with a single stack
    embeds_pairs: ClassVar[bool] = False  # whether it can be used with an encoder and a decoder
    embeds_patches: ClassVar[bool] = False  # whether it can be used for image patches, with a projection

    @property
    def table_width(self) -> int | None:
        """Width of the table's vectors; None for the model's width."""
        return None

    @property
    def unpredicted_rows(self) -> int:
        """Rows of the table beyond the vocabulary, for ids that are read and never predicted."""
        return 0

    @property
    def is_shared(self) -> bool:
        # whether encoder and decoder share one module
        return True

    @property
    def layer_features(self) -> int:
        """Width of the per-layer vectors that this embedding computes; 0 without per-layer vectors."""
        return 0

    @property
    def source_placement(self) -> "TokenEmbedding | None":
        """Embedding of the source around a shared table (None: the source uses the target's embedding)."""
        return None

    def check(self, width: int) -> None:
        """Call `invalid` with the reason if this embedding does not fit a model of `width` features."""


AnyTokenEmbedding = Annotated[TokenEmbedding, ByKind(TokenEmbedding, "embeds_text", default="table", is_said=False)]
AnyPairEmbedding = Annotated[TokenEmbedding, ByKind(TokenEmbedding, "embeds_pairs", default="pair", is_said=False)]
ForPatches = ByKind(TokenEmbedding, "embeds_patches", default="table", is_said=False)
