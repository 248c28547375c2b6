"""Cost of a mixture of experts, which counts only the selected experts of each token."""

from collections.abc import Mapping

from archetype.cost.formula import Counts, Formula, prefixed, symbol
from archetype.cost.registry import FeedForwardCost, Linear, NormCost, RouterCost, cost_of
from archetype.cost.work import FLOAT32, TrainingWork
from archetype.parts.experts import spec
from archetype.parts.feedforward.cost import MLPCost


@cost_of(spec.MixtureOfExperts)
class MixtureOfExpertsCost(FeedForwardCost[spec.MixtureOfExperts]):
    """Cost of a router, routed experts, and optionally a shared expert with a gate."""

    def __init__(self, part: spec.MixtureOfExperts, d: Formula) -> None:
        super().__init__(part, d)
        # width of the routed experts' inputs
        self.width = d if part.latent_width is None else symbol("D_r", part.latent_width)
        self.expert = MLPCost.of(part.expert, self.width)
        self.latent = {}
        if part.latent_width is not None:
            self.latent = {"latent_down": Linear(d, self.width), "latent_up": Linear(self.width, d)}
        self.shared = MLPCost.of(part.shared, d) if part.shared else None
        self.num_experts, total = (
            symbol("E_t", count, part) if count > part.num_experts else symbol("E", count)
            for count in (part.num_computed, part.num_computed + part.idle)
        )
        self.router = RouterCost.of(part.router, d, total)
        self.norm, self.latent_norm = NormCost.of(part.norm, d), NormCost.of(part.latent_norm, self.width)
        self.experts_per_token = symbol("k", part.experts_per_token)
        if part.always:
            self.experts_per_token = symbol("k_t", part.experts_per_token + part.always, part)
        if part.idle:  # those that compute, if all are selected equally often
            busy = -(-part.experts_per_token * part.num_experts // (part.num_experts + part.idle))
            self.experts_per_token = symbol("k_b", busy, part)

    def parameters(self) -> Counts:
        return self._parameters(self.num_experts)

    def active_parameters(self) -> Counts:
        return self._parameters(self.experts_per_token)

    def _parameters(self, experts: Formula) -> Counts:
        counts = {"router": self.router.parameters()}
        counts |= {name: projection.parameters for name, projection in self.latent.items()}
        counts |= {f"experts.{name}": experts * count for name, count in self.expert.tensors().items()}
        counts |= {"norm": self.norm.parameters(), "latent_norm": self.latent_norm.parameters()}
        counts |= {"expert_scales": self.router.num_experts} if self.part.router.expert_scales else {}
        if self.shared is not None:
            counts |= prefixed("shared.", self.shared.parameters())
        return counts | ({"shared_gate": self.d} if self.part.shared_gate else {})

    def projection_sizes(self) -> Mapping[str, tuple[Formula, Formula]]:
        networks = {"experts": self.expert} | ({} if self.shared is None else {"shared": self.shared})
        sizes = {} if (router := self.router.projection) is None else {"router": (router.inputs, router.outputs)}
        sizes |= {name: (projection.inputs, projection.outputs) for name, projection in self.latent.items()}
        for prefix, network in networks.items():
            sizes |= {f"{prefix}.{name}": size for name, size in network.projection_sizes().items()}
        return sizes

    def flops(self, tokens: Formula) -> Counts:
        counts = {"router": self.router.flops(tokens)}
        counts |= {name: projection.flops(tokens) for name, projection in self.latent.items()}
        counts |= prefixed("experts.", self.expert.flops(tokens * self.experts_per_token))
        if self.shared is not None:
            counts |= prefixed("shared.", self.shared.flops(tokens))
        return counts | ({"shared_gate": 2 * tokens * self.d} if self.part.shared_gate else {})

    def saved_activations(self, work: TrainingWork) -> int:
        # the router, each expert's gathered inputs, and outputs multiplied by learned weights; if weights multiply
        # inputs, the inputs and the weights are saved instead of outputs
        part, d, routed = self.part, self.d.value, self._routed(work)
        width = self.width.value
        saved = self.router.saved_activations(work)
        saved += self.norm.saved_activations(work.tokens) + self.latent_norm.saved_activations(work.tokens)
        if part.router.expert_scales:  # weights, and the factors of the chosen experts with their indices
            saved += 2 * routed * FLOAT32
        saved += self.expert.saved_activations(work, routed)
        if self.part.idle:  # the vectors and the sums of idle weights; weights are gathered again
            saved += work.tokens * (d + 1 + self.part.experts_per_token) * FLOAT32
        if self.part.weighs == "inputs":
            saved += routed * FLOAT32 + (work.input_bytes(width) if self.router.learns else 0)
        else:
            saved += routed * (width * work.itemsize if self.router.learns else FLOAT32)
        if self.latent:
            saved += work.input_bytes(d) + work.input_bytes(width)
        if self.shared is not None:
            saved += self.shared.saved_activations(work)
        if self.part.shared_gate:  # a product of the shared output and a sigmoid
            saved += work.input_bytes(d) + work.tokens * (d + 1) * work.itemsize
        return saved

    def hidden_gradient(self, work: TrainingWork) -> int:
        return self.expert.hidden_gradient(work, self._routed(work))

    def _routed(self, work: TrainingWork) -> int:
        # vectors that experts compute
        part = self.part
        chosen = work.tokens * (part.experts_per_token + part.always)
        if not part.idle:
            return chosen
        return chosen * part.num_experts // (part.num_experts + part.idle)
