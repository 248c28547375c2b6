"""Linear attention: attention without softmax, whose memory of constant size may decay."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from archetype.nn.chunks import linear_chunk, read_chunks
from archetype.nn.context import ForwardContext, Vectors
from archetype.nn.convolution import CausalConvolution, MatrixState
from archetype.nn.layer_state import LayerState, opened
from archetype.nn.place import Place
from archetype.nn.registry import build_norm, module_for
from archetype.parts.linear_attention import spec
from archetype.parts.position.module import Rotary
from archetype.roles.position import AttentionSizes
from archetype.weights.linear import Linear
from archetype.weights.low_rank import add_projection, projected

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda x: x,
    "silu": nn.functional.silu,
    "relu": nn.functional.relu,
    "elu": lambda x: 1.0 + nn.functional.elu(x),
    "sigmoid": torch.sigmoid,
}


@dataclass
class MemoryState(LayerState):
    """The state matrix of each head."""

    memory: Float[Tensor, "B H P Q"]


@module_for(spec.LinearAttention)
class LinearAttention(nn.Module):
    """o(norm(S^T q) * gate(x)), S the decayed sum of k v^T (Katharopoulos 2020), computed in at least float32.

    Projections of low rank are a_up(a_down(x)) and gate_up(gate_down(x)).
    """

    probes: ClassVar = {"q": "B T H P", "k": "B T H P", "v": "B T H Q", "log_decay": "b T H *dims"}
    shown_means: ClassVar = ("log_decay",)

    def __init__(self, mixer: spec.LinearAttention, place: Place) -> None:
        super().__init__()
        self.spec, self.layer, d_model, heads = mixer, place.layer, place.d_model, mixer.num_heads
        self.sizes = mixer.key_size(d_model), mixer.value_size(d_model)  # P, Q
        self.widths = mixer.widths(d_model)
        values = self.widths["v"]
        for name, width in self.widths.items():
            add_projection(self, name, d_model, width)
        self.fixed = [0.0] * heads  # logarithms of decays that do not depend on the token
        match mixer.decay:
            case spec.FixedDecay() as decay:
                self.fixed = [-rate for rate in decay.rates(heads)]
            case spec.HeadDecay(bias=bias):
                add_projection(self, "a", d_model, heads, bias=bias)
            case spec.ChannelDecay(rank=rank, bias=bias):
                add_projection(self, "a", d_model, heads * self.sizes[0], rank, bias)
        if mixer.gate != "none":
            add_projection(self, "gate", d_model, values, mixer.gate_rank)
        self.conv = None
        if mixer.conv_kernel is not None:
            self.conv = CausalConvolution(sum(self.widths.values()), mixer.conv_kernel, bias=False)
        if not mixer.qk_norm.is_absent:
            self.q_norm, self.k_norm = (build_norm(mixer.qk_norm, self.sizes[0]) for _ in range(2))
        self.rotary = None
        if not mixer.position.is_absent:
            turned = getattr(mixer.position, "dim", None) or self.sizes[0]
            self.rotary = Rotary(mixer.position, AttentionSizes(heads, heads, self.sizes[0], turned))  # type: ignore[arg-type]
        self.norm = build_norm(mixer.norm, self.sizes[1] if mixer.norm_over == "head" else values)
        self.o = Linear(values, d_model, bias=False)

    def new_state(self, batch: int, capacity: int, dtype: torch.dtype, device: torch.device) -> LayerState:
        memory = torch.zeros(batch, self.spec.num_heads, *self.sizes, dtype=dtype, device=device)
        if self.conv is None:
            return MemoryState(memory)
        return MatrixState(self.conv.new_state(batch, dtype, device), memory)

    def forward(self, x: Vectors, context: ForwardContext, cache: LayerState | None = None) -> Vectors:
        kind: type[MemoryState] | type[MatrixState] = MemoryState if self.conv is None else MatrixState
        state, before = opened(self, kind, x, context, cache)
        mixer, exact, heads = self.spec, torch.promote_types(x.dtype, torch.float32), (self.spec.num_heads, -1)
        inputs = [projected(self, name, x) for name in self.widths]  # (B, T, H P or H Q) each
        if self.conv is not None:
            assert isinstance(before, MatrixState)
            u, conv = self.conv.convolve(torch.cat(inputs, dim=-1), context, before.conv)
            state.keep(conv=conv)
            inputs = list(u.split([*self.widths.values()], dim=-1))
        parts = dict(zip(self.widths, (part.to(exact).unflatten(-1, heads) for part in inputs), strict=True))
        a = self._log_decay(x, exact)  # (b, T, H) or (B, T, H, P)
        feature_map, scale = ACTIVATIONS[mixer.feature_map], mixer.scale or self.sizes[0] ** -0.5
        q = self._prepared("q", feature_map(parts["q"]), context)
        q = q if scale == 1.0 else q * scale
        # keys from the decay are 1 - exp(a), without cancellation
        k = self._prepared("k", feature_map(parts["k"]) if "k" in parts else -torch.expm1(a), context)
        v = ACTIVATIONS[mixer.value_activation](parts["v"])
        k, a = context.fill_padding(k), context.fill_padding(a)  # no decay, and nothing is written
        q, k, v, a = context.probes(self, q=q, k=k, v=v, log_decay=a)
        y, memory = read_chunks(linear_chunk, mixer.chunk_size, (before.memory.to(exact),), q, k, v, a)  # (B, T, H, Q)
        state.keep(memory=memory)
        y = self.norm(y.to(x.dtype) if mixer.norm_over == "head" else y.to(x.dtype).flatten(-2), context)
        y = y.flatten(-2) if mixer.norm_over == "head" else y
        if mixer.gate != "none":
            y = y * ACTIVATIONS[mixer.gate](projected(self, "gate", x))
        return self.o(y)

    def _prepared(self, name: str, x: Float[Tensor, "B T H P"], context: ForwardContext) -> Float[Tensor, "B T H P"]:
        # queries or keys
        if not self.spec.qk_norm.is_absent:
            x = self.get_submodule(f"{name}_norm")(x, context).to(x.dtype)
        if self.rotary is not None:
            x = self.rotary(x.transpose(1, 2), context.positions, context).transpose(1, 2)
        return x

    def _log_decay(self, x: Vectors, exact: torch.dtype) -> Float[Tensor, "b T H *dims"]:
        heads, decay = self.spec.num_heads, self.spec.decay
        match decay:
            case spec.HeadDecay():
                return nn.functional.logsigmoid(projected(self, "a", x).to(exact)) / decay.temperature
            case spec.ChannelDecay():
                logits = projected(self, "a", x).to(exact).unflatten(-1, (heads, -1))
                a = nn.functional.logsigmoid(logits) / decay.temperature
                return a if decay.floor == 0.0 else torch.log(decay.floor + (1.0 - decay.floor) * a.exp())
        fixed = torch.tensor(self.fixed, dtype=exact, device=x.device)
        return fixed.expand(1, x.shape[1], heads)  # of all sequences alike
