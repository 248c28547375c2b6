"""Views of a part's computation in a recorded pass, in addition to inputs, outputs, probes and states.

The `inspect.py` of a part's folder computes them from the part's activations, and registers its functions by
`provides("inspect", KIND)(Shown(...))`. A module that shows no more than means of its probes names these in its
attribute `shown_means`.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from archetype.nn.context import ForwardContext
from archetype.nn.layer_state import LayerState
from archetype.spec.kinds import Part
from archetype.spec.registry import provided


@dataclass(frozen=True)
class PartTrace:
    """One part of a model in a recorded pass."""

    path: str  # of its module; empty for the whole model
    module: Any
    activations: Mapping[str, Tensor]  # by name below the part: "in", "out", and its probes
    context: ForwardContext | None  # with which it was called, if it takes one
    state: LayerState | None  # before the pass, if it has one


@dataclass
class AttentionSteps:
    """Intermediate tensors of attention, for all heads."""

    scores: Float[Tensor, "B H T S"]  # scaled and possibly capped products of queries and keys
    masked: Float[Tensor, "B H T S"]  # with position biases, minus infinity where masked
    weights: Float[Tensor, "B H T S"]  # after the softmax; with attention sinks a row sums to less than 1
    values: Float[Tensor, "B K S Q"]
    # values for global queries with their own projections, and the number of these queries
    global_values: tuple[Float[Tensor, "B K S Q"], int] | None = None

    @property
    def mixed(self) -> Float[Tensor, "B H T Q"]:
        """Sums of the values weighted by attention."""
        y = _mixed(self.weights, self.values)
        if self.global_values is not None:
            values, count = self.global_values
            y[:, :, :count] = _mixed(self.weights[:, :, :count], values)
        return y


def _mixed(weights: Tensor, values: Tensor) -> Tensor:
    shared = values.shape[1]
    # (B, K, G T, S) @ (B, K, S, Q): the G query heads of a key head form one product
    y: Tensor = weights.to(values.dtype).unflatten(1, (shared, -1)).flatten(2, 3) @ values
    return y.view(*weights.shape[:3], values.shape[3])


@dataclass(frozen=True)
class Routing:
    """Expert choices of a mixture-of-experts layer."""

    path: str
    chosen: Int[Tensor, "N k"]  # indices of each token's experts
    weights: Float[Tensor, "N k"]  # of the chosen experts
    load: Float[Tensor, "E"]  # fraction of all choices that each expert got
    entropy: Float[Tensor, "N"]  # of the router's distribution for each token, in nats

    @property
    def gates(self) -> Float[Tensor, "N E"]:
        """Weight of every expert for each token; 0 for experts that the token did not choose."""
        return torch.zeros(len(self.chosen), len(self.load)).scatter(1, self.chosen.cpu(), self.weights.float().cpu())


class Series(NamedTuple):
    """A quantity of a part at each position of a sequence, (T,)."""

    path: str
    name: str
    values: Float[Tensor, "T"]


class FrozenNorm(NamedTuple):
    """A norm with its statistics held fixed: a linear map plus a constant, in float64."""

    linear: Callable[[Tensor], Tensor]
    constant: Float[Tensor, "D"]


@dataclass(frozen=True)
class Shown:
    """Functions that compute the views of a kind of part (None: the kind does not have this view)."""

    attention: Callable[[PartTrace], AttentionSteps] | None = None
    routing: Callable[[PartTrace], Routing] | None = None
    series: Callable[[PartTrace], Iterable[Series]] | None = None  # along the first sequence, such as gates
    inside: Callable[[PartTrace], Mapping[str, Tensor]] | None = None  # values without a probe, by their diagram names
    frozen: Callable[[Any, Tensor], FrozenNorm] | None = None  # a norm with its statistics fixed at a vector (D,)


def shown_by(part: Part) -> Shown:
    """Return the functions registered for the kind of a part, or those of its module's `shown_means`."""
    shown: Shown | None = provided("inspect", type(part))
    has_means = shown is None and hasattr(provided("module", type(part)), "shown_means")
    return Shown(series=mean_series) if has_means else shown or Shown()


def mean_series(part: PartTrace) -> list[Series]:
    """Return the mean of each of `shown_means` over its features, at each position of the first sequence."""
    values = {name: part.activations[name][0].float() for name in part.module.shown_means}
    return [Series(part.path, f"mean {name}", value.flatten(1).mean(-1)) for name, value in values.items()]
