"""Mixture of experts: each token is sent to a few of many feed-forward networks."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from archetype.native.kernels import FUSED, Kernels
from archetype.native.products import product
from archetype.nn.autocast import cast_for_products
from archetype.nn.context import ForwardContext
from archetype.nn.layer_state import LayerState
from archetype.nn.place import Place
from archetype.nn.registry import build_feedforward, build_norm, module_class, module_for
from archetype.nn.symbolic import is_symbolic
from archetype.parts.activation.module import activation
from archetype.parts.experts import spec
from archetype.parts.feedforward.module import gated_product
from archetype.parts.feedforward.spec import Expert, GatedMLP
from archetype.weights.linear import Linear, project
from archetype.weights.packed import PackedMatrix, Weight
from archetype.weights.stacked import Groups, is_one_operation, project_groups, unstacked

Projection = Callable[[str, Tensor], Tensor]  # of vectors, by the name of the matrix


@module_for(spec.MixtureOfExperts)
class MixtureOfExperts(nn.Module):
    """sum_i g_i(x) expert_i(x) over the selected experts, plus the shared expert (Shazeer 2017, eq. 1; Dai 2024).

    No token is dropped, however many select the same expert; experts without tokens are not computed.
    """

    probes: ClassVar = {"router_logits": "N E", "weights": "N k", "chosen": "N k"}
    constant_buffers: ClassVar = ("correction",)  # of the checkpoint; training does not update it
    initial_values: ClassVar = {"correction": 0.0}  # no expert is preferred
    correction: Tensor | None
    expert_scales: Tensor | None

    def __init__(self, feedforward: spec.MixtureOfExperts, place: Place) -> None:
        super().__init__()
        d_model = place.d_model
        self.spec = feedforward
        router_place = replace(place, experts_per_token=feedforward.experts_per_token)
        total = feedforward.num_computed + feedforward.idle
        self.router: Any = module_class(feedforward.router)(feedforward.router, total, router_place)
        scales = nn.Parameter(torch.empty(total)) if feedforward.router.expert_scales else None
        self.register_parameter("expert_scales", scales)
        self.norm = build_norm(feedforward.norm, d_model)
        width = feedforward.latent_width
        self.latent_down = None if width is None else Linear(d_model, width, bias=False)
        self.latent_norm = build_norm(feedforward.latent_norm, width or d_model)
        self.latent_up = None if width is None else Linear(width, d_model, bias=False)
        self.experts = Experts(feedforward.expert, feedforward.num_computed, width or d_model)
        self.shared = None if feedforward.shared is None else build_feedforward(feedforward.shared, place)
        self.shared_gate = Linear(d_model, 1, bias=False) if feedforward.shared_gate else None
        correction = torch.empty(total - feedforward.always) if feedforward.router.expert_bias else None
        self.register_buffer("correction", correction)

    def forward(
        self, x: Float[Tensor, "... D"], context: ForwardContext, state: LayerState | None = None
    ) -> Float[Tensor, "... D"]:
        """Mix the outputs of each token's experts. In training, add the balance loss to `context.aux_losses`."""
        tokens = x.flatten(0, -2)  # (N, D)
        logits = context.probe(self, "router_logits", self.router(tokens, context))  # (N, E)
        affinities = self.router.affinities(logits)  # (N, E)
        if self.spec.router.chooses_tokens:
            weights, chosen = self._chosen_by_experts(affinities.view(*x.shape[:-1], -1), context)  # (N, E) each
        else:
            of_tokens = self.router.experts_of(context) if self.spec.router.routes_tokens else None
            weights, chosen = self._choose(affinities, logits, of_tokens)  # (N, k) each
        weights, chosen = context.probes(self, weights=weights, chosen=chosen)
        if self.training and self.spec.balance_loss > 0:
            valid = None if context.valid is None else context.valid.flatten()
            choices = self._choices(affinities), chosen[:, : self.spec.experts_per_token]
            context.aux_losses.append(self.spec.balance_loss * load_balancing_loss(*choices, valid))
        x = self.norm(x, context)
        y = self._routed(x.flatten(0, -2), chosen, weights, context.kernels).view_as(x)
        return y if self.shared is None else y + self._shared(x, context)

    def _computed(
        self,
        tokens: Float[Tensor, "N D"],
        chosen: Int[Tensor, "N k"],
        weights: Float[Tensor, "N k"],
        kernels: Kernels,
        left_out: Bool[Tensor, "N k"] | None = None,
    ) -> Float[Tensor, "N D"]:
        x = tokens if self.latent_down is None else self.latent_down(tokens)
        if self.spec.weighs == "outputs":
            y: Tensor = self.experts(x, chosen, weights, kernels)
        else:  # as in Llama 4: each weighted copy of a token is sent to one expert
            inputs = (x[:, None] * weights[..., None]).to(x.dtype).flatten(0, 1)  # (N k, D)
            outputs = self.experts(inputs, chosen.reshape(-1, 1), kernels=kernels).view(*chosen.shape, -1)
            # biases are added to an input of zeros, too
            y = (outputs if left_out is None else outputs.masked_fill(left_out[..., None], 0.0)).sum(1)
        y = self.latent_norm(y)
        return y if self.latent_up is None else self.latent_up(y)

    def _routed(
        self,
        x: Float[Tensor, "N D"],
        chosen: Int[Tensor, "N k"],
        weights: Float[Tensor, "N k"],
        kernels: Kernels,
    ) -> Float[Tensor, "N D"]:
        if not (self.spec.idle or self.spec.router.chooses_tokens):
            return self._computed(x, chosen, weights, kernels)
        # idle experts return their input, which their weights multiply, or nothing
        is_idle = chosen >= self.spec.num_experts  # (N, k)
        returned = weights * is_idle if self.spec.idle_output == "input" else torch.zeros_like(weights)
        y = (x * returned.sum(-1, keepdim=True)).to(x.dtype)
        busy = None
        if not (kernels.records or torch.compiler.is_compiling() or is_symbolic(x.shape[0])):
            busy = (~is_idle).flatten().nonzero().squeeze(1)  # choices of experts that compute
        # a graph has no choice, and without any tokens the experts still need (zero) gradients
        if busy is None or (not len(busy) and self.experts.exchange is None):
            chosen, weights = chosen.masked_fill(is_idle, 0), weights.masked_fill(is_idle, 0.0)
            return y + self._computed(x, chosen, weights, kernels, left_out=is_idle)
        owners = busy // chosen.shape[1]
        choices, shares = (values.flatten().index_select(0, busy)[:, None] for values in (chosen, weights))
        outputs = self._computed(x.index_select(0, owners), choices, shares, kernels)
        return y.index_add(0, owners, outputs.to(y.dtype))

    def _shared(self, x: Float[Tensor, "... D"], context: ForwardContext) -> Float[Tensor, "... D"]:
        assert self.shared is not None
        y: Tensor = self.shared(x, context)
        return y if self.shared_gate is None else y * self.shared_gate(x).sigmoid()

    def _chosen_by_experts(
        self, affinities: Float[Tensor, "B T E"], context: ForwardContext
    ) -> tuple[Float[Tensor, "N E"], Int[Tensor, "N E"]]:
        # an expert that did not select a token is called E, like one that is idle, and has no weight
        selected = self.router.tokens_of(affinities.detach(), self.spec.experts_per_token, context.valid)
        experts = torch.arange(affinities.shape[-1], device=affinities.device)
        weights = affinities.masked_fill(~selected, 0.0) * self.spec.router.scale
        return weights.flatten(0, 1), torch.where(selected, experts, len(experts)).flatten(0, 1)

    def _choose(
        self,
        affinities: Float[Tensor, "N E"],
        logits: Float[Tensor, "N E"],
        chosen: Int[Tensor, "N k"] | None = None,
    ) -> tuple[Float[Tensor, "N k"], Int[Tensor, "N k"]]:
        if self.spec.router.weighs_choices:
            weights, chosen = self.router.choose(logits, self.spec.experts_per_token)
            return self._scaled(weights, chosen), chosen
        # a router by token id has already chosen
        chosen = self._best(affinities, logits) if chosen is None else chosen
        if self.spec.always:
            always = torch.arange(self.spec.num_experts, self.spec.num_computed, device=chosen.device)
            chosen = torch.cat((chosen, always.expand(len(chosen), -1)), dim=1)  # (N, k)
        # from the affinities without the correction, which only changes the selection (DeepSeek-AI 2024b, equation 16)
        weights = affinities.gather(-1, chosen)
        if self.spec.router.renormalize:
            weights = weights / weights.sum(-1, keepdim=True).clamp(min=1e-20)  # sigmoids may all be zero
        return self._scaled(weights, chosen), chosen

    def _scaled(self, weights: Float[Tensor, "N k"], chosen: Int[Tensor, "N k"]) -> Float[Tensor, "N k"]:
        weights = weights * self.spec.router.scale
        if self.expert_scales is None:
            return weights
        return weights * self.expert_scales.index_select(0, chosen.flatten()).view_as(weights)

    def _choices(self, scores: Float[Tensor, "N E"]) -> Tensor:
        # those of the experts among which tokens choose, which come first
        return scores[:, : scores.shape[1] - self.spec.always]

    def _best(self, affinities: Float[Tensor, "N E"], logits: Float[Tensor, "N E"]) -> Int[Tensor, "N k"]:
        scores = affinities if self.spec.router.expert_bias_on == "affinities" else logits
        scores = self._choices(scores)
        scores = scores if self.correction is None else scores + self.correction
        if self.spec.groups is not None:
            scores = scores.masked_fill(~group_limited_mask(scores, self.spec.groups), -math.inf)
        return scores.topk(self.spec.experts_per_token).indices


def group_limited_mask(scores: Float[Tensor, "N E"], groups: spec.ExpertGroups) -> Bool[Tensor, "N E"]:
    """Return True for the experts in each token's best groups, ranked by the sum of a group's best scores."""
    grouped = scores.unflatten(-1, (groups.num_groups, -1))  # (N, groups, E / groups)
    best = grouped.topk(groups.top_k_in_group).values.sum(-1).topk(groups.groups_per_token).indices
    allowed = torch.zeros(grouped.shape[:-1], dtype=torch.bool, device=scores.device).scatter(-1, best, True)
    return allowed[..., None].expand(grouped.shape).flatten(1)


def load_balancing_loss(
    affinities: Float[Tensor, "N E"], chosen: Int[Tensor, "N k"], valid: Bool[Tensor, "N"] | None = None
) -> Float[Tensor, ""]:
    """Return E sum_e f_e p_e: f_e is the fraction of selections of expert e, p_e its mean share of affinities.

    (Fedus 2021, equation 4.) Softmax affinities sum to 1; sigmoids are divided by their sum (DeepSeek-AI 2024b,
    equation 19). Tokens with `valid` False do not count.
    """
    experts, per_token = affinities.shape[1], chosen.shape[1]
    counted = torch.ones_like(affinities[:, 0]) if valid is None else valid.to(affinities.dtype)
    tokens = counted.sum().clamp(min=1)
    # (E): how often each expert was selected
    choices = torch.zeros_like(affinities[0]).index_add(0, chosen.flatten(), counted.repeat_interleave(per_token))
    shares = affinities / affinities.sum(-1, keepdim=True).clamp(min=1e-20)  # (N, E)
    return experts * ((choices / (per_token * tokens)) * (counted @ shares / tokens)).sum()


class Experts(nn.Module):
    """E networks of the same form with stacked weights.

    Tokens are sorted by expert, so that each expert needs one product.

    Attributes:
        exchange: with expert parallelism, returns the outputs of each token's experts from all processes, (N, k, D).
    """

    packed_parameters: ClassVar = ("gate", "up", "down")
    parameter_roles: ClassVar = {
        **dict.fromkeys(packed_parameters, "hidden"),
        **dict.fromkeys(("gate_bias", "up_bias", "down_bias"), "bias"),
    }

    def __init__(self, expert: Expert, num_experts: int, d_model: int) -> None:
        super().__init__()
        d_ff = expert.width(d_model)
        self.projections: tuple[str, ...]
        if isinstance(expert, GatedMLP):
            self.projections, self.product = ("gate", "up", "down"), gated_product(expert)
        else:
            self.projections, self.activation = ("up", "down"), activation(expert.activation)
        for name in self.projections:
            shape = (d_model, d_ff) if name == "down" else (d_ff, d_model)
            self.register_parameter(name, nn.Parameter(torch.empty(num_experts, *shape)))
            bias = nn.Parameter(torch.empty(num_experts, shape[0])) if expert.has_bias(name) else None
            self.register_parameter(f"{name}_bias", bias)
        self.num_experts = num_experts
        self.exchange: Callable[[Tensor, Tensor], Tensor] | None = None

    def forward(
        self,
        x: Float[Tensor, "N D"],
        chosen: Int[Tensor, "N k"],
        weights: Float[Tensor, "N k"] | None = None,
        kernels: Kernels = FUSED,
    ) -> Float[Tensor, "N D"]:
        """Return for each token the sum of its k experts' outputs, weighted if weights are given."""
        if self.exchange is not None:
            y = self.exchange(x, chosen)
        elif is_symbolic(x.shape[0]) and not self._is_one_operation:
            y = self.each_expert(x, chosen)
        else:
            native = expert_outputs(kernels, self, x, chosen) if kernels.records else None
            y = self.sorted_by_expert(x, chosen) if native is None else native
        return (y if weights is None else y * weights[..., None]).sum(1).to(y.dtype)

    def sorted_by_expert(self, x: Float[Tensor, "N D"], chosen: Int[Tensor, "N k"]) -> Float[Tensor, "N k D"]:
        """Return the outputs of each token's experts, with one product per expert."""
        groups = Groups(chosen.flatten(), self.num_experts)
        rows = x.index_select(0, groups.order // chosen.shape[1])  # choice c belongs to token c // k
        in_turns = x.device.type == "cpu" and not (torch.is_grad_enabled() or torch.compiler.is_compiling())
        if self._is_one_operation and not in_turns:
            rows = cast_for_products(rows)  # once for two projections
            outputs = self._network(rows, lambda name, rows: project_groups(rows, *self._stack(name), groups))
        else:  # one expert after the other, whose hidden vectors stay in the caches of the processor
            pairs = zip(rows.split(groups.sizes.tolist()), self._unstacked(), strict=True)
            outputs = torch.cat([self._network(rows, expert) for rows, expert in pairs if len(rows)])
        # the inverse permutation restores the order of the choices
        return outputs.index_select(0, groups.order.argsort()).view(*chosen.shape, -1)

    def each_expert(self, x: Float[Tensor, "N D"], chosen: Int[Tensor, "N k"]) -> Float[Tensor, "N k D"]:
        """Like `sorted_by_expert`, for tracing, where the number of an expert's tokens is unknown (it may be 0)."""
        choices = chosen.flatten()
        y = x.new_zeros(choices.shape[0], x.shape[1])
        for index, expert in enumerate(self._unstacked()):
            choice_indices = (choices == index).nonzero().squeeze(1)
            rows = x.index_select(0, choice_indices // chosen.shape[1])
            y = y.index_copy(0, choice_indices, self._network(rows, expert))
        return y.unflatten(0, chosen.shape)

    def _network(self, x: Float[Tensor, "N D"], project: Projection) -> Float[Tensor, "N D"]:
        *gate, up, down = self.projections
        hidden = project(up, x)
        hidden = self.product(FUSED, project(gate[0], x), hidden) if gate else self.activation(hidden)
        return project(down, hidden)

    @property
    def _is_one_operation(self) -> bool:
        return is_one_operation(*(getattr(self, name) for name in self.projections))

    def _stack(self, name: str) -> tuple[Weight, Tensor | None]:
        return getattr(self, name), getattr(self, f"{name}_bias")

    def _unstacked(self) -> list[Projection]:
        # the projections of each expert
        stacks = {name: unstacked(*self._stack(name), self.num_experts) for name in self.projections}

        def of(expert: int) -> Projection:
            return lambda name, x: project(x, *stacks[name][expert])

        return [of(expert) for expert in range(self.num_experts)]


def expert_outputs(
    kernels: Kernels, experts: Experts, x: Float[Tensor, "N D"], chosen: Int[Tensor, "N k"]
) -> Float[Tensor, "N k D"] | None:
    """Record the product of each token with the matrices of its experts, which may change between replays."""

    def project(name: str, rows: Tensor, indices: Tensor) -> Tensor | None:
        weight, bias = getattr(experts, name), getattr(experts, f"{name}_bias")
        if isinstance(weight, PackedMatrix):
            return weight.product(rows, bias, indices, kernels)
        return product(kernels, rows, weight, bias, indices)

    *gate, up, down = experts.projections
    hidden = project(up, x, chosen)  # (N, k, F)
    if hidden is None:
        return None
    if gate:
        gates = project(gate[0], x, chosen)
        assert gates is not None
        hidden = experts.product(kernels, gates, hidden)
    else:
        hidden = experts.activation(hidden)
    y = project(down, hidden.flatten(0, 1), chosen.reshape(-1, 1))  # (N, k, F) to (N k, 1, D)
    return None if y is None else y.view(*chosen.shape, -1)
