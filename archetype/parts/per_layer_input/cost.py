"""Cost of per-layer inputs, without their table, which belongs to the embedding."""

from archetype.cost.formula import Counts, Formula, symbol
from archetype.cost.registry import FeedForwardCost, Linear, NormCost, cost_of
from archetype.cost.work import TrainingWork
from archetype.parts.feedforward.cost import GatedMLPCost
from archetype.parts.feedforward.spec import GatedMLP
from archetype.parts.per_layer_input import spec


@cost_of(spec.PerLayerInput)
class PerLayerInputCost(FeedForwardCost[spec.PerLayerInput]):
    """Cost of a gate projection and a down projection, which save the same activations as a gated MLP."""

    def __init__(self, part: spec.PerLayerInput, d: Formula) -> None:
        super().__init__(part, d)
        features = symbol("D_p", part.features)
        self.projections = {"gate": Linear(d, features), "down": Linear(features, d)}
        norms = {"input_norm": NormCost.of(part.input_norm, d), "added_norm": NormCost.of(part.added_norm, d)}
        self.norms = tuple(norms.values())
        self.vectors = {name: norm.parameters() for name, norm in norms.items() if not norm.part.is_absent}
        self.network = GatedMLPCost(GatedMLP(d_ff=part.features, activation=part.activation), d)

    def flops(self, tokens: Formula) -> Counts:
        return self.projection_flops(tokens)

    def saved_activations(self, work: TrainingWork) -> int:
        return self.network.saved_activations(work) + sum(norm.saved(work.tokens, work) for norm in self.norms)

    def hidden_gradient(self, work: TrainingWork) -> int:
        return self.network.hidden_gradient(work)
