"""The role of routers: how close each token is to each expert of a mixture."""

from typing import Annotated, ClassVar, Literal

from archetype.spec.base import Flag, Positive
from archetype.spec.kinds import ByKind, Part

__all__ = ["Router"]


class Router(Part):
    """Base of all routers: a token's experts are those with the largest affinities, which are their weights.

    `renormalize` makes the chosen weights sum to one; then they are multiplied by `scale`. An `expert_bias` for each
    expert is added where experts are chosen and nowhere else (DeepSeek-AI 2024b, equation 16), or to the
    logits before (Kolibri); training leaves it.

    Its module is made as `Module(spec, num_experts, place)` and is called `(x, context) -> logits`, with the vectors of
    all tokens, (N, D) with the rows of a batch one after the other, and gives a number for each expert, (N, E), in
    float32 at least. Its method `affinities(logits)` gives (N, E), none below 0: all that is chosen and weighed by. A
    router may leave `x` alone and read the context, and may have parameters of its own or none. Where `routes_tokens`
    the ids of tokens decide alone: its method `experts_of(context)` gives the experts, (N, k).

    Attributes:
        renormalize: whether the chosen weights are divided by their sum.
        scale: factor of the weights.
        expert_bias: whether a number for each expert is added where experts are chosen.
        expert_bias_on: whether that number is added to affinities or to logits.
    """

    needs: ClassVar[str] = "module"
    renamed: ClassVar[dict[str, str]] = {"correction": "expert_bias"}
    routes_tokens: ClassVar[bool] = False  # whether the ids of tokens say which experts they have
    renormalize: Flag = False
    scale: Positive = 1.0
    expert_bias: Flag = False
    expert_bias_on: Literal["affinities", "logits"] = "affinities"


AnyRouter = Annotated[Router, ByKind(Router)]
