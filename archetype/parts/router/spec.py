"""How a token chooses its experts."""

from typing import Literal

from archetype.roles.router import Router
from archetype.spec.base import Flag
from archetype.spec.kinds import part

__all__ = ["LinearRouter", "SigmoidRouter", "SoftmaxRouter"]


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
