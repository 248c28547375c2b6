"""mLSTM: a matrix memory with exponential gates and a normalizer."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from archetype.nn.chunks import linear_chunk, read_chunks, stabilized
from archetype.nn.context import ForwardContext, Vectors
from archetype.nn.head_norm import HeadLayerNorm
from archetype.nn.layer_state import LayerState, opened
from archetype.nn.place import Place
from archetype.nn.registry import module_for
from archetype.parts.mlstm import spec
from archetype.weights.linear import Linear

LOG_ZERO = -1e30  # logarithm of the input gate of padding


@dataclass
class MLSTMState(LayerState):
    """Memory of each head with its normalizer as last column, and the logarithm of their common divisor."""

    memory: Float[Tensor, "B H P sums"]
    top: Float[Tensor, "B H"]


class Gate(Linear):
    """Logits of a gate per head; initially they depend only on the bias (Beck 2025, section 3.2)."""

    def __init__(self, d_model: int, heads: int, biases: tuple[float, float]) -> None:
        super().__init__(d_model, heads, bias=True)
        self.biases = biases

    def init_tensor(self, name: str, tensor: Tensor, generator: torch.Generator | None) -> bool:
        first, last = self.biases if name == "bias" else (0.0, 0.0)
        tensor.copy_(
            torch.linspace(first, last, tensor.shape[0], device=tensor.device).view(-1, *[1] * (tensor.dim() - 1))
        )
        return True


def mlstm_chunk(
    eps: float,
    memory: Float[Tensor, "B H P sums"],
    top: Float[Tensor, "B H"],
    q: Float[Tensor, "B T H P"],
    k: Float[Tensor, "B T H P"],
    v: Float[Tensor, "B T H sums"],
    f: Float[Tensor, "B T H"],
    i: Float[Tensor, "B T H"],
    *,
    size: int,
) -> tuple[Float[Tensor, "B T H Q"], Float[Tensor, "B H P sums"], Float[Tensor, "B H"]]:
    """Read chunks. f and i are logarithms of the gates, and the last feature of v is 1."""
    a, write, m = stabilized(top, f, i)
    y, memory = linear_chunk(memory, q, write.exp()[..., None] * k, v, a, size=size)
    sums, count = y[..., :-1], y[..., -1:]
    return sums / (torch.maximum(count.abs(), (-m).exp()[..., None]) + eps), memory, m[:, -1]


@module_for(spec.MLSTM)
class MLSTM(nn.Module):
    """o(norm(h) * sigmoid(gate(x))) of the recurrence's h, computed in at least float32 (Beck 2025, section 3)."""

    probes: ClassVar[Mapping[str, str]] = {
        "q": "B T H P", "k": "B T H P", "v": "B T H Q", "log_forget": "B T H", "log_input": "B T H"
    }  # fmt: skip
    shown_means: ClassVar = ("log_forget", "log_input")

    def __init__(self, mixer: spec.MLSTM, place: Place) -> None:
        super().__init__()
        self.spec, self.layer, d_model, heads = mixer, place.layer, place.d_model, mixer.num_heads
        self.sizes = mixer.key_size(d_model), mixer.value_size(d_model)  # P, Q
        keys, values = (heads * size for size in self.sizes)
        self.q, self.k = (Linear(d_model, keys, bias=mixer.bias) for _ in range(2))
        self.v, self.gate = (Linear(d_model, values, bias=mixer.bias) for _ in range(2))
        self.input_gate, self.forget_gate = Gate(d_model, heads, (-10.0, -10.0)), Gate(d_model, heads, (3.0, 6.0))
        self.norm = HeadLayerNorm(values, mixer.norm_eps, mixer.bias)
        self.o = Linear(values, d_model, bias=mixer.bias)

    def new_state(self, batch: int, capacity: int, dtype: torch.dtype, device: torch.device) -> MLSTMState:
        heads, (key_size, value_size) = self.spec.num_heads, self.sizes
        memory = torch.zeros(batch, heads, key_size, value_size + 1, dtype=dtype, device=device)
        return MLSTMState(memory, torch.zeros(batch, heads, dtype=dtype, device=device))

    def forward(self, x: Vectors, context: ForwardContext, cache: LayerState | None = None) -> Vectors:
        state, before = opened(self, MLSTMState, x, context, cache)
        exact, heads = torch.promote_types(x.dtype, torch.float32), self.spec.num_heads
        q, k, v = (project(x).to(exact).unflatten(-1, (heads, -1)) for project in (self.q, self.k, self.v))
        i, f = (self._logits(gate, x, exact) for gate in (self.input_gate, self.forget_gate))  # (B, T, H)
        f = nn.functional.logsigmoid(f)
        i, f = context.fill_padding(i, LOG_ZERO), context.fill_padding(f)  # nothing is forgotten or written
        q, k, v, f, i = context.probes(self, q=q, k=k, v=v, log_forget=f, log_input=i)
        states = before.memory.to(exact), before.top.to(exact)
        # a value of 1 sums the keys: the normalizer
        inputs = q * self.sizes[0] ** -0.5, k, nn.functional.pad(v, (0, 1), value=1.0), f, i
        y, memory, top = read_chunks(partial(mlstm_chunk, self.spec.eps), self.spec.chunk_size, states, *inputs)
        state.keep(memory=memory, top=top)
        return self.o(self.norm(y).to(x.dtype) * torch.sigmoid(self.gate(x)))

    def _logits(self, gate: nn.Module, x: Vectors, exact: torch.dtype) -> Float[Tensor, "B T H"]:
        logits: Tensor = gate(x).to(exact)
        cap = self.spec.gate_softcap
        return logits if cap is None else cap * torch.tanh(logits / cap)
