"""Mixtures of experts: the selection of experts by tokens, and the form of the experts."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import model_validator

from archetype.parts.feedforward.spec import Expert
from archetype.parts.norm.spec import NoNorm
from archetype.parts.router.spec import SoftmaxRouter
from archetype.roles.feedforward import FeedForward
from archetype.roles.norm import VectorNorm
from archetype.roles.router import AnyRouter
from archetype.spec.base import Flag, Index, NotNegative, Size, Spec
from archetype.spec.errors import invalid
from archetype.spec.kinds import part
from archetype.spec.sizes import Width


class ExpertGroups(Spec):
    """Group-limited routing: a token selects `groups_per_token` of `num_groups` groups, then experts within them.

    A group's score is the score of its best expert (DeepSeek-AI 2024, section 2.2.2), or the sum of its
    `top_k_in_group` best scores (DeepSeek-AI 2024b, section 2.1.2).

    Attributes:
        num_groups: number of groups, a divisor of `num_experts`.
        groups_per_token: number of groups that a token selects.
        top_k_in_group: number of best experts whose scores are summed for a group's score.
    """

    num_groups: Size
    groups_per_token: Size
    top_k_in_group: Size = 1


@part
class MixtureOfExperts(FeedForward):
    """Weighted sum of a token's `experts_per_token` best experts, plus the `shared` expert (Shazeer 2017; Dai 2024).

    With `shared_gate`, the shared expert is multiplied by the sigmoid of a logit (Qwen2-MoE). `balance_loss` is the
    weight of the auxiliary loss E sum_e f_e p_e, where f_e is the fraction of selections of expert e and p_e its mean
    routing probability (Fedus 2021, equation 4); the loss is 1 for uniform routing. Weights multiply the experts'
    outputs, or their inputs with `weighs: inputs` (Llama 4). With `latent_width`, the routed experts work in a smaller
    space, between a down projection and an up projection (Nemotron 3); `latent_norm` normalizes their sum before the up
    projection (Kimi K3). The default `router` is a softmax with renormalized weights. With a single expert per token,
    the weight is not renormalized, since it would always be 1. `idle` additional experts return their input, which
    makes the tokens that select them cheaper (LongCat-Flash), or zero with `idle_output: zero` (ZAYA1); costs assume
    uniform routing. `always` additional experts are selected by every token, and the router weights them together with
    the others (Inkling). With `norm`, the experts read norm(x) while the router reads x (Gemma 4).

    Attributes:
        num_experts: number of experts, E.
        experts_per_token: number of experts that a token selects, k.
        expert: architecture of each expert.
        idle: additional experts that compute nothing.
        idle_output: what idle experts return: their input, or zero.
        always: additional experts that every token selects besides its `experts_per_token`; they are the last experts.
        norm: norm of the experts' input; the router reads the input without it.
        latent_width: width of the routed experts' inputs and outputs (absent: d_model).
        latent_norm: norm of the routed experts' weighted sum before the up projection.
        weighs: whether an expert's weight multiplies its output or its input.
        shared: expert that every token uses (absent: none).
        shared_gate: whether the shared expert is multiplied by the sigmoid of a logit.
        router: how experts are selected and weighted.
        groups: groups that are selected first (absent: none).
        balance_loss: weight of the load-balancing loss.
    """

    title: ClassVar[str] = "Mixture of experts"
    letters: ClassVar = {
        "E_t": "experts, with those that are idle or that every token selects",
        "k_b": "experts of each token that compute, on average",
        "k_t": "experts of each token, with those that every token selects",
    }
    kind: Literal["experts"] = "experts"
    num_experts: Size
    experts_per_token: Size
    expert: Expert
    idle: Index = 0
    idle_output: Literal["input", "zero"] = "input"
    always: Index = 0
    norm: VectorNorm = NoNorm()
    latent_width: Width | None = None
    latent_norm: VectorNorm = NoNorm()
    weighs: Literal["outputs", "inputs"] = "outputs"
    shared: Expert | None = None
    shared_gate: Flag = False
    router: AnyRouter = SoftmaxRouter(renormalize=True)
    groups: ExpertGroups | None = None
    balance_loss: NotNegative = 0.0

    @model_validator(mode="before")
    @classmethod
    def _one_expert_keeps_its_weight(cls, data: Any) -> Any:
        # as in Switch: a renormalized weight would always be 1 and train no router
        if isinstance(data, Mapping) and data.get("experts_per_token") == 1 and "router" not in data:
            return {**data, "router": SoftmaxRouter()}
        return data

    def always_said(self) -> tuple[str, ...]:
        # the router of a single expert has another default
        return ("router",) if self.experts_per_token == 1 else ()

    @property
    def separates_documents(self) -> bool:
        return not self.router.chooses_tokens

    def check(self, width: int, causal: bool) -> None:
        """Refuse experts that select tokens in a causal stack."""
        if causal and self.router.chooses_tokens:
            cause = "each expert selects tokens of the whole text, so that a token would depend on later ones"
            invalid("router", cause, "use another router, or an encoder")

    @property
    def router_state(self) -> tuple[int, int]:
        return self.router.state_width * self.router.reads_state, self.router.state_width

    @property
    def tokens_read_by(self) -> str | None:
        return "router" if self.router.routes_tokens else None

    @property
    def adds_to_loss(self) -> bool:
        return self.balance_loss > 0

    @property
    def sizes_to_divide(self) -> Mapping[str, Mapping[str, int]]:
        return {"expert": {"num_experts": self.num_computed}}

    @property
    def num_computed(self) -> int:
        """Number of experts with weights: all except idle ones."""
        return self.num_experts + self.always

    @model_validator(mode="after")
    def _choices_exist(self) -> "MixtureOfExperts":
        experts, chosen = self.num_experts, self.experts_per_token
        if chosen > experts + self.idle:
            invalid("experts_per_token", f"{chosen} is more than num_experts {experts}", f"use at most {experts}")
        if self.latent_width is None and not self.latent_norm.is_absent:
            invalid("latent_norm", "needs latent experts", "use latent_width, or remove it")
        if self.idle_output == "zero" and not self.idle:
            invalid("idle_output", "the model has no idle experts", "remove it, or use idle: 1")
        if self.idle and not self.norm.is_absent:
            invalid("norm", "idle experts return the router's input", "remove it, or use idle: 0")
        routes, chooses = self.router.routes_tokens, self.router.chooses_tokens
        for field, name, is_set, cause in (
            ("idle", "latent_width", self.latent_width is not None, "idle experts return vectors of width d_model"),
            ("idle", "groups", self.groups is not None, "idle experts belong to no group"),
            ("idle", "router", routes, "a table of token ids names experts that compute"),
            ("idle", "router", chooses, "experts select tokens"),
            ("always", "idle", bool(self.idle), "the last experts are selected by every token"),
            ("always", "router", routes, "a table of token ids names all experts of a token"),
            ("always", "router", self.router.weighs_choices, "the router weights only the experts that it selects"),
            ("always", "router", chooses, "experts select tokens"),
        ):
            if getattr(self, field) and is_set:
                invalid(name, cause, f"remove it, or use {field}: 0")
        if not self.expert.activation.is_fixed:
            cause = "is not a fixed elementwise function, which experts require"
            invalid("expert.activation", cause, "use another one, such as silu")
        if self.expert.hidden_gain is not None:
            invalid("expert.hidden_gain", "experts do not support hidden_gain", "remove it")
        if not self.expert.hidden_norm.is_absent:
            invalid("expert.hidden_norm", "experts do not support hidden_norm", "remove it")
        for name in ("expert", "shared"):
            network = getattr(self, name)
            if network is not None and network.convolutions is not None:
                invalid(f"{name}.convolutions", "experts read separate tokens", "remove it")
        if self.shared_gate and self.shared is None:
            invalid("shared_gate", "needs a shared expert", "add a shared expert, or remove shared_gate")
        if routes or chooses:
            cause = "experts select tokens" if chooses else "the router selects experts by token id"
            for name, is_set in (("groups", self.groups is not None), ("balance_loss", self.balance_loss > 0)):
                if is_set:
                    invalid(name, cause, "remove it")
        if self.router.weighs_choices and self.groups is not None:
            invalid("groups", "the router selects among all experts", "remove it")
        if self.groups is not None:
            groups, of = self.groups.groups_per_token, self.groups.num_groups
            if experts % of:
                invalid("groups.num_groups", f"{of} does not divide num_experts {experts}", "use a divisor")
            if self.groups.top_k_in_group > experts // of:
                cause = f"{self.groups.top_k_in_group} is more than the {experts // of} experts of a group"
                invalid("groups.top_k_in_group", cause, f"use at most {experts // of}")
            if groups > of:
                invalid("groups.groups_per_token", f"{groups} is more than num_groups {of}", f"use at most {of}")
            if chosen > groups * (experts // of):
                cause = f"{chosen} experts do not fit into {groups} groups of {experts // of}"
                invalid("experts_per_token", cause, "use fewer experts or more groups")
        return self
