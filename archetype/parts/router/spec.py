"""How a token chooses its experts."""

from typing import ClassVar, Literal

from pydantic import model_validator

from archetype.roles.router import Router
from archetype.spec.base import Flag, invalid
from archetype.spec.kinds import part

__all__ = ["HashRouter", "LinearRouter", "SigmoidRouter", "SoftmaxRouter"]


class LinearRouter(Router):
    """Base of routers whose logits are a projection of a token's vector.

    A `bias` of the logits is an ordinary one (gpt-oss).

    Attributes:
        bias: whether the logits have a bias.
    """

    bias: Flag = False


@part
class SoftmaxRouter(LinearRouter):
    """A token's affinities are the softmax of its logits over all experts (Shazeer 2017)."""

    kind: Literal["softmax"] = "softmax"


@part
class SigmoidRouter(LinearRouter):
    """A token's affinity to each expert is the sigmoid of its logit (DeepSeek-AI 2024b, equation 15)."""

    kind: Literal["sigmoid"] = "sigmoid"


@part
class HashRouter(Router):
    """A token's id says which experts it has, by a table that is drawn once and never learns (Roller 2021).

    The chosen experts are weighed alike, or by an affinity that is learned, as the first layers of DeepSeek-V4 do.

    Attributes:
        affinity: of a token to each expert: `equal`, 1 for all; else a function of logits that are a projection of x.
    """

    routes_tokens: ClassVar[bool] = True
    kind: Literal["hash"] = "hash"
    affinity: Literal["equal", "softmax", "sigmoid", "sqrt_softplus"] = "equal"

    @model_validator(mode="after")
    def _experts_are_fixed(self) -> "HashRouter":
        if self.expert_bias:
            invalid("expert_bias", "the token's id has chosen the experts before", "leave it out")
        return self
