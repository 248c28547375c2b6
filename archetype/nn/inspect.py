"""What a part shows of its inside in a recorded pass, beside inputs, outputs, probes and states, which every part has.

A part's folder has a file `inspect.py`, which is given the part's own activations, answers in one of the forms below,
and is registered by `provides("inspect", KIND)(Shown(...))`. Views draw these forms, and know no kind of part.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from archetype.nn.cache import LayerState
from archetype.nn.context import ForwardContext
from archetype.spec.kinds import Part
from archetype.spec.registry import provided


@dataclass(frozen=True)
class PartTrace:
    """One part of a model in a recorded pass.

    Attributes:
        path: of its module; empty for the whole model.
        module: that computed it.
        activations: by name below the part: "in", "out", and its probes.
        context: with which it was called; None where it takes none.
        state: with which it was called, as it was before; None without one.
    """

    path: str
    module: Any
    activations: Mapping[str, Tensor]
    context: ForwardContext | None
    state: LayerState | None


@dataclass
class AttentionSteps:
    """The tensors of attention between queries and values, for all heads.

    Attributes:
        scores: of queries and keys, scaled and perhaps capped.
        masked: with position biases, and minus infinity where a pair is not allowed.
        weights: after the softmax; with sinks a query's sum is below 1.
        values: of each head.
        global_values: of queries that see all by projections of their own, and how many these are.
    """

    scores: Float[Tensor, "B H T S"]
    masked: Float[Tensor, "B H T S"]
    weights: Float[Tensor, "B H T S"]
    values: Float[Tensor, "B K S Q"]
    global_values: tuple[Float[Tensor, "B K S Q"], int] | None = None

    @property
    def mixed(self) -> Float[Tensor, "B H T Q"]:
        """The weights times the values."""
        y = _mixed(self.weights, self.values)
        if self.global_values is not None:
            values, count = self.global_values
            y[:, :, :count] = _mixed(self.weights[:, :, :count], values)
        return y


def _mixed(weights: Tensor, values: Tensor) -> Tensor:
    shared = values.shape[1]
    y: Tensor = weights.to(values.dtype).unflatten(1, (shared, -1)).flatten(2, 3) @ values
    return y.view(*weights.shape[:3], values.shape[3])


@dataclass(frozen=True)
class Routing:
    """Where a mixture of experts sends its tokens.

    Attributes:
        path: of the mixture.
        chosen: the experts of each token.
        weights: of these.
        load: the share of all choices that fell on each expert.
        entropy: of the router's softmax or normalized sigmoids, by token, in nats.
    """

    path: str
    chosen: Int[Tensor, "N k"]
    weights: Float[Tensor, "N k"]
    load: Float[Tensor, "E"]
    entropy: Float[Tensor, "N"]

    @property
    def gates(self) -> Float[Tensor, "N E"]:
        """The weight of every expert, zero where it is not chosen."""
        return torch.zeros(len(self.chosen), len(self.load)).scatter(1, self.chosen.cpu(), self.weights.float().cpu())


class Series(NamedTuple):
    """Numbers of a part along the text: of each position (T,)."""

    path: str
    name: str
    values: Float[Tensor, "T"]


class FrozenNorm(NamedTuple):
    """A norm whose statistics stay as they are: a linear map, and what is added to its result. In float64."""

    linear: Callable[[Tensor], Tensor]
    constant: Float[Tensor, "D"]


@dataclass(frozen=True)
class Shown:
    """What a kind of part shows of a recorded pass; None for what it has not.

    Attributes:
        attention: of its heads.
        routing: of its tokens to experts.
        series: of the first row: gates, steps, contexts.
        inside: values that no probe has, by the names that the diagram gives them: (B, T, ...).
        frozen: a norm's module, with its statistics at a vector (D,).
    """

    attention: Callable[[PartTrace], AttentionSteps] | None = None
    routing: Callable[[PartTrace], Routing] | None = None
    series: Callable[[PartTrace], Iterable[Series]] | None = None
    inside: Callable[[PartTrace], Mapping[str, Tensor]] | None = None
    frozen: Callable[[Any, Tensor], FrozenNorm] | None = None


def shown_by(part: Part) -> Shown:
    """Return what a part shows."""
    shown: Shown = provided("inspect", type(part)) or Shown()
    return shown


def mean_series(part: PartTrace, *probes: str) -> list[Series]:
    """The mean of some probes over their features, at each position of the first row."""
    return [Series(part.path, f"mean {name}", part.activations[name][0].float().flatten(1).mean(-1)) for name in probes]
