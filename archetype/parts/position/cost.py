"""Cost of positions: tables added to embeddings, and saved angles and biases of attention."""

from collections.abc import Hashable, Mapping

from archetype.cost.formula import ZERO, Counts, Formula, symbol
from archetype.cost.registry import P, PartCost, cost_of
from archetype.cost.work import FLOAT32, INT64, TrainingWork, Work
from archetype.parts.position import spec
from archetype.roles.position import AttentionSizes


class PositionCost(PartCost[P]):
    """Cost of positions, zero by default."""

    limits_length = False  # whether positions exist only up to the context length
    biases_scores = False  # by trained numbers, so that all scores must be saved
    in_full = False  # whether all pairs are computed for any pattern

    def parameters(self, context_length: int) -> Formula:
        """Parameters of vectors added to embeddings."""
        return ZERO

    def mixer_parameters(self, sizes: AttentionSizes) -> Formula:
        """Parameters of biases or rotations within attention."""
        return ZERO

    def shared_activations(self, num_heads: int, rotary_dim: int, work: TrainingWork) -> Mapping[Hashable, int]:
        """Bytes saved once for all layers of a stack, keyed by the shared tensor."""
        return {}

    def layer_activations(self, num_heads: int, rotary_dim: int, work: TrainingWork) -> int:
        """Bytes saved by each layer, for products in bfloat16."""
        return 0

    def score_flops(self, work: Work, pairs: Formula, queries: Formula, keys: Formula, heads: Formula) -> Formula:
        """FLOPs of the score terms that depend on queries.

        Args:
            pairs: FLOPs of the plain scores.
            queries: width of all query heads.
            keys: width of all key heads.
            heads: number of query heads.
        """
        return ZERO

    def score_activations(self, work: TrainingWork, sizes: AttentionSizes) -> int:
        """Bytes saved by each layer for score terms that depend on queries."""
        return 0


cost_of(spec.NoPosition, spec.Sinusoidal)(PositionCost)  # they train and save nothing


@cost_of(spec.Learned)
class LearnedCost(PositionCost[spec.Learned]):
    """Cost of a table of learned positions."""

    limits_length = True

    def parameters(self, context_length: int) -> Formula:
        # one vector per position, after the unused ones
        return symbol("T_max", context_length) * self.d + self.part.offset * self.d


@cost_of(spec.Rotary)
class RotaryCost(PositionCost[spec.Rotary]):
    """Cost of saved cosines and sines, in the data type of the products."""

    def shared_activations(self, num_heads: int, rotary_dim: int, work: TrainingWork) -> Mapping[Hashable, int]:
        # cos and sin of rotary_dim / 2 angles per token
        return {(self.part, rotary_dim): work.tokens * rotary_dim * work.itemsize}


@cost_of(spec.Alibi)
class AlibiCost(PositionCost):
    """Cost of one bias per head and pair of positions. In bfloat16, each layer saves its own cast copy."""

    def shared_activations(self, num_heads: int, rotary_dim: int, work: TrainingWork) -> Mapping[Hashable, int]:
        # biases in float32
        shared = num_heads * work.length**2 * FLOAT32
        return {(self.part, num_heads): shared} if work.compute_dtype == "float32" else {}

    def layer_activations(self, num_heads: int, rotary_dim: int, work: TrainingWork) -> int:
        return num_heads * work.length**2 * work.itemsize


@cost_of(spec.RelativeBias)
class RelativeBiasCost(PositionCost[spec.RelativeBias]):
    """Cost of saving each pair's bucket and whether the pair is allowed. The stack counts the table."""

    biases_scores = True

    def table(self, num_heads: int) -> Counts:
        return {"position_bias": symbol("u", self.part.num_buckets) * symbol("H", num_heads)}

    def shared_activations(self, num_heads: int, rotary_dim: int, work: TrainingWork) -> Mapping[Hashable, int]:
        # the buckets, for any dtype of products
        return {self.part: work.length**2 * (INT64 + 1)}


@cost_of(spec.TransformerXL)
class TransformerXLCost(PositionCost):
    """Cost of two vectors per head, and of a projection of the sinusoids of every distance."""

    biases_scores = True

    def mixer_parameters(self, sizes: AttentionSizes) -> Formula:
        # both vectors, and the projection to keys of distances
        keys = symbol("K", sizes.num_kv_heads) * symbol("P", sizes.head_dim)
        return 2 * symbol("H", sizes.num_heads) * symbol("P", sizes.head_dim) + self.d * keys

    def score_flops(self, work: Work, pairs: Formula, queries: Formula, keys: Formula, heads: Formula) -> Formula:
        # keys of all distances and a product over pairs; in decoding the query is multiplied by sinusoids instead
        if work.phase == "decode":
            return 2 * work.rows * self.d * (queries + heads * work.length)
        return 2 * work.length * self.d * keys + pairs

    def shared_activations(self, num_heads: int, rotary_dim: int, work: TrainingWork) -> Mapping[Hashable, int]:
        # the sinusoids, and each pair's distance
        waves = work.length * self.d.value * work.itemsize
        return {self.part: waves, "distances": work.length**2 * INT64}

    def score_activations(self, work: TrainingWork, sizes: AttentionSizes) -> int:
        # shifted queries, keys of distances per row and head, and the mask
        return 2 * work.tokens * sizes.num_heads * sizes.head_dim * work.itemsize + work.length**2


@cost_of(spec.RelativeLogits)
class RelativeLogitsCost(PositionCost[spec.RelativeLogits]):
    """Cost of a bank of vectors, one for each distance, and their products with features of the queries."""

    biases_scores = True
    in_full = True

    @property
    def _features(self) -> Formula:
        return symbol("r", self.part.rank, self.part)

    @property
    def _distances(self) -> Formula:
        return symbol("u", self.part.extent, self.part)

    def mixer_parameters(self, sizes: AttentionSizes) -> Formula:
        return self._features * self._distances

    def score_flops(self, work: Work, pairs: Formula, queries: Formula, keys: Formula, heads: Formula) -> Formula:
        return 2 * work.tokens * heads * self._features * self._distances

    def score_activations(self, work: TrainingWork, sizes: AttentionSizes) -> int:
        # features of the queries, which are kept with the queries, and a copy of these; their products with the bank;
        # the index of each pair's distance, and which pairs are far or masked
        features = self.part.rank + sizes.head_dim + self.part.extent
        return work.tokens * sizes.num_heads * features * work.itemsize + work.length**2 * (INT64 + 2)
