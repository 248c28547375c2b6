"""An extension file: a mixer with a matrix of decaying keys and values as its state, registered from outside."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

import archetype
from archetype import spec
from archetype.extend import ForwardContext, LayerState, Place, Size, invalid


class GatedLinearAttention(spec.Mixer):
    """S_t = diag(a_t) S_(t-1) + k_t v_t^T, o_t = S_t^T q_t (Yang 2023)."""

    kind: Literal["gated_linear_attention"] = "gated_linear_attention"
    num_heads: Size

    def check(self, width: int, causal: bool) -> None:
        if width % self.num_heads:
            invalid("num_heads", f"{self.num_heads} does not divide d_model {width}", "use a divisor")


@dataclass
class MatrixState(LayerState):
    """S."""

    matrix: Tensor  # (B, H, P, P)


class Module(nn.Module):
    """Position by position."""

    def __init__(self, mixer: GatedLinearAttention, place: Place) -> None:
        super().__init__()
        d_model = place.d_model
        self.heads = mixer.num_heads
        for name in ("q", "k", "v", "gate", "decay", "o"):
            setattr(self, name, nn.Linear(d_model, d_model, bias=False))

    def new_state(self, batch: int, capacity: int, dtype: torch.dtype, device: torch.device) -> MatrixState:
        p = self.q.in_features // self.heads
        return MatrixState(torch.zeros(batch, self.heads, p, p, dtype=dtype, device=device))

    def forward(self, x: Tensor, context: ForwardContext, cache: MatrixState | None = None) -> Tensor:
        state = cache if cache is not None else self.new_state(x.shape[0], 0, x.dtype, x.device)
        q, k, v, a = (p(x).unflatten(-1, (self.heads, -1)) for p in (self.q, self.k, self.v, self.decay))
        a = torch.sigmoid(a) ** (1 / 16)
        if context.valid is not None:
            keep = context.valid[:, :, None, None]
            a, k = a.masked_fill(~keep, 1.0), k.masked_fill(~keep, 0.0)
        matrix, outputs = state.matrix.to(x.dtype), []
        for t in range(x.shape[1]):
            matrix = a[:, t, :, :, None] * matrix + k[:, t, :, :, None] * v[:, t, :, None, :]
            outputs.append((q[:, t, :, None] @ matrix).squeeze(2))
        state.matrix = matrix.to(state.matrix.dtype)
        y = torch.stack(outputs, 1).flatten(2)
        return self.o(y * nn.functional.silu(self.gate(x)))


archetype.register(GatedLinearAttention, module=Module)
