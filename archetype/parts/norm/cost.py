"""The cost of norms. All are computed in float32."""

from archetype.cost.formula import ZERO, Formula
from archetype.cost.registry import NormCost, cost_of
from archetype.cost.work import FLOAT32
from archetype.parts.norm import spec


@cost_of(spec.LayerNorm)
class LayerNormCost(NormCost):
    """Mean and variance of each vector are saved; an offset weight is added anew."""

    part: spec.LayerNorm

    def parameters(self) -> Formula:
        """Weight and bias."""
        return self.d * (self.part.weight + self.part.bias)

    def saved_activations(self, vectors: int) -> int:
        """Input and statistics."""
        return (vectors * (self.d.value + 2) + self.d.value * self.part.unit_offset) * FLOAT32


@cost_of(spec.RMSNorm)
class RMSNormCost(NormCost):
    """With a weight, the kernel of a training step saves its input alone and computes the rest again."""

    part: spec.RMSNorm

    def parameters(self) -> Formula:
        """Weight."""
        return self.d * self.part.weight

    def saved_activations(self, vectors: int) -> int:
        """Input, and without a weight mean square."""
        d, part = self.d.value, self.part
        return (vectors * (d + (not part.weight)) + d * part.unit_offset) * FLOAT32


@cost_of(spec.BatchNorm)
class BatchNormCost(NormCost):
    """Running statistics are stored, not trained."""

    part: spec.BatchNorm

    def parameters(self) -> Formula:
        """Weight and bias."""
        return 2 * self.d

    def saved_activations(self, vectors: int) -> int:
        """Input, centred and normalized vectors; mean and variance of each feature."""
        return (3 * vectors + 2) * self.d.value * FLOAT32


@cost_of(spec.NoNorm)
class NoNormCost(NormCost):
    """The cost of no norm."""

    part: spec.NoNorm

    def parameters(self) -> Formula:
        """No parameters."""
        return ZERO

    def saved_activations(self, vectors: int) -> int:
        """No bytes."""
        return 0
