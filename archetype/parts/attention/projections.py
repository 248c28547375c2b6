"""Projections between a model's vectors and its attention heads."""

import math
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from archetype.nn.cache import KeepsKeys
from archetype.nn.context import ForwardContext, Vectors
from archetype.nn.registry import build_norm
from archetype.parts.attention import spec
from archetype.parts.attention.joint import JointConvolution
from archetype.parts.convolutions.module import Convolutions, Convolve, unchanged
from archetype.parts.embedding.module import table
from archetype.parts.gain.module import amplified, build_gain
from archetype.parts.pattern.scores import ScoreFunction
from archetype.weights.linear import Linear

Heads = Float[Tensor, "B H T P"]
ValueHeads = Float[Tensor, "B H T Q"]  # weighted sums of values
ValuesOfKeys = Float[Tensor, "B K T Q"]


class MultiHeadProjection(KeepsKeys, nn.Module):
    """Projections from vectors to heads and back, and the score function."""

    parameter_roles: ClassVar = {"score": "vector"}  # of each head
    initial_values: ClassVar = {"sinks": 0.0}
    # inputs of scores and of o
    probes: ClassVar = {"q": "B H T P", "k": "B K S P", "v": "B K S Q", "heads": "B H T Q", "position_query": "B H T r"}

    def __init__(self, attention: spec.Attention, d_model: int, vocab_size: int = 0) -> None:
        super().__init__()
        self.spec = attention
        self.sizes, self.value_width = attention.sizes(d_model), attention.value_width(d_model)
        queries = self.sizes.num_heads * self.sizes.head_dim
        keys, values = (self.sizes.num_kv_heads * size for size in (self.sizes.head_dim, self.value_width))
        outputs = self.sizes.num_heads * self.value_width
        self.q = Linear(d_model, queries, bias=attention.bias.q)
        has_keys = attention.keys_from is None
        if has_keys:
            self.k = Linear(d_model, keys, bias=attention.bias.k)
            if not attention.keys_as_values:
                self.v = Linear(d_model, values, bias=attention.bias.v)
        self.o = Linear(outputs, d_model, bias=attention.bias.o)
        further = attention.position.query_features  # of each head's query, which only the position reads
        self.position_query = Linear(d_model, self.sizes.num_heads * further, bias=False) if further else None
        self.q_norm = self._norm(queries)
        if has_keys:
            self.k_norm = self._norm(keys)
            self.value_norm = build_norm(attention.value_norm, self.value_width)
        heads = self.sizes.num_heads, self.sizes.head_dim
        self.score = nn.Parameter(torch.empty(heads)) if attention.score == "additive" else None
        self.sinks = nn.Parameter(torch.empty(heads[0])) if attention.sinks else None
        self.gate: nn.Linear | None = None
        if attention.gate is not None:
            self.gate = Linear(d_model, outputs if attention.gate.per == "feature" else heads[0], bias=False)
        has_gate_bias = attention.gate is not None and attention.gate.bias
        self.gate_bias = nn.Parameter(torch.empty(heads[0])) if has_gate_bias else None
        self.query_gain = build_gain(attention.query_gain, queries)
        self.gate_gain = build_gain(attention.gate_gain, 0 if self.gate is None else self.gate.out_features)
        self.heads_norm = build_norm(attention.heads_norm, outputs)
        self.convolutions: Convolutions | None = None
        if attention.convolutions is not None:
            widths = {"input": d_model, "q": queries, "k": keys, "v": values, "output": d_model}
            self.convolutions = Convolutions(attention.convolutions, widths)
        self.joint: JointConvolution | None = None
        if attention.joint_convolution is not None:
            self.joint = JointConvolution(attention.joint_convolution, self.sizes, values)
        self.key_factors = nn.Parameter(torch.empty(self.sizes.num_kv_heads)) if attention.key_factors else None
        self.value_embedding: nn.Module | None = None
        self.value_gate: nn.Linear | None = None
        self.value_scale: nn.Parameter | None = None
        if (value_embedding := attention.value_embedding) is not None:
            self.value_embedding = table(vocab_size, values)
            if value_embedding.gate is None:
                self.value_scale = nn.Parameter(torch.empty(1))
            else:
                self.value_gate = Linear(value_embedding.gate.features or d_model, self.sizes.num_kv_heads, bias=False)

    def _norm(self, features: int) -> nn.Module:
        # over each head, or over all `features` together
        return build_norm(self.spec.qk_norm, self.sizes.head_dim if self.spec.qk_norm_over == "head" else features)

    @property
    def score_function(self) -> ScoreFunction:
        # dropout applies only in training
        scale = self.spec.scale or 1 / math.sqrt(self.sizes.head_dim)
        p = self.spec.dropout if self.training else 0.0
        return ScoreFunction(scale, self.spec.softcap, self.score, p, self.sinks, self.spec.softmax)

    def queries(self, x: Vectors, convolve: Convolve = unchanged) -> Heads:
        return self.split_heads_and_norm(convolve("q", self.q(x)), self.q_norm)

    def keys_and_values(self, x: Float[Tensor, "B S D"], convolve: Convolve = unchanged) -> tuple[Tensor, Tensor]:
        """Project to keys (B, K, S, P) and values (B, K, S, Q)."""
        k = convolve("k", self.k(x))
        v = k if self.spec.keys_as_values else convolve("v", self.v(x))
        return self.normed_keys(k), self.split_values(v)

    def normed_keys(self, k: Float[Tensor, "B S KP"]) -> Float[Tensor, "B K S P"]:
        keys = self.split_heads_and_norm(k, self.k_norm)
        return keys if self.key_factors is None else keys * self.key_factors[:, None, None].to(keys.dtype)

    def split_values(self, x: Float[Tensor, "B S KQ"]) -> Float[Tensor, "B K S Q"]:
        """Return the values of each head: normalized, clipped and scaled."""
        v: Tensor = self.value_norm(x.view(*x.shape[:2], -1, self.value_width).transpose(1, 2))
        bound, scale = self.spec.clip_qkv, self.spec.value_scale
        v = v if bound is None else v.clamp(-bound, bound)
        return v if scale == 1.0 else v * scale

    def add_token_values(self, v: ValuesOfKeys, x: Vectors, context: ForwardContext) -> ValuesOfKeys:
        """Return v + factor * row of the value embedding, for each head; v itself without a table."""
        if self.value_embedding is None:
            return v
        assert context.tokens is not None
        rows = self.value_embedding(context.tokens).to(v.dtype)  # (B, T, K Q)
        embedded = rows.unflatten(-1, (-1, self.value_width))  # (B, T, K, Q)
        return v + self._value_factors(x).to(v.dtype) * embedded.transpose(1, 2)  # (B, K, T, Q)

    def _value_factors(self, x: Vectors) -> Float[Tensor, "B K T 1"] | Float[Tensor, "1"]:
        # one learned number, or a gate per head and position
        if self.value_scale is not None:
            return self.value_scale
        value_embedding = self.spec.value_embedding
        assert self.value_gate is not None and value_embedding is not None and value_embedding.gate is not None
        factors: Tensor = value_embedding.gate.scale * torch.sigmoid(
            self.value_gate(x[..., : self.value_gate.in_features])
        )
        return factors.transpose(1, 2)[..., None]  # (B, K, T, 1)

    def split_heads_and_norm(self, x: Float[Tensor, "B T HP"], norm: nn.Module) -> Heads:
        is_normed, over_all = not self.spec.qk_norm_after_rope, self.spec.qk_norm_over == "all"
        x = norm(x) if is_normed and over_all else x  # one norm over all heads
        y = x.view(*x.shape[:2], -1, self.sizes.head_dim).transpose(1, 2)  # (B, H, T, P)
        y = norm(y) if is_normed and not over_all else y
        bound = self.spec.clip_qkv
        return y if bound is None else y.clamp(-bound, bound)

    def scale_queries(self, q: Heads, positions: Tensor) -> Heads:
        if self.query_gain is not None:
            q = q * self.query_gain.factors().view(-1, 1, q.shape[-1]).to(q.dtype)
        return scaled_by_position(q, positions, self.spec.query_scale)

    def with_position_query(self, q: Heads, x: Vectors, context: ForwardContext) -> Tensor:
        """Append the features that only the position reads to queries, scaled as they are."""
        if self.position_query is None:
            return q
        further = self.position_query(x).unflatten(-1, (self.sizes.num_heads, -1)).transpose(1, 2)
        further = scaled_by_position(further, context.positions, self.spec.query_scale)
        further = context.probe(self, "position_query", further)
        return torch.cat((q, further.to(q.dtype)), dim=-1)  # (B, H, T, P + r)

    def apply_gate(self, y: ValueHeads, x: Vectors) -> ValueHeads:
        if self.gate is None:
            return y
        return gated(y, amplified(self.gate_gain, self.gate(x)), self.spec.gate, self.gate_bias)

    def normalize_heads(self, y: ValueHeads) -> ValueHeads:
        """Normalize the results of all heads together, if there is a norm before `o`."""
        if self.spec.heads_norm.is_absent:
            return y
        heads: Tensor = self.heads_norm(y.transpose(1, 2).flatten(2))  # (B, T, H Q)
        return heads.unflatten(-1, (y.shape[1], -1)).transpose(1, 2)

    def merge_heads(self, y: ValueHeads) -> Vectors:
        return self.o(y.transpose(1, 2).flatten(2))  # (B, T, D) of (B, T, H Q)


def scaled_by_position(q: Heads, positions: Tensor, scale: spec.QueryScale | None) -> Heads:
    """Multiply queries by the factor of their positions, in float32."""
    if scale is None:
        return q
    places = positions + scale.offset
    if scale.form == "log_ratio":
        factors = 1 + scale.beta * torch.log((places.to(torch.float32) / scale.length).clamp(min=1.0))
    elif scale.form == "power":
        factors = torch.exp(scale.beta * torch.log1p(places.to(torch.float32) / scale.length))  # (B, T)
    else:
        factors = 1 + scale.beta * torch.log1p((places // scale.length).to(torch.float32))
    return q * factors[:, None, :, None].to(q.dtype)


def gated(
    y: ValueHeads, logits: Float[Tensor, "B T G"], gate: spec.OutputGate | None, bias: Float[Tensor, " H"] | None = None
) -> ValueHeads:
    """Multiply the heads by activation(logits + bias), where each feature has a logit, or each head."""
    activation = nn.functional.softplus if gate is not None and gate.activation == "softplus" else torch.sigmoid
    # (B, T, H, Q), or (B, T, H, 1) with one gate per head
    of_heads = logits.unflatten(-1, (y.shape[1], -1))
    of_heads = of_heads if bias is None else of_heads + bias[:, None].to(logits.dtype)
    return y * activation(of_heads).transpose(1, 2)
