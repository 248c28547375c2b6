"""Routers: logits and affinities of all experts. A hash router also selects the experts."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from archetype.errors import CheckpointError
from archetype.nn.context import ForwardContext
from archetype.nn.place import Place
from archetype.nn.registry import module_for
from archetype.parts.router import spec
from archetype.weights.linear import WithMatrix


class Projection(WithMatrix):
    """Projection of token vectors to the logits of all experts."""

    parameter_roles: ClassVar = {"weight": "hidden"}

    def forward(self, x: Float[Tensor, "N D"], context: ForwardContext | None = None) -> Float[Tensor, "N E"]:
        # at least float32: rounding could change which expert is selected
        dtype = torch.promote_types(x.dtype, torch.float32)
        with torch.autocast(x.device.type, enabled=False):
            bias = None if self.bias is None else self.bias.to(dtype)
            return nn.functional.linear(x.to(dtype), self.weight.to(dtype), bias)


class LinearRouter(Projection):
    """Router whose logits are a projection of the token vector (Shazeer 2017)."""

    def __init__(self, router: spec.LinearRouter, num_experts: int, place: Place) -> None:
        super().__init__(place.d_model, num_experts, bias=router.bias)

    def affinities(self, logits: Float[Tensor, "N E"]) -> Float[Tensor, "N E"]:
        """Return the affinity of each token to each expert."""
        raise NotImplementedError


@module_for(spec.SoftmaxRouter)
class SoftmaxRouter(LinearRouter):
    """Router whose affinities sum to 1 over the experts (Shazeer 2017)."""

    def affinities(self, logits: Float[Tensor, "N E"]) -> Float[Tensor, "N E"]:
        return logits.softmax(-1)


@module_for(spec.SigmoidRouter)
class SigmoidRouter(LinearRouter):
    """Router with an independent affinity for each expert (DeepSeek-AI 2024b, equation 15)."""

    def affinities(self, logits: Float[Tensor, "N E"]) -> Float[Tensor, "N E"]:
        return logits.sigmoid()


def softmax(logits: Float[Tensor, "N E"]) -> Float[Tensor, "N E"]:
    return logits.softmax(-1)


def sqrt_softplus(logits: Float[Tensor, "N E"]) -> Float[Tensor, "N E"]:
    return nn.functional.softplus(logits).sqrt()


# functions by name, since a module that holds one is pickled with it
AFFINITIES: Mapping[str, Callable[[Tensor], Tensor]] = {
    "equal": torch.ones_like,
    "softmax": softmax,
    "sigmoid": torch.sigmoid,
    "sqrt_softplus": sqrt_softplus,
}


@module_for(spec.HashRouter)
class HashRouter(nn.Module):
    """Router that selects experts by token id (Roller 2021), optionally weighted by a projection (DeepSeek-V4).

    Args:
        place: place in the model, with its vocabulary size and the number of experts per token.
    """

    constant_buffers: ClassVar = ("table",)
    table: Int[Tensor, "V k"]

    def __init__(self, router: spec.HashRouter, num_experts: int, place: Place) -> None:
        super().__init__()
        self.num_experts, self.affinity = num_experts, AFFINITIES[router.affinity]
        self.projection = None if router.affinity == "equal" else Projection(place.d_model, num_experts, bias=False)
        self.register_buffer("table", torch.empty(place.vocab_size, place.experts_per_token, dtype=torch.long))

    def init_tensor(self, name: str, tensor: Tensor, generator: torch.Generator | None) -> bool:
        # distinct experts, all choices equally likely
        keys = torch.empty(len(tensor), self.num_experts, device=tensor.device)  # (V, E); a random order per id
        tensor.copy_(keys.uniform_(generator=generator).argsort(-1)[:, : tensor.shape[1]])  # the first k of each order
        return True

    def _load_from_state_dict(self, state_dict: Mapping[str, Tensor], prefix: str, *args: Any) -> None:
        # an index beyond the experts would read or write memory that is not theirs
        table = state_dict.get(f"{prefix}table")
        if table is not None and not table.is_meta and table.numel():
            first, last = map(int, table.aminmax())
            if first < 0 or last >= self.num_experts:
                cause = f"names expert {first if first < 0 else last} of {self.num_experts}"
                raise CheckpointError(f"{prefix}table", cause, "download or train the model again")
        super()._load_from_state_dict(state_dict, prefix, *args)

    def forward(self, x: Float[Tensor, "N D"], context: ForwardContext) -> Float[Tensor, "N E"]:
        if self.projection is not None:
            y: Tensor = self.projection(x)
            return y
        # equal affinities depend on no logits, but callers expect their shape
        return x.new_zeros(len(x), self.num_experts, dtype=torch.promote_types(x.dtype, torch.float32))

    def affinities(self, logits: Float[Tensor, "N E"]) -> Float[Tensor, "N E"]:
        return self.affinity(logits)

    def experts_of(self, context: ForwardContext) -> Int[Tensor, "N k"]:
        """Return the experts of all tokens, with the rows of a batch concatenated."""
        assert context.tokens is not None
        return nn.functional.embedding(context.tokens.flatten(), self.table)
