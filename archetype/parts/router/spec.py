"""How a token selects its experts."""

from typing import ClassVar, Literal

from pydantic import model_validator

from archetype.parts.norm.spec import NoNorm, RMSNorm
from archetype.roles.norm import VectorNorm
from archetype.roles.router import Router
from archetype.spec.base import Flag, Positive
from archetype.spec.errors import invalid
from archetype.spec.kinds import part
from archetype.spec.sizes import Width


class LinearRouter(Router):
    """Base of routers whose logits are a projection of the token's vector.

    `bias` is an ordinary bias of the logits (gpt-oss). With `norm` and `scaled`, which Gemma 4 has, the logits are
    W norm(x) / sqrt(d_model). `softcap` limits a logit z to c tanh(z / c) (Grok 2.5).

    Attributes:
        bias: whether the logits have a bias.
        norm: norm of the router's input.
        scaled: whether the router's input is divided by sqrt(d_model).
        softcap: c of the soft cap c tanh(z / c) on logits (absent: no cap).
    """

    bias: Flag = False
    norm: VectorNorm = NoNorm()
    scaled: Flag = False
    softcap: Positive | None = None


@part
class SoftmaxRouter(LinearRouter):
    """Affinities are the softmax of a token's logits over all experts (Shazeer 2017)."""

    kind: Literal["softmax"] = "softmax"


@part
class SigmoidRouter(LinearRouter):
    """The affinity to each expert is the sigmoid of its logit (DeepSeek-AI 2024b, equation 15)."""

    kind: Literal["sigmoid"] = "sigmoid"


@part
class SqrtSoftplusRouter(LinearRouter):
    """The affinity to each expert is sqrt(softplus(logit)) (DeepSeek-V4)."""

    kind: Literal["sqrt_softplus"] = "sqrt_softplus"


@part
class SparseMixerRouter(LinearRouter):
    """Select experts one at a time, weighted among the nearly best remaining experts (Liu 2024; Phi-MoE).

    The weight of the best expert is its softmax probability among the logits within 2 `jitter` of the best logit,
    relative to the larger of |logit| and the best logit. The next expert is selected and weighted in the same way among
    the others. In training, experts are sampled from these probabilities, and the weights of experts other than the
    best are sometimes divided by three, which makes the gradient of the selection a third-order estimate.

    Attributes:
        jitter: half of the relative distance within which logits compete (0.01 in Phi-3.5-MoE).
    """

    weighs_choices: ClassVar[bool] = True
    kind: Literal["sparse_mixer"] = "sparse_mixer"
    jitter: Positive = 0.1

    @model_validator(mode="after")
    def _weights_are_shares(self) -> "SparseMixerRouter":
        for name in ("renormalize", "expert_bias"):
            if getattr(self, name):
                invalid(name, "has no effect, since each expert is weighted when it is selected", "remove it")
        return self


@part
class ExpertChoiceRouter(LinearRouter):
    """Each expert selects the k T / E of a text's T tokens with the largest softmax affinities (Zhou 2022).

    All experts compute equally many tokens, and a token is computed by k experts on average, perhaps by none. The
    selection depends on later tokens, so a causal stack refuses it.
    """

    chooses_tokens: ClassVar[bool] = True
    kind: Literal["expert_choice"] = "expert_choice"

    @model_validator(mode="after")
    def _tokens_are_weighed_by_affinities(self) -> "ExpertChoiceRouter":
        for name in ("renormalize", "expert_bias", "expert_scales"):
            if getattr(self, name):
                invalid(name, "has no effect, since experts select tokens", "remove it")
        return self


@part
class MLPRouter(Router):
    """Softmax of W gelu(V gelu(U norm(h))), where h is a low-rank projection of the token's vector (ZAYA1).

    With `carried`, the previous router's h, times a learned factor per feature, is added to h. U, V and the projection
    to h have biases.

    Attributes:
        width: width of h, R.
        norm: norm of h.
        carried: whether the previous layer's h is added.
    """

    letters: ClassVar = {"R": "features of a router's vector"}
    kind: Literal["mlp"] = "mlp"
    width: Width = 256
    norm: VectorNorm = RMSNorm()
    carried: Flag = False

    @property
    def state_width(self) -> int:
        return self.width

    @property
    def reads_state(self) -> bool:
        return self.carried

    @property
    def own(self) -> "MLPRouter":
        return self.replace(carried=False)


@part
class HashRouter(Router):
    """Select experts by token id, from a fixed random table (Roller 2021).

    The selected experts have equal weights, or learned affinities as in the first layers of DeepSeek-V4.

    Attributes:
        affinity: affinity of a token to each expert: `equal` (always 1), or a function of logits projected from x.
    """

    routes_tokens: ClassVar[bool] = True
    kind: Literal["hash"] = "hash"
    affinity: Literal["equal", "softmax", "sigmoid", "sqrt_softplus"] = "equal"

    @model_validator(mode="after")
    def _experts_are_fixed(self) -> "HashRouter":
        if self.expert_bias:
            invalid("expert_bias", "has no effect, since the token id selects the experts", "remove it")
        return self
