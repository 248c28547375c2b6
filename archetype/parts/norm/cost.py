"""Cost of norms, all computed in float32."""

from archetype.cost.formula import ZERO, Formula, constant, symbol
from archetype.cost.registry import NormCost, cost_of
from archetype.cost.work import FLOAT32
from archetype.parts.norm import spec


@cost_of(spec.LayerNorm)
class LayerNormCost(NormCost):
    """Cost of LayerNorm, which saves each vector with its mean and variance, and 1 + weight with a unit offset."""

    part: spec.LayerNorm

    def parameters(self) -> Formula:
        return self.d * (self.part.weight + self.part.bias)

    def saved_activations(self, vectors: int) -> int:
        return (vectors * (self.d.value + 2) + self.d.value * self.part.unit_offset) * FLOAT32


@cost_of(spec.RMSNorm)
class RMSNormCost(NormCost):
    """Cost of RMSNorm. With a weight, the training kernel saves only its input and recomputes the rest."""

    part: spec.RMSNorm

    def parameters(self) -> Formula:
        return self.d * self.part.weight

    def saved_activations(self, vectors: int) -> int:
        # the input and, without a weight, the mean square
        d, part = self.d.value, self.part
        return (vectors * (d + (not part.weight)) + d * part.unit_offset) * FLOAT32


@cost_of(spec.GatedRMSNorm)
class GatedRMSNormCost(NormCost):
    """Cost of RMSNorm, of two projections, and of the product with the gate."""

    part: spec.GatedRMSNorm

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
class L2NormCost(NormCost):
    """Cost of division by the length, which saves each vector and its length."""

    part: spec.L2Norm

    def parameters(self) -> Formula:
        return ZERO

    def saved_activations(self, vectors: int) -> int:
        return vectors * (self.d.value + 1) * FLOAT32


@cost_of(spec.Affine)
class AffineCost(NormCost):
    """Cost of a factor and a shift per feature; saves the factor's input."""

    part: spec.Affine

    def parameters(self) -> Formula:
        return self.d * (1 + self.part.bias)

    @property
    def saves_input(self) -> bool:
        return not self.part.bias  # otherwise it saves the shifted vector

    def saved_activations(self, vectors: int) -> int:
        return vectors * self.d.value * FLOAT32


@cost_of(spec.DynamicTanh)
class DynamicTanhCost(NormCost):
    """Cost of a bounded function of each feature, which saves its input and its output."""

    part: spec.DynamicTanh | spec.DynamicErf
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
class BatchNormCost(NormCost):
    """Cost of batch normalization, whose running statistics are stored but not trained."""

    part: spec.BatchNorm

    def parameters(self) -> Formula:
        return 2 * self.d

    def saved_activations(self, vectors: int) -> int:
        # input, centered and normalized vectors, and each feature's mean and variance
        return (3 * vectors + 2) * self.d.value * FLOAT32


@cost_of(spec.NoNorm)
class NoNormCost(NormCost):
    """Zero cost of no normalization."""

    part: spec.NoNorm

    def parameters(self) -> Formula:
        return ZERO

    def saved_activations(self, vectors: int) -> int:
        return 0
