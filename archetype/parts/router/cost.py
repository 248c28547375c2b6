"""Cost of routers."""

from archetype.cost.formula import ZERO, Formula, symbol
from archetype.cost.registry import Linear, NormCost, RouterCost, cost_of
from archetype.cost.work import FLOAT32, TrainingWork
from archetype.parts.router import spec


@cost_of(spec.LinearRouter)
class LinearRouterCost(RouterCost[spec.LinearRouter]):
    """Cost of a projection to logits, and of the affinities of all experts."""

    saved_affinities = 2

    @property
    def projection(self) -> Linear:
        return Linear(self.d, self.num_experts, self.part.bias)

    def parameters(self) -> Formula:
        return self.projection.parameters + self.norm.parameters()

    @property
    def norm(self) -> NormCost:
        return NormCost.of(self.part.norm, self.d)

    def flops(self, tokens: Formula) -> Formula:
        return self.projection.flops(tokens)

    def saved_activations(self, work: TrainingWork) -> int:
        # input vectors, affinities, a copy for the selection, and what the affinity function and soft cap save
        copies = self.saved_affinities + (self.part.softcap is not None)
        numbers = copies * work.tokens * self.num_experts.value
        saved = work.input_bytes(self.d.value) + self.norm.saved_activations(work.tokens)
        return saved + numbers * FLOAT32


@cost_of(spec.SqrtSoftplusRouter)
class SqrtSoftplusRouterCost(LinearRouterCost):
    saved_affinities = 3  # a square root also saves its output


@cost_of(spec.SparseMixerRouter)
class SparseMixerRouterCost(LinearRouterCost):
    saved_affinities = 3  # those that the balance loss may read, and the shares in two choices; masks take a byte


@cost_of(spec.MLPRouter)
class MLPRouterCost(RouterCost[spec.MLPRouter]):
    """Cost of four projections, and of the affinities of all experts."""

    def __init__(self, part: spec.MLPRouter, d: Formula, num_experts: Formula) -> None:
        super().__init__(part, d, num_experts)
        self.width = symbol("R", part.width, part)
        inner = Linear(self.width, self.width, True)
        self.projections = (Linear(d, self.width, True), inner, inner, Linear(self.width, num_experts))
        self.norm = NormCost.of(part.norm, self.width)

    def parameters(self) -> Formula:
        weights = sum((projection.parameters for projection in self.projections), start=ZERO)
        return weights + self.norm.parameters() + self.width * self.part.carried

    def flops(self, tokens: Formula) -> Formula:
        return sum((projection.flops(tokens) for projection in self.projections), start=ZERO)

    def saved_activations(self, work: TrainingWork) -> int:
        # the vectors; h of the previous layer; each projection's input, and the activations'; two copies of affinities
        width = self.width.value
        vectors = 5 + self.part.carried
        numbers = vectors * width + 2 * self.num_experts.value
        return work.input_bytes(self.d.value) + self.norm.saved(work.tokens, work) + work.tokens * numbers * FLOAT32


@cost_of(spec.HashRouter)
class HashRouterCost(RouterCost[spec.HashRouter]):
    """Cost of a look-up, and of a projection if affinities are learned. The drawn table is not a parameter."""

    @property
    def projection(self) -> Linear | None:
        return Linear(self.d, self.num_experts) if self.learns else None

    @property
    def learns(self) -> bool:
        return self.part.affinity != "equal"

    def parameters(self) -> Formula:
        return ZERO if self.projection is None else self.projection.parameters

    def flops(self, tokens: Formula) -> Formula:
        return ZERO if self.projection is None else self.projection.flops(tokens)

    def saved_activations(self, work: TrainingWork) -> int:
        # as for a linear router; a square root also saves its output
        if not self.learns:
            return 0
        affinities = 2 + (self.part.affinity == "sqrt_softplus")
        return work.input_bytes(self.d.value) + affinities * work.tokens * self.num_experts.value * FLOAT32
