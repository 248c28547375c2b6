"""The role of routers: the affinity of each token to each expert."""

from typing import Annotated, ClassVar, Literal

from archetype.spec.base import Flag, Positive
from archetype.spec.kinds import ByKind, Part


class Router(Part):
    """Base class of routers: each token goes to the experts with the largest affinities, weighted by them.

    `renormalize` divides the weights of the selected experts by their sum; then they are multiplied by `scale`.
    `expert_bias` adds a bias per expert to the affinities for the selection only, not to the weights (DeepSeek-AI
    2024b, equation 16), or to the logits (Kolibri); it is not trained by gradients. `expert_scales` multiplies the
    weights of each expert by a trained number (Gemma 4).

    Its module is constructed as `Module(spec, num_experts, place)` and called `(x, context) -> logits` with the vectors
    of all tokens of the batch, (N, D); it returns logits (N, E) in at least float32. Its method `affinities(logits)`
    returns non-negative affinities (N, E), which select and weight the experts. A router may ignore `x` and read
    the context, and may have parameters or none. With `routes_tokens` the token ids alone decide: its method
    `experts_of(context)` returns the experts, (N, k). With `weighs_choices` its method `choose(logits, count)` returns
    the weights and the experts, (N, k) each. With `chooses_tokens` the experts select tokens: its method
    `tokens_of(affinities, count, valid)` returns which tokens each expert selects, (B, T, E).

    Attributes:
        renormalize: whether the weights of the selected experts are divided by their sum.
        scale: factor on the weights.
        expert_scales: whether each expert's weight is multiplied by a learned scalar.
        expert_bias: whether a bias per expert is added for the selection only.
        expert_bias_on: whether the selection bias is added to the affinities or to the logits.
    """

    needs: ClassVar[str] = "module"
    routes_tokens: ClassVar[bool] = False  # whether token ids determine the experts
    weighs_choices: ClassVar[bool] = False  # whether it selects and weighs experts otherwise than by affinities
    chooses_tokens: ClassVar[bool] = False  # whether each expert selects tokens of the whole text
    renormalize: Flag = False
    scale: Positive = 1.0
    expert_scales: Flag = False
    expert_bias: Flag = False
    expert_bias_on: Literal["affinities", "logits"] = "affinities"

    @property
    def state_width(self) -> int:
        """Features of the vector that the next layer's router may read; 0 if there is none."""
        return 0

    @property
    def reads_state(self) -> bool:
        """Whether it reads this vector of the previous layer's router."""
        return False

    @property
    def own(self) -> "Router":
        """Copy of this router that does not read a previous router."""
        return self


AnyRouter = Annotated[Router, ByKind(Router)]
