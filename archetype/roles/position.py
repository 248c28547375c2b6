"""The roles of positions: added to embeddings, or known to attention itself."""

from typing import Annotated, ClassVar, NamedTuple

from archetype.spec.kinds import ByKind, Part

__all__ = ["AttentionSizes", "EmbeddingPosition", "MixerPosition"]


class EmbeddingPosition(Part):
    """Base of positions that are added to the tokens' vectors."""

    needs: ClassVar[str] = "module"
    limits_length: ClassVar[bool] = False  # whether there are positions for no more than the context

    def check(self, width: int) -> None:
        """Refuse, by `invalid`, a model of `width` features in which these positions cannot stand."""


class MixerPosition(Part):
    """Base of positions that attention itself knows."""

    needs: ClassVar[str] = "module"
    reads_queries: ClassVar[bool] = False  # whether what it adds to scores depends on the queries


AnyEmbeddingPosition = Annotated[EmbeddingPosition, ByKind(EmbeddingPosition)]


AnyMixerPosition = Annotated[MixerPosition, ByKind(MixerPosition)]


class AttentionSizes(NamedTuple):
    """The sizes of one attention, with all defaults filled in."""

    num_heads: int  # H
    num_kv_heads: int  # K
    head_dim: int  # P
    rotary_dim: int  # R, zero without rotary positions
    d_model: int = 0  # D
