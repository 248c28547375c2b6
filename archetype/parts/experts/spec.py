"""Mixtures of experts: which experts a token chooses, and what they are."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import model_validator

from archetype.parts.feedforward.spec import Expert
from archetype.parts.router.spec import SoftmaxRouter
from archetype.roles.feedforward import FeedForward
from archetype.roles.router import AnyRouter
from archetype.spec.base import Flag, NotNegative, Size, Spec, invalid
from archetype.spec.kinds import part
from archetype.spec.sizes import Width

__all__ = ["ExpertGroups", "MixtureOfExperts"]


class ExpertGroups(Spec):
    """A token chooses `groups_per_token` of `num_groups` groups, and its experts in them.

    A group is worth what its best expert is (DeepSeek-AI 2024, section 2.2.2), or its `top_k_in_group` ones together
    (DeepSeek-AI 2024b, section 2.1.2).

    Attributes:
        num_groups: groups of experts, a divisor of `num_experts`.
        groups_per_token: groups that a token chooses.
        top_k_in_group: best experts whose sum a group is worth.
    """

    num_groups: Size
    groups_per_token: Size
    top_k_in_group: Size = 1


@part
class MixtureOfExperts(FeedForward):
    """The weighted sum of a token's `experts_per_token` best experts, plus the `shared` one (Shazeer 2017; Dai 2024).

    With `shared_gate` the shared one is multiplied by the sigmoid of a logit of its own (Qwen2-MoE).
    `balance_loss` weighs the auxiliary loss E sum_e f_e p_e, with f_e the share of the choices that fell on expert e
    and p_e its mean share of a token's affinities (Fedus 2021, equation 4); it is 1 where all experts are chosen alike.
    Weights multiply what experts give; with `weighs: inputs` what they read (Llama 4). With `latent_width` the routed
    experts work in a smaller space: one projection leads there, and one back from the weighted sum (Nemotron 3).
    Absent: the `router` is a softmax whose chosen weights are renormalized; that of a single expert
    per token keeps its affinity, unless the router is given (published models with such routers are not trained anew).

    Attributes:
        num_experts: experts, E.
        experts_per_token: experts that a token chooses, k.
        expert: the form of each expert.
        latent_width: features of the vectors that routed experts read and give (absent: d_model).
        weighs: whether an expert's weight multiplies its output or its input.
        shared: an expert that every token has (absent: none).
        shared_gate: whether the shared expert is multiplied by the sigmoid of a logit.
        router: how a token's experts are chosen and weighed.
        groups: groups that are chosen first (absent: none).
        balance_loss: weight of the load-balancing loss.
    """

    title: ClassVar[str] = "Mixture of experts"
    kind: Literal["experts"] = "experts"
    num_experts: Size
    experts_per_token: Size
    expert: Expert
    latent_width: Width | None = None
    weighs: Literal["outputs", "inputs"] = "outputs"
    shared: Expert | None = None
    shared_gate: Flag = False
    router: AnyRouter = SoftmaxRouter(renormalize=True)
    groups: ExpertGroups | None = None
    balance_loss: NotNegative = 0.0

    @model_validator(mode="before")
    @classmethod
    def _one_expert_keeps_its_weight(cls, data: Any) -> Any:
        """A single expert is weighed by its affinity, as in Switch: a weight that is always 1 would train no router."""
        if isinstance(data, Mapping) and data.get("experts_per_token") == 1 and "router" not in data:
            return {**data, "router": SoftmaxRouter()}
        return data

    def always_said(self) -> tuple[str, ...]:
        """The router of a single expert, whose default is another."""
        return ("router",) if self.experts_per_token == 1 else ()

    @property
    def tokens_read_by(self) -> str | None:
        """The router, where it routes by ids."""
        return "router" if self.router.routes_tokens else None

    @property
    def adds_to_loss(self) -> bool:
        """The balance of experts, where it has a weight."""
        return self.balance_loss > 0

    @property
    def sizes_to_divide(self) -> Mapping[str, Mapping[str, int]]:
        """The experts."""
        return {"expert": {"num_experts": self.num_experts}}

    @model_validator(mode="after")
    def _choices_exist(self) -> "MixtureOfExperts":
        experts, chosen = self.num_experts, self.experts_per_token
        if chosen > experts:
            invalid("experts_per_token", f"{chosen} is more than num_experts {experts}", f"use at most {experts}")
        if self.shared_gate and self.shared is None:
            invalid("shared_gate", "there is no shared expert to weigh", "give one, or leave shared_gate out")
        if self.router.routes_tokens:
            for name, is_said in (("groups", self.groups is not None), ("balance_loss", self.balance_loss > 0)):
                if is_said:
                    invalid(name, "the router sends each token to the experts of its id", "leave it out")
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
