"""The roles of positions: added to embeddings, or used within attention."""

from typing import Annotated, ClassVar, NamedTuple

from archetype.spec.kinds import ByKind, Part

__all__ = ["AttentionSizes", "EmbeddingPosition", "MixerPosition"]


class EmbeddingPosition(Part):
    """Base class of positions added to the token vectors."""

    needs: ClassVar[str] = "module"
    limits_length: ClassVar[bool] = False  # whether positions beyond the context length are impossible, as in a table

    def check(self, width: int) -> None:
        """Call `invalid` if these positions do not fit a model of `width` features."""


class MixerPosition(Part):
    """Base class of positions within attention."""

    needs: ClassVar[str] = "module"
    reads_queries: ClassVar[bool] = False  # whether what is added to the scores depends on the queries
    needs_all_keys: ClassVar[bool] = False  # whether no pattern may leave out keys
    rotates: ClassVar[bool] = False  # whether it turns queries and keys, and adds nothing to the scores

    @property
    def query_features(self) -> int:
        """Number of further features of each head's query, which only the position reads."""
        return 0

    def check_heads(self, head_dim: int) -> None:
        """Call `invalid` if these positions do not fit heads of `head_dim` features."""


AnyEmbeddingPosition = Annotated[EmbeddingPosition, ByKind(EmbeddingPosition)]


AnyMixerPosition = Annotated[MixerPosition, ByKind(MixerPosition)]


class AttentionSizes(NamedTuple):
    """The sizes of one attention layer, with all defaults resolved."""

    num_heads: int  # H
    num_kv_heads: int  # K
    head_dim: int  # P
    rotary_dim: int  # R, zero without rotary positions
    d_model: int = 0  # D
