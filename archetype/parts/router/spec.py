"""How a token selects its experts."""

from typing import ClassVar, Literal

from pydantic import model_validator

from archetype.roles.router import Router
from archetype.spec.base import Flag
from archetype.spec.errors import invalid
from archetype.spec.kinds import part

__all__ = ["HashRouter", "LinearRouter", "SigmoidRouter", "SoftmaxRouter"]


class LinearRouter(Router):
    """Base of routers whose logits are a projection of the token's vector.

    `bias` is an ordinary bias of the logits (gpt-oss).

    Attributes:
        bias: whether the logits have a bias.
    """

    bias: Flag = False


@part
class SoftmaxRouter(LinearRouter):
    """Affinities are the softmax of a token's logits over all experts (Shazeer 2017)."""

    kind: Literal["softmax"] = "softmax"


@part
class SigmoidRouter(LinearRouter):
    """The affinity to each expert is the sigmoid of its logit (DeepSeek-AI 2024b, equation 15)."""

    kind: Literal["sigmoid"] = "sigmoid"


@part
class HashRouter(Router):
    """Experts selected by token id, from a random table that is not trained (Roller 2021).

    The selected experts have equal weights, or learned affinities as in the first layers of DeepSeek-V4.

    Attributes:
        affinity: affinity of a token to each expert: `equal` (1 for all), or a function of logits projected from x.
    """

    routes_tokens: ClassVar[bool] = True
    kind: Literal["hash"] = "hash"
    affinity: Literal["equal", "softmax", "sigmoid", "sqrt_softplus"] = "equal"

    @model_validator(mode="after")
    def _experts_are_fixed(self) -> "HashRouter":
        if self.expert_bias:
            invalid("expert_bias", "has no effect, since the token id selects the experts", "remove it")
        return self
