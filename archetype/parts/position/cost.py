"""The cost of positions: tables that are added to embeddings, and what attention saves of angles and biases."""

from collections.abc import Hashable, Mapping

from archetype.cost.formula import ZERO, Counts, Formula, symbol
from archetype.cost.registry import PartCost, cost_of
from archetype.cost.work import FLOAT32, INT64, TrainingWork, Work
from archetype.parts.position import spec
from archetype.roles.position import AttentionSizes


class PositionCost(PartCost):
    """The cost of positions; most cost nothing in most places."""

    limits_length = False  # whether there are positions for no more than the context
    biases_scores = False  # by trained numbers, so that all scores are saved

    def parameters(self, context_length: int) -> Formula:
        """Parameters of what is added to embeddings."""
        return ZERO

    def mixer_parameters(self, sizes: AttentionSizes) -> Formula:
        """Parameters of what attention itself adds to its scores or rotates by."""
        return ZERO

    def shared_activations(self, num_heads: int, rotary_dim: int, work: TrainingWork) -> Mapping[Hashable, int]:
        """Bytes saved once for all layers of a stack, by what is shared."""
        return {}

    def layer_activations(self, num_heads: int, rotary_dim: int, work: TrainingWork) -> int:
        """Bytes saved by each layer, for products in bfloat16."""
        return 0

    def score_flops(self, work: Work, pairs: Formula, queries: Formula, keys: Formula, heads: Formula) -> Formula:
        """FLOPs of what is added to scores by the queries.

        Args:
            work: the pass.
            pairs: FLOPs of the scores themselves.
            queries: features of all queries of a token.
            keys: features of all keys of a token.
            heads: of the queries.
        """
        return ZERO

    def score_activations(self, work: TrainingWork, sizes: AttentionSizes) -> int:
        """Bytes saved by each layer of what is added to scores by the queries."""
        return 0


@cost_of(spec.NoPosition, spec.Sinusoidal)
class FixedPositionCost(PositionCost):
    """Nothing is trained and nothing saved."""


@cost_of(spec.Learned)
class LearnedCost(PositionCost):
    """The cost of learned positions: a table."""

    part: spec.Learned
    limits_length = True

    def parameters(self, context_length: int) -> Formula:
        """A vector for each position, after unused ones."""
        return symbol("T_max", context_length) * self.d + self.part.offset * self.d


@cost_of(spec.Rotary)
class RotaryCost(PositionCost):
    """Cosines and sines, in the type of the products."""

    part: spec.Rotary

    def shared_activations(self, num_heads: int, rotary_dim: int, work: TrainingWork) -> Mapping[Hashable, int]:
        """Angles that all layers share: half as many of each token as there are rotary features."""
        return {(self.part, rotary_dim): work.tokens * rotary_dim * work.itemsize}


@cost_of(spec.Alibi)
class AlibiCost(PositionCost):
    """A number for each head and pair of positions; in bfloat16 every layer saves its own cast of them."""

    def shared_activations(self, num_heads: int, rotary_dim: int, work: TrainingWork) -> Mapping[Hashable, int]:
        """Bytes of the biases that all layers share, in float32."""
        shared = num_heads * work.length**2 * FLOAT32
        return {(self.part, num_heads): shared} if work.compute_dtype == "float32" else {}

    def layer_activations(self, num_heads: int, rotary_dim: int, work: TrainingWork) -> int:
        """Bytes of each layer's own cast of them."""
        return num_heads * work.length**2 * work.itemsize


@cost_of(spec.RelativeBias)
class RelativeBiasCost(PositionCost):
    """The bucket of every pair, and whether the pair is allowed. The table itself belongs to the stack."""

    part: spec.RelativeBias
    biases_scores = True

    def table(self, num_heads: int) -> Counts:
        """Parameters of the table that a stack's layers share, by module."""
        return {"position_bias": symbol("u", self.part.num_buckets) * symbol("H", num_heads)}

    def shared_activations(self, num_heads: int, rotary_dim: int, work: TrainingWork) -> Mapping[Hashable, int]:
        """Bytes of the buckets that all layers share, whatever the type of products."""
        return {self.part: work.length**2 * (INT64 + 1)}


@cost_of(spec.TransformerXL)
class TransformerXLCost(PositionCost):
    """Two vectors of each head, and a projection of the waves of every distance."""

    biases_scores = True

    def mixer_parameters(self, sizes: AttentionSizes) -> Formula:
        """Both vectors, and the projection to keys of distances."""
        keys = symbol("K", sizes.num_kv_heads) * symbol("P", sizes.head_dim)
        return 2 * symbol("H", sizes.num_heads) * symbol("P", sizes.head_dim) + self.d * keys

    def score_flops(self, work: Work, pairs: Formula, queries: Formula, keys: Formula, heads: Formula) -> Formula:
        """The keys of all distances, and a product over pairs; of one token, its query meets the waves themselves."""
        if work.phase == "decode":
            return 2 * work.rows * self.d * (queries + heads * work.length)
        return 2 * work.length * self.d * keys + pairs

    def shared_activations(self, num_heads: int, rotary_dim: int, work: TrainingWork) -> Mapping[Hashable, int]:
        """Waves, and the distance of each pair, that all layers share."""
        waves = work.length * self.d.value * work.itemsize
        return {self.part: waves, "distances": work.length**2 * INT64}

    def score_activations(self, work: TrainingWork, sizes: AttentionSizes) -> int:
        """The queries that meet keys of distances, these keys for each row and head, and which pairs are allowed."""
        return 2 * work.tokens * sizes.num_heads * sizes.head_dim * work.itemsize + work.length**2
