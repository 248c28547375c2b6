"""The role of heads: what a model computes from the vectors at its end."""

from typing import Annotated, ClassVar

from archetype.spec.kinds import ByKind, Part

__all__ = ["DecoderHead", "EncoderHead", "Head", "NextTokenHead", "PairHead", "VisionHead"]


class Head(Part):
    """Base of all heads. What a head answers says which models may have it.

    Its module is made as `Module(spec, vocab_size, features)`. That of a head over the vocabulary is called
    `(x, table) -> logits`, with vectors (B, T, D) and the embedding's table (V, D), which it may multiply by, and gives
    (B, T, V). That of a head which `classifies` has `num_classes` and is called `(x) -> logits`, with a vector of each
    row (B, D), and gives (B, Y); of one that `labels_tokens`, likewise with vectors (B, T, D), and gives (B, T, Y).
    That of one that `embeds` is called `(x, num_tokens) -> vectors`, with vectors (B, T, D), and gives (B, D_s).
    """

    needs: ClassVar[str] = "module"
    predicts_next: ClassVar[bool] = False  # whether it gives logits of the token after each position
    predicts_masked: ClassVar[bool] = False  # whether it gives logits of the token at each position, some being hidden
    classifies: ClassVar[bool] = False  # whether it answers for a whole text or image, and not for each token
    labels_tokens: ClassVar[bool] = False  # whether it gives logits of classes for each token
    embeds: ClassVar[bool] = False  # whether it gives one vector for each text
    marks_spans: ClassVar[bool] = False  # whether these are of where an answer begins, and where it ends
    is_product: ClassVar[bool] = False  # whether its module is a LanguageModelHead, whose logits may come in chunks

    @property
    def has_classes(self) -> bool:
        """Whether it answers with classes, of a whole text or of each token."""
        return self.classifies or self.labels_tokens

    @property
    def table_width(self) -> int | None:
        """Features of the vectors that the table of logits multiplies (absent: as wide as the model's)."""
        return None

    @property
    def shares_table(self) -> bool:
        """Whether its logits are products with the embedding's own table."""
        return False


NextTokenHead = Annotated[Head, ByKind(Head, "predicts_next", default="language_model")]
DecoderHead = Annotated[
    Head, ByKind(Head, "predicts_next", "classifies", "labels_tokens", "embeds", "is_absent", default="language_model")
]
# One that predicts the next token is of a decoder whose layers were made to see the whole text.
EncoderHead = Annotated[
    Head, ByKind(Head, "predicts_masked", "predicts_next", "classifies", "labels_tokens", "embeds", "is_absent")
]
PairHead = Annotated[Head, ByKind(Head, "predicts_next", "classifies", default="language_model")]
VisionHead = Annotated[Head, ByKind(Head, "classifies", "is_absent")]
