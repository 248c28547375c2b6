"""Cost of norms, all computed in float32."""

from archetype.cost.formula import ZERO, Formula, constant, symbol
from archetype.cost.registry import NormCost, cost_of
from archetype.cost.work import FLOAT32
from archetype.parts.norm import spec


@cost_of(spec.LayerNorm)
class LayerNormCost(NormCost[spec.LayerNorm]):
    """Cost of LayerNorm, which saves each vector with its mean and variance, and 1 + weight with a unit offset."""

    def parameters(self) -> Formula:
        return self.d * (self.part.weight + self.part.bias)

    def saved_activations(self, vectors: int) -> int:
        return (vectors * (self.d.value + 2) + self.d.value * self.part.unit_offset) * FLOAT32


@cost_of(spec.RMSNorm)
class RMSNormCost(NormCost[spec.RMSNorm]):
    """Cost of RMSNorm. With a weight, the training kernel saves only its input and recomputes the rest."""

    def parameters(self) -> Formula:
        return self.d * self.part.weight

    def saved_activations(self, vectors: int) -> int:
        # the input and, without a weight, the mean square
        d, part = self.d.value, self.part
        return (vectors * (d + (not part.weight)) + d * part.unit_offset) * FLOAT32


@cost_of(spec.GatedRMSNorm)
class GatedRMSNormCost(NormCost[spec.GatedRMSNorm]):
    """Cost of RMSNorm, of two projections, and of the product with the gate."""

    def __init__(self, part: spec.GatedRMSNorm, d: Formula) -> None:
        super().__init__(part, d)
        self.rank = symbol("r", part.rank, part)

    def parameters(self) -> Formula:
        return self.d + 2 * self.d * self.rank

    def flops(self, tokens: Formula) -> Formula:
        return 4 * tokens * self.d * self.rank

    def saved_activations(self, vectors: int) -> int:
        return vectors * self.d.value * FLOAT32  # what the norm reads

    @property
    def saved_by_products(self) -> int:
        # the norm's output, the gate, and the narrow vector before and after its activation
        return 2 * (self.d.value + self.rank.value)


@cost_of(spec.L2Norm)
class L2NormCost(NormCost[spec.L2Norm]):
    """Cost of division by the length, which saves each vector and its length."""

    def parameters(self) -> Formula:
        return ZERO

    def saved_activations(self, vectors: int) -> int:
        return vectors * (self.d.value + 1) * FLOAT32


@cost_of(spec.Affine)
class AffineCost(NormCost[spec.Affine]):
    """Cost of a factor and a shift per feature; saves the factor's input."""

    def parameters(self) -> Formula:
        return self.d * (1 + self.part.bias)

    @property
    def saves_input(self) -> bool:
        return not self.part.bias  # otherwise it saves the shifted vector

    def saved_activations(self, vectors: int) -> int:
        return vectors * self.d.value * FLOAT32


@cost_of(spec.DynamicTanh)
class DynamicTanhCost(NormCost[spec.DynamicTanh | spec.DynamicErf]):
    """Cost of a bounded function of each feature, which saves its input and its output."""

    num_saved, num_scalars = 2, 1

    def parameters(self) -> Formula:
        return 2 * self.d + constant(self.num_scalars)

    def saved_activations(self, vectors: int) -> int:
        return vectors * self.d.value * self.num_saved * FLOAT32


@cost_of(spec.DynamicErf)
class DynamicErfCost(DynamicTanhCost):
    """Cost of erf, whose derivative also needs the shifted input."""

    num_saved, num_scalars = 3, 2


@cost_of(spec.BatchNorm)
class BatchNormCost(NormCost[spec.BatchNorm]):
    """Cost of batch normalization, whose running statistics are stored but not trained."""

    def parameters(self) -> Formula:
        return 2 * self.d

    def saved_activations(self, vectors: int) -> int:
        # input, centered and normalized vectors, and each feature's mean and variance
        return (3 * vectors + 2) * self.d.value * FLOAT32


@cost_of(spec.NoNorm)
class NoNormCost(NormCost[spec.NoNorm]):
    """Zero cost of no normalization."""

    def parameters(self) -> Formula:
        return ZERO

    def saved_activations(self, vectors: int) -> int:
        return 0
