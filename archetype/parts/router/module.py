"""Routers: logits and affinities of all experts. A hash router also selects the experts."""

import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from archetype.errors import CheckpointError
from archetype.nn.autocast import without_autocast
from archetype.nn.context import ForwardContext
from archetype.nn.place import Place
from archetype.nn.registry import build_norm, module_for
from archetype.parts.router import spec
from archetype.weights.linear import WithMatrix

KEPT_WHOLE = 0.75  # share of the weights of drawn experts, if these are not the best, that are divided


class Projection(WithMatrix):
    """Projection of token vectors to the logits of all experts."""

    parameter_roles: ClassVar = {"weight": "hidden"}

    def forward(self, x: Float[Tensor, "N D"], context: ForwardContext | None = None) -> Float[Tensor, "N E"]:
        # at least float32: rounding could change which expert is selected
        dtype = torch.promote_types(x.dtype, torch.float32)
        with without_autocast(x):
            bias = None if self.bias is None else self.bias.to(dtype)
            return nn.functional.linear(x.to(dtype), self.weight.to(dtype), bias)


class LinearRouter(Projection):
    """Router whose logits are a projection of the token vector (Shazeer 2017)."""

    def __init__(self, router: spec.LinearRouter, num_experts: int, place: Place) -> None:
        super().__init__(place.d_model, num_experts, bias=router.bias)
        self.norm = build_norm(router.norm, place.d_model)
        self.scaled, self.softcap = router.scaled, router.softcap

    def forward(self, x: Float[Tensor, "N D"], context: ForwardContext | None = None) -> Float[Tensor, "N E"]:
        with without_autocast(x):
            x = self.norm(x, context)
        logits = super().forward(x * x.shape[-1] ** -0.5 if self.scaled else x)
        return logits if self.softcap is None else self.softcap * torch.tanh(logits / self.softcap)

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


@module_for(spec.SqrtSoftplusRouter)
class SqrtSoftplusRouter(LinearRouter):
    """Router whose affinities grow with the root of large logits (DeepSeek-V4)."""

    def affinities(self, logits: Float[Tensor, "N E"]) -> Float[Tensor, "N E"]:
        return sqrt_softplus(logits)


@module_for(spec.SparseMixerRouter)
class SparseMixerRouter(SoftmaxRouter):
    """Router that draws experts in training, with an estimate of the choice's gradient (Liu 2024)."""

    def __init__(self, router: spec.SparseMixerRouter, num_experts: int, place: Place) -> None:
        super().__init__(router, num_experts, place)
        self.jitter = router.jitter

    def choose(self, logits: Float[Tensor, "N E"], count: int) -> tuple[Float[Tensor, "N k"], Int[Tensor, "N k"]]:
        """Return the weights and indices of `count` experts of each token."""
        left, values, weights, chosen = logits, logits.detach(), [], []
        for _ in range(count):
            best = left.detach().max(-1, keepdim=True).values  # (N, 1)
            # logits far below the best one do not compete
            far = (best - values) / values.abs().clamp(min=best) > 2 * self.jitter
            shares = left.masked_fill(far, -math.inf).softmax(-1)  # (N, E)
            index = shares.argmax(-1, keepdim=True)
            if self.training:
                drawn = shares.detach().multinomial(1)
                whole = (drawn == index) | (torch.rand_like(best) > KEPT_WHOLE)
                weight = shares.gather(-1, drawn)
                # the estimate scales the value, not the gradient
                weights.append(weight + (weight * torch.where(whole, 0.0, -2 / 3)).detach())
                index = drawn
            else:
                weights.append(shares.gather(-1, index))
            chosen.append(index)
            left = left.scatter(-1, index, -math.inf)
        return torch.cat(weights, -1), torch.cat(chosen, -1)


@module_for(spec.ExpertChoiceRouter)
class ExpertChoiceRouter(SoftmaxRouter):
    """Router whose experts select tokens (Zhou 2022, section 3.2)."""

    def tokens_of(
        self, affinities: Float[Tensor, "B T E"], count: int, valid: Bool[Tensor, "B T"] | None
    ) -> Bool[Tensor, "B T E"]:
        """Return which tokens each expert selects: in every text those with the largest affinities, `count` T / E."""
        num_tokens: Tensor | int = affinities.shape[1]
        if valid is not None:
            affinities = affinities.masked_fill(~valid[..., None], -1.0)  # behind all tokens of the text
            num_tokens = valid.sum(1)[:, None, None]  # (B, 1, 1)
        capacity = -(-count * num_tokens // affinities.shape[2])
        ranks = affinities.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
        return ranks < capacity


@module_for(spec.MLPRouter)
class MLPRouter(nn.Module):
    """Router with a narrow network, whose input the next layer's router may read."""

    def __init__(self, router: spec.MLPRouter, num_experts: int, place: Place) -> None:
        super().__init__()
        width = router.width
        self.down = nn.Linear(place.d_model, width)
        self.carry = nn.Parameter(torch.empty(width)) if router.carried else None
        self.norm = build_norm(router.norm, width)
        self.fc1, self.fc2 = nn.Linear(width, width), nn.Linear(width, width)
        self.out = nn.Linear(width, num_experts, bias=False)

    def forward(self, x: Float[Tensor, "N D"], context: ForwardContext) -> Float[Tensor, "N E"]:
        with without_autocast(x):
            h = self.down(x.to(self.down.weight.dtype))  # (N, R)
            if self.carry is not None:
                h = h + context.routing[context.layer - 1] * self.carry
            context.routing[context.layer] = h
            hidden = nn.functional.gelu(self.fc1(self.norm(h, context)))
            logits: Tensor = self.out(nn.functional.gelu(self.fc2(hidden)))
        return logits.to(torch.promote_types(logits.dtype, torch.float32))

    def affinities(self, logits: Float[Tensor, "N E"]) -> Float[Tensor, "N E"]:
        return logits.softmax(-1)


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
            return self.projection(x)
        # equal affinities depend on no logits, but callers expect their shape
        return x.new_zeros(x.shape[0], self.num_experts, dtype=torch.promote_types(x.dtype, torch.float32))

    def affinities(self, logits: Float[Tensor, "N E"]) -> Float[Tensor, "N E"]:
        return self.affinity(logits)

    def experts_of(self, context: ForwardContext) -> Int[Tensor, "N k"]:
        """Return the experts of all tokens, with the rows of a batch concatenated."""
        assert context.tokens is not None
        return nn.functional.embedding(context.tokens.flatten(), self.table)
