"""The role of heads, which compute a model's result from its output vectors."""

from typing import Annotated, ClassVar

from archetype.spec.kinds import ByKind, Part

__all__ = ["DecoderHead", "EncoderHead", "Head", "NextTokenHead", "PairHead", "VisionHead"]


class Head(Part):
    """Base class of heads. The class attributes decide which models may have a head.

    Its module is constructed as `Module(spec, vocab_size, features)`. A head over the vocabulary is called
    `(x, table) -> logits` with vectors (B, T, D) and the embedding table (V, D), which it may multiply by, and returns
    (B, T, V). A head that `classifies` has `num_classes` and is called `(x) -> logits` with one vector per sequence
    (B, D), and returns (B, Y); a head that `labels_tokens` is called with vectors (B, T, D) and returns (B, T, Y). A
    head that `embeds` is called `(x, num_tokens) -> vectors` with vectors (B, T, D) and returns (B, D_s).
    """

    needs: ClassVar[str] = "module"
    predicts_next: ClassVar[bool] = False  # logits of the next token at each position
    predicts_masked: ClassVar[bool] = False  # logits of the token at each position, some of them masked
    classifies: ClassVar[bool] = False  # classifies a whole text or image
    labels_tokens: ClassVar[bool] = False  # logits of classes for each token
    embeds: ClassVar[bool] = False  # one vector for each text
    marks_spans: ClassVar[bool] = False  # these logits mark the start and end of an answer
    is_product: ClassVar[bool] = False  # its module is a LanguageModelHead, whose logits may be computed in chunks

    @property
    def is_shifted(self) -> bool:
        """Whether the logits of a token come from the vector before it (the first token's: from its own)."""
        return False

    @property
    def has_classes(self) -> bool:
        return self.classifies or self.labels_tokens

    @property
    def table_width(self) -> int | None:
        """Width of the vectors that are multiplied by the output matrix; None for the model's width."""
        return None

    @property
    def shares_table(self) -> bool:
        """Whether its logits are products with the embedding table (tied embeddings)."""
        return False


NextTokenHead = Annotated[Head, ByKind(Head, "predicts_next", default="language_model")]
DecoderHead = Annotated[
    Head, ByKind(Head, "predicts_next", "classifies", "labels_tokens", "embeds", "is_absent", default="language_model")
]
# `predicts_next` is for decoders converted to bidirectional attention.
EncoderHead = Annotated[
    Head, ByKind(Head, "predicts_masked", "predicts_next", "classifies", "labels_tokens", "embeds", "is_absent")
]
PairHead = Annotated[Head, ByKind(Head, "predicts_next", "classifies", default="language_model")]
VisionHead = Annotated[Head, ByKind(Head, "classifies", "is_absent")]
