"""Routers: a logit for each expert, and affinities of all of them; by a hash, also which experts a token has."""

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
    """A projection of a token's vector to the logits of all experts."""

    parameter_roles: ClassVar = {"weight": "hidden"}

    def forward(self, x: Float[Tensor, "N D"], context: ForwardContext | None = None) -> Float[Tensor, "N E"]:
        """In float32 at least: rounding the logits of near experts would choose another one."""
        dtype = torch.promote_types(x.dtype, torch.float32)
        with torch.autocast(x.device.type, enabled=False):
            bias = None if self.bias is None else self.bias.to(dtype)
            return nn.functional.linear(x.to(dtype), self.weight.to(dtype), bias)


class LinearRouter(Projection):
    """Logits by a projection (Shazeer 2017).

    Args:
        router: the specification.
        num_experts: E.
        place: of the mixture.
    """

    def __init__(self, router: spec.LinearRouter, num_experts: int, place: Place) -> None:
        super().__init__(place.d_model, num_experts, bias=router.bias)

    def affinities(self, logits: Float[Tensor, "N E"]) -> Float[Tensor, "N E"]:
        """How close each token is to each expert."""
        raise NotImplementedError


@module_for(spec.SoftmaxRouter)
class SoftmaxRouter(LinearRouter):
    """Experts share a token's affinity (Shazeer 2017)."""

    def affinities(self, logits: Float[Tensor, "N E"]) -> Float[Tensor, "N E"]:
        """The softmax over all experts."""
        return logits.softmax(-1)


@module_for(spec.SigmoidRouter)
class SigmoidRouter(LinearRouter):
    """Each expert has an affinity of its own (DeepSeek-AI 2024b, equation 15)."""

    def affinities(self, logits: Float[Tensor, "N E"]) -> Float[Tensor, "N E"]:
        """The sigmoid of each logit."""
        return logits.sigmoid()


def softmax(logits: Float[Tensor, "N E"]) -> Float[Tensor, "N E"]:
    """The softmax over all experts."""
    return logits.softmax(-1)


def sqrt_softplus(logits: Float[Tensor, "N E"]) -> Float[Tensor, "N E"]:
    """sqrt(softplus(x))."""
    return nn.functional.softplus(logits).sqrt()


# by name, as a module that keeps one is pickled with it
AFFINITIES: Mapping[str, Callable[[Tensor], Tensor]] = {
    "equal": torch.ones_like,
    "softmax": softmax,
    "sigmoid": torch.sigmoid,
    "sqrt_softplus": sqrt_softplus,
}


@module_for(spec.HashRouter)
class HashRouter(nn.Module):
    """A token's experts are those of its id in a table (Roller 2021); a projection may weigh them (DeepSeek-V4).

    Args:
        router: the specification.
        num_experts: E.
        place: of the mixture, with the ids that there are and the experts that a token has.
    """

    table: Int[Tensor, "V k"]

    def __init__(self, router: spec.HashRouter, num_experts: int, place: Place) -> None:
        super().__init__()
        self.num_experts, self.affinity = num_experts, AFFINITIES[router.affinity]
        self.projection = None if router.affinity == "equal" else Projection(place.d_model, num_experts, bias=False)
        self.register_buffer("table", torch.empty(place.vocab_size, place.experts_per_token, dtype=torch.long))

    def init_tensor(self, name: str, tensor: Tensor, generator: torch.Generator | None) -> bool:
        """Draw different experts for each id, every choice as likely as any other."""
        numbers = torch.empty(len(tensor), self.num_experts, device=tensor.device)
        tensor.copy_(numbers.uniform_(generator=generator).argsort(-1)[:, : tensor.shape[1]])
        return True

    def _load_from_state_dict(self, state_dict: Mapping[str, Tensor], prefix: str, *args: Any) -> None:
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
        return x.new_zeros(len(x), self.num_experts, dtype=torch.promote_types(x.dtype, torch.float32))

    def affinities(self, logits: Float[Tensor, "N E"]) -> Float[Tensor, "N E"]:
        """How the experts of a token would be weighed."""
        return self.affinity(logits)

    def experts_of(self, context: ForwardContext) -> Int[Tensor, "N k"]:
        """The experts of all tokens, the rows of a batch one after the other."""
        assert context.tokens is not None
        return nn.functional.embedding(context.tokens.flatten(), self.table)
