"""The role of token embeddings: how the ids of a text become vectors."""

from typing import Annotated, ClassVar

from archetype.spec.kinds import ByKind, Part

__all__ = ["TokenEmbedding"]


class TokenEmbedding(Part):
    """Base of all token embeddings.

    Its module is made as `Module(spec, vocab_size, context_length, d_model)` and is called `(tokens, context, types)`,
    with ids (B, T) and perhaps the part of the input that each belongs to (else nothing), and gives vectors (B, T, D).
    It has `token`, an `archetype.weights.linear.Table` of a vector for each id, which a tied head multiplies by.
    With `layer_features` it is told the layers that read them, too, and leaves their vectors in `context.layer_inputs`.
    """

    needs: ClassVar[str] = "module"
    is_table: ClassVar[bool] = True  # whether that is (V, D) wide, so that a tied head can multiply by it
    embeds_text: ClassVar[bool] = True  # whether it may stand before one stack
    embeds_pairs: ClassVar[bool] = False  # whether it may stand before an encoder and a decoder
    embeds_patches: ClassVar[bool] = False  # whether it has all that patches of a picture take beside their projection

    @property
    def table_width(self) -> int | None:
        """Features of the table's vectors, where they are not as wide as the model's (absent: they are)."""
        return None

    @property
    def is_shared(self) -> bool:
        """Whether one module embeds the texts of encoder and decoder; else each has its own."""
        return True

    @property
    def layer_features(self) -> int:
        """Features of the vectors that it gives single layers beside the stream; 0 where it gives none."""
        return 0

    @property
    def source_placement(self) -> "TokenEmbedding | None":
        """An embedding without a table for the source's vectors of a shared one (absent: as for the target's)."""
        return None

    def check(self, width: int) -> None:
        """Refuse, by `invalid`, a model of `width` features in which this embedding cannot stand."""


AnyTokenEmbedding = Annotated[TokenEmbedding, ByKind(TokenEmbedding, "embeds_text", default="table", is_said=False)]
AnyPairEmbedding = Annotated[TokenEmbedding, ByKind(TokenEmbedding, "embeds_pairs", default="pair", is_said=False)]
ForPatches = ByKind(TokenEmbedding, "embeds_patches", default="table", is_said=False)
