"""RWKV-7: time mixing with the generalized delta rule."""

import math
from collections.abc import Callable, Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from archetype.nn.chunks import read_chunks, removal_chunk
from archetype.nn.context import ForwardContext, Vectors
from archetype.nn.convolution import MatrixState
from archetype.nn.head_norm import HeadLayerNorm
from archetype.nn.layer_state import LayerState, opened
from archetype.nn.place import Place
from archetype.nn.registry import module_for
from archetype.nn.token_shift import mixed, previous_tokens
from archetype.parts.rwkv7 import spec
from archetype.parts.rwkv7.spec import MIXED
from archetype.weights.linear import Linear
from archetype.weights.low_rank import add_projection

FASTEST = -math.exp(-0.5)  # logarithm of the strongest decay of a step
INNER: Mapping[str, Callable[[Tensor], Tensor]] = {"decay": torch.tanh, "gate": torch.sigmoid}


@module_for(spec.RWKV7)
class RWKV7(nn.Module):
    """o((norm(y) + (r k bonus) v) * gate(x)), computed in at least float32 (Peng 2025, section 4.1)."""

    # rates, gains and shares, which weight decay must not shrink
    parameter_roles: ClassVar = {"bonus": "vector"}
    decay: Tensor
    rate: Tensor
    removed: Tensor
    key_rate: Tensor
    value_share: Tensor
    probes: ClassVar[Mapping[str, str]] = dict.fromkeys(("r", "k", "v", "log_decay", "rate", "removed"), "B T H P")
    shown_means: ClassVar = ("log_decay", "rate")

    def __init__(self, mixer: spec.RWKV7, place: Place) -> None:
        super().__init__()
        self.spec, self.layer, d_model = mixer, place.layer, place.d_model
        self.head_dim = d_model // mixer.num_heads
        self.r, self.k, self.v, self.o = (Linear(d_model, d_model, bias=False) for _ in range(4))
        for name, rank in mixer.ranks.items():
            add_projection(self, name, d_model, d_model, rank)
        for name in mixer.vectors:
            self.register_parameter(name, nn.Parameter(torch.empty(d_model)))
        self.bonus = nn.Parameter(torch.empty(mixer.num_heads, self.head_dim))
        self.norm = HeadLayerNorm(d_model, mixer.eps, bias=True)

    def init_tensor(self, name: str, tensor: Tensor, generator: torch.Generator | None) -> bool:
        # features look back by different shares and forget at different rates; factors start at 1
        if name.startswith("mix_"):
            tensor.uniform_(0.0, 1.0, generator=generator)
        elif name == "decay":
            tensor.uniform_(-6.0, -1.0, generator=generator)
        elif name in ("rate", "value_share", "bonus"):
            tensor.zero_()
        else:
            return False
        return True

    def new_state(self, batch: int, capacity: int, dtype: torch.dtype, device: torch.device) -> MatrixState:
        sizes = (self.k.in_features, 1), (self.spec.num_heads, self.head_dim, self.head_dim)
        return MatrixState(*(torch.zeros(batch, *size, dtype=dtype, device=device) for size in sizes))

    def forward(self, x: Vectors, context: ForwardContext, cache: LayerState | None = None) -> Vectors:
        state, before = opened(self, MatrixState, x, context, cache)
        exact, heads = torch.promote_types(x.dtype, torch.float32), self.spec.num_heads
        previous, conv = previous_tokens(x, context, before.conv)
        inputs = {name: mixed(x, previous, getattr(self, f"mix_{name}"), of_previous=True) for name in MIXED}
        r, k = self.r(inputs["r"]), self.k(inputs["k"])
        v, a = self._values(inputs["v"], context), torch.sigmoid(self.rate + self._low_rank("rate", inputs["rate"]))
        logits = self.decay + self._low_rank("decay", inputs["decay"])
        vectors = (
            r,
            k * (1 + (a - 1) * self.key_rate),
            v,
            FASTEST * torch.sigmoid(logits.to(exact)),
            a,
            k * self.removed,
        )
        r, k, v, w, a, z = (y.to(exact).unflatten(-1, (heads, -1)) for y in vectors)  # (B, T, H, P) each
        if (eps := self.spec.length_eps) == 0.0:
            z = nn.functional.normalize(z, dim=-1)
        else:
            z = z * torch.rsqrt(z.square().sum(-1, keepdim=True) + eps)
        w, k, z = (context.fill_padding(y) for y in (w, k, z))  # nothing decays, is removed or written
        r, k, v, w, a, z = context.probes(self, r=r, k=k, v=v, log_decay=w, rate=a, removed=z)
        # what is removed is read before the decay of this step, which is too weak for the division to matter
        steps = r, k, v, w, z * torch.exp(-w), -a * z
        y, memory = read_chunks(removal_chunk, self.spec.chunk_size, (before.memory.to(exact),), *steps)
        state.keep(conv=conv, memory=memory)
        y = self.norm(y) + ((r * k * self.bonus).sum(-1, keepdim=True) * v).flatten(-2)  # (B, T, D)
        return self.o(y.to(x.dtype) * self._low_rank("gate", inputs["gate"]))

    def _values(self, x: Vectors, context: ForwardContext) -> Vectors:
        v: Tensor = self.v(x)
        source = self.spec.source(context.layer)
        if source is None:
            context.leave(v)
            return v
        share = torch.sigmoid(self.value_share + self._low_rank("value_share", x))
        return torch.lerp(v, context.left_by(source), share.to(v.dtype))

    def _low_rank(self, name: str, x: Vectors) -> Vectors:
        inner = self.get_submodule(f"{name}_down")(x)
        return self.get_submodule(f"{name}_up")(INNER[name](inner) if name in INNER else inner)
