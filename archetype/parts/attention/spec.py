"""Specification of attention and its options."""

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import model_validator

from archetype.errors import SpecError, enumeration
from archetype.parts.attention.options import (
    AttentionConvolutions,
    Biases,
    Differential,
    JointConvolution,
    OutputGate,
    ProjectionBiases,
    QueryScale,
    ValueEmbedding,
    ValueGate,
)
from archetype.parts.gain.spec import Gain
from archetype.parts.norm.spec import NoNorm
from archetype.parts.pattern.spec import BigBird, Full, GlobalWindow
from archetype.parts.position.spec import Alibi, NoPosition, RelativeBias, Rotary
from archetype.roles.mixer import AttentionCall, Mixer
from archetype.roles.norm import VectorNorm
from archetype.roles.parallel import NeedsWholeRows
from archetype.roles.pattern import AnyPattern, pattern_rule
from archetype.roles.position import AnyMixerPosition, AttentionSizes
from archetype.roles.selection import AnyKeySelection
from archetype.spec.base import Flag, LayerIndex, Positive, Probability
from archetype.spec.errors import inside, invalid, refuse_set
from archetype.spec.kinds import part
from archetype.spec.sizes import Heads, HeadWidth, ScoreScale

__all__ = [
    "Attention",
    "AttentionConvolutions",
    "Differential",
    "JointConvolution",
    "OutputGate",
    "ProjectionBiases",
    "QueryScale",
    "ValueEmbedding",
    "ValueGate",
]


Softmax = Literal["standard", "off_by_one", "softpick"]
# Vectors of differential attention, of which lambda is made.
LAMBDAS = ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2")

# Fields that must equal those of the layer whose keys are read: otherwise keys have other positions or features.
OF_KEYS = (
    "num_heads",
    "num_kv_heads",
    "head_dim",
    "score",
    "qk_norm",
    "qk_norm_over",
    "qk_norm_after_rope",
    "position",
    "pattern",
    "v_head_dim",
    "keys_as_values",
    "value_norm",
    "value_scale",
)


@part
class Attention(Mixer):
    """softmax(scale * q k^T) v over the pairs of `pattern`, then a projection; K key/value heads serve H query heads.

    K = H is multi-head attention (Vaswani 2017), K = 1 multi-query attention (Shazeer 2019), and 1 < K < H
    grouped-query attention (Ainslie 2023): query head h reads key/value head floor(h K / H).  `softcap` limits a score
    s to c tanh(s / c) (Gemma 2). `qk_norm` normalizes queries and keys before the rotary embedding, or after it with
    `qk_norm_after_rope` (Hunyuan), for each head or over all heads together (Henry 2020; OLMo 2). `clip_qkv` clamps
    queries, keys and values to -c ... c (MPT). An `additive` score is w^T tanh(q + k) (Bahdanau 2014). With `sinks`,
    each head has a learned logit that takes part in the softmax but has no value (gpt-oss). `softmax` replaces the
    softmax by exp(s) / (1 + sum exp(s)) with `off_by_one` (Miller 2023), or by max(exp(s) - 1, 0) / sum |exp(s) - 1|
    with `softpick` (Zuhri 2025), so the weights of a query may sum to less than 1. `query_scale` scales queries with
    their position. Values may have a different width than keys (`v_head_dim`), a constant factor (`value_scale`,
    MiMo-V2) and a norm per head (`value_norm`). With `keys_as_values`, values have no projection and equal the
    projected keys before norm and rotation (Gemma 4). `heads_norm` normalizes all heads' outputs together, before the
    output projection (BitNet b1.58). `dropout` applies to the attention weights. With `keys_from`, a layer computes
    only queries and attends to the keys and values of an earlier layer (Brandon 2024, CLA; Sun 2024, YOCO; Gemma 3n).

    Attributes:
        num_heads: query heads, H.
        num_kv_heads: key/value heads, K, a divisor of `num_heads` (absent: `num_heads`).
        head_dim: features of each head, P (absent: d_model / num_heads).
        v_head_dim: features of each head's value, Q (absent: `head_dim`).
        bias: whether projections have a bias: true, false, or {q: true, ...}.
        score: `dot`, a scaled product, or `additive`, w^T tanh(q + k).
        scale: factor on scores (absent: 1 / sqrt(head_dim)).
        softcap: c of the soft cap c tanh(s / c) on scores (absent: no cap).
        clip_qkv: bound on queries, keys and values (absent: no bound).
        qk_norm: norm of queries and keys.
        qk_norm_over: whether `qk_norm` normalizes each head, or all heads together.
        qk_norm_after_rope: whether `qk_norm` is applied after the rotary embedding.
        keys_as_values: whether the projected keys, before norm and rotation, are also the values.
        value_norm: norm of the values of each head.
        value_scale: factor on the values.
        sinks: whether each head has a learned logit that takes part in the softmax but has no value.
        softmax: `standard`; `off_by_one`, a softmax with an additional logit of 0; or `softpick`, a rectified softmax.
        gate: gate on the output before the output projection (absent: none).
        differential: differential attention between the two halves of the heads (absent: none).
        gate_gain: learned factor on each logit of the gate (absent: none).
        heads_norm: norm of all heads' outputs together, after the gate and before the output projection.
        query_gain: learned factor on each feature of the rotated queries (absent: none; nGPT).
        query_scale: scaling of queries with their position (absent: none).
        value_embedding: embedding by token id that is added to the values (absent: none).
        convolutions: short convolutions over the latest positions (absent: none).
        joint_convolution: convolutions over queries and keys, and values from the previous token (absent: none).
        key_factors: whether each key head has a learned factor on its normalized keys (ZAYA1).
        key_bias: whether a bias exp(a softplus(v W)) is added to the scores of each key, with the values v of all heads
            and a learned a; one scalar per key head (Doge).
        position: position encoding within attention.
        pattern: which pairs of positions may attend.
        index: selection among the keys that `pattern` allows (absent: all of them).
        keys_from: earlier layer whose keys and values are read: its index, or a negative offset from this layer
            (absent: this layer computes its own).
        dropout: dropout probability of the attention weights in training.
    """

    sees_later: ClassVar[bool] = True
    kind: Literal["attention"] = "attention"
    num_heads: Heads
    num_kv_heads: Heads | None = None
    head_dim: HeadWidth | None = None
    v_head_dim: HeadWidth | None = None
    bias: Biases = ProjectionBiases()
    score: Literal["dot", "additive"] = "dot"
    scale: ScoreScale | None = None
    softcap: Positive | None = None
    clip_qkv: Positive | None = None
    qk_norm: VectorNorm = NoNorm()
    qk_norm_over: Literal["head", "all"] = "head"
    qk_norm_after_rope: Flag = False
    keys_as_values: Flag = False
    value_norm: VectorNorm = NoNorm()
    value_scale: Positive = 1.0
    sinks: Flag = False
    softmax: Softmax = "standard"
    gate: OutputGate | None = None
    gate_gain: Gain | None = None
    differential: Differential | None = None
    heads_norm: VectorNorm = NoNorm()
    query_gain: Gain | None = None
    query_scale: QueryScale | None = None
    value_embedding: ValueEmbedding | None = None
    convolutions: AttentionConvolutions | None = None
    joint_convolution: JointConvolution | None = None
    key_factors: Flag = False
    key_bias: Flag = False
    position: AnyMixerPosition = NoPosition()
    pattern: AnyPattern = Full()
    index: AnyKeySelection | None = None
    keys_from: LayerIndex | None = None
    dropout: Probability = 0.0

    @model_validator(mode="after")
    def _heads_divide(self) -> "Attention":
        if self.num_kv_heads is not None and self.num_heads % self.num_kv_heads:
            valid = [str(k) for k in range(1, self.num_heads + 1) if self.num_heads % k == 0]
            cause = f"{self.num_kv_heads} does not divide num_heads {self.num_heads}"
            invalid("num_kv_heads", cause, f"use {enumeration(valid, 'or')}")
        if self.head_dim is not None:
            self.position.check_heads(self.head_dim)
        return self

    @model_validator(mode="after")
    def _choices_agree(self) -> "Attention":
        is_full = isinstance(self.pattern, Full)
        if self.score == "additive":
            unscaled = {"scale": self.scale is not None, "softcap": self.softcap is not None}
            refuse_set(unscaled, "does not apply to additive scores", "remove {field}, or use score dot")
            if isinstance(self.position, Rotary):
                cause = "rotary positions only affect dot products of queries and keys"
                invalid("position", cause, "use relative_bias or alibi, or score dot")
            if self.index is not None:
                invalid("index", "additive scores do not support an index", "remove index, or use score dot")
            if not is_full:
                invalid("pattern", "additive scores support only the full pattern", "use pattern full, or score dot")
        if self.sinks and self.softmax != "standard":
            invalid("sinks", f"softmax {self.softmax} has no sink logits", "remove sinks, or use softmax standard")
        if self.position.reads_queries:
            unsupported = {
                "score": self.score != "dot",
                "pattern": not is_full and self.position.needs_all_keys,
                "index": self.index is not None,
                "keys_from": self.keys_from is not None,
            }
            cause = f"{self.position.kind} positions need dot-product scores of all keys of this layer"
            refuse_set(unsupported, cause, "remove {field}, or use other positions")
        if self.key_bias:
            unsupported = {
                "position": not (self.position.is_absent or self.position.rotates),
                "pattern": self.projects_globally,
                "index": self.index is not None,
                "keys_from": self.keys_from is not None,
            }
            cause = "cannot be combined with key_bias"
            refuse_set(unsupported, cause, "remove {field}, or use key_bias: false")
        if self.index is not None and self.num_heads % self.index.num_selections:
            cause = f"{self.index.num_selections} selecting heads do not divide num_heads {self.num_heads}"
            invalid("index.num_heads", cause, "use 1, or as many as num_kv_heads")
        if self.index is not None and not is_full:
            cause = f"an index selects among all earlier keys, but the pattern is {self.pattern.dump()['kind']}"
            invalid("index", cause, "remove index, or use pattern full")
        if self.qk_norm_after_rope and (
            not isinstance(self.position, Rotary) or self.qk_norm.is_absent or self.qk_norm_over == "all"
        ):
            cause = "needs rotary positions and a qk_norm over each head"
            invalid("qk_norm_after_rope", cause, "remove it, or set both")
        if self.gate_gain is not None and self.gate is None:
            invalid("gate_gain", "there is no gate", "remove it, or add a gate")
        if isinstance(self.position, Alibi) and isinstance(self.pattern, GlobalWindow | BigBird):
            cause = "alibi suppresses distant tokens, and global tokens must be visible everywhere"
            invalid("position", cause, "use learned positions in the embedding, or pattern window")
        if self.projects_globally:
            if self.keys_follow_length:
                cause = "scaling by sequence length does not support global projections"
                invalid("position.scaling", cause, "use another scaling")
            remedy = "remove it, or use global_projections: false"
            no_table = {"value_embedding": self.value_embedding is not None}
            refuse_set(no_table, "global projections have no value embedding", remedy)
            of_queries = {"query_gain": self.query_gain is not None, "key_factors": self.key_factors}
            refuse_set(of_queries, "global projections have separate queries and keys", remedy)
            refuse_set({"keys_as_values": self.keys_as_values}, "global projections have separate values", remedy)
        return self

    @model_validator(mode="after")
    def _heads_have_pairs(self) -> "Attention":
        if self.differential is None:
            return self
        for name, count in (("num_heads", self.num_heads), ("num_kv_heads", self.num_kv_heads)):
            if count is not None and count % 2:
                invalid(name, f"{count} heads cannot be paired for differential attention", "use an even number")
        if self.index is not None:
            invalid("index", "differential attention does not support an index", "remove it or differential")
        if self.projects_globally:
            invalid("pattern.global_projections", "unsupported by differential attention", "remove it or differential")
        return self

    @model_validator(mode="after")
    def _keys_serve_as_values(self) -> "Attention":
        if self.keys_as_values and self.bias.v:
            invalid("bias.v", "with keys_as_values, there is no value projection", "remove it or keys_as_values")
        if self.keys_as_values and self.v_head_dim not in (None, self.head_dim):
            cause = f"with keys_as_values, values have the width of keys, so {self.v_head_dim} may not fit"
            invalid("v_head_dim", cause, "remove it or keys_as_values")
        return self

    @model_validator(mode="after")
    def _convolves_together(self) -> "Attention":
        if self.joint_convolution is None:
            return self
        unsupported = {
            "convolutions": self.convolutions is not None,
            "keys_as_values": self.keys_as_values,
            "bias": self.bias != ProjectionBiases(o=self.bias.o),
            "pattern.global_projections": self.projects_globally,
        }
        refuse_set(unsupported, "is not supported with joint_convolution", "remove it or joint_convolution")
        if self.joint_convolution.reach < 1:
            invalid("joint_convolution.kernels", "kernels of 1 read no other position", "use a kernel of 2 or more")
        return self

    @model_validator(mode="after")
    def _reads_whole_keys(self) -> "Attention":
        if self.keys_from is None:
            return self
        if self.bias.k or self.bias.v:
            remedy = "use {q: true, o: true}, or no bias"
            invalid("bias", "with keys_from, keys and values already have the other layer's biases", remedy)
        of_keys = ("value_embedding", "convolutions", "joint_convolution", "key_factors")
        cause = "keys_from uses the keys and values of another layer"
        refuse_set({name: bool(getattr(self, name)) for name in of_keys}, cause, "remove it or keys_from")
        own_keys = {"index": self.index is not None, "pattern.global_projections": self.projects_globally}
        cause = "needs its own keys, but keys_from reads the keys of another layer"
        refuse_set(own_keys, cause, "remove {field} or keys_from")
        return self

    def source(self, layer: int) -> int | None:
        if self.index is not None:
            return self.index.source(layer)
        return self.keys_from if self.keys_from is None or self.keys_from >= 0 else layer + self.keys_from

    @property
    def source_name(self) -> str:
        return "keys" if self.index is None else "index"

    @property
    def own(self) -> "Attention":
        if self.index is not None and self.index.own != self.index:
            return self.model_copy(update={"index": self.index.own})
        return self if self.keys_from is None else self.model_copy(update={"keys_from": None})

    def check_source(self, source: Mixer, width: int) -> None:
        if self.index is not None:
            with inside("index"):
                self.index.check_source(getattr(source, "index", None))
            return
        # the source's keys must have the same form, at the positions that this layer's pattern sees
        with inside("keys_from"):
            super().check_source(source, width)
            assert isinstance(source, Attention)
            if source.index is not None:
                invalid("", "the referenced layer selects keys with an index", "name a layer without an index")
            # with defaults resolved: an absent head_dim may equal a given one
            ours, theirs = (
                dict(mixer) | mixer.sizes(width)._asdict() | {"v_head_dim": mixer.value_width(width)}
                for mixer in (self, source)
            )
            if differing := [name for name in OF_KEYS if ours[name] != theirs[name]]:
                invalid("", f"{', '.join(differing)} differs from the referenced layer", "make them equal")

    def check(self, width: int, causal: bool) -> None:
        if self.head_dim is None:
            if width % self.num_heads:
                cause = f"{self.num_heads} does not divide d_model {width}"
                divisors = [h for h in range(1, width + 1) if width % h == 0]
                # the three divisors nearest to the number that was given
                near = sorted(sorted(divisors, key=lambda h: abs(h - self.num_heads))[:3])
                invalid("num_heads", cause, f"use {', '.join(map(str, near))} or set head_dim")
            self.position.check_heads(width // self.num_heads)
        gate = self.value_embedding and self.value_embedding.gate
        if gate and gate.features is not None and gate.features > width:
            cause = f"{gate.features} is more than d_model {width}"
            invalid("value_embedding.gate.features", cause, f"use at most {width}, or remove it")
        if self.position.reads_queries:
            if not causal:
                cause = f"{self.position.kind} positions support only earlier keys"
                invalid("position", cause, "use relative_bias or alibi, or a decoder")
            # positions of whole sequences are sinusoids of d_model features, projected to keys
            if width % 2 and self.position.needs_all_keys:
                invalid("position", f"{width} features cannot be paired for sinusoids", "use an even d_model")
        if self.index is not None:
            with inside("index"):
                self.index.check_heads(self.sizes(width))
        if self.convolutions is not None:
            with inside("convolutions"):
                self.convolutions.check(causal)
                if self.keys_as_values and "v" in self.convolutions.at:
                    invalid("at", "with keys_as_values, there is no value projection", "leave out v")
        if self.joint_convolution is not None:
            if not causal:
                invalid("joint_convolution", "convolutions are causal", "remove it, or use a decoder")
            sizes = self.sizes(width)
            if sizes.num_kv_heads * self.value_width(width) % 2:
                invalid("joint_convolution", "values of an odd width cannot be halved", "use an even number")
        if causal and isinstance(self.pattern, BigBird):
            cause = "bigbird's random and last blocks attend to later tokens, which a decoder cannot"
            invalid("pattern", cause, "use strided, fixed or window, or an encoder")
        if causal and self.projects_globally:
            cause = "a decoder's first tokens cannot attend to later ones"
            invalid("pattern.global_projections", cause, "remove it, or use an encoder")

    @property
    def block_length(self) -> int | None:
        return self.pattern.block_length

    @property
    def stack_bias(self) -> tuple[RelativeBias, int] | None:
        return (self.position, self.num_heads) if isinstance(self.position, RelativeBias) else None

    def widened(self, factor: int) -> "Attention":
        kv_heads = None if self.num_kv_heads is None else factor * self.num_kv_heads
        return self.replace(num_heads=factor * self.num_heads, num_kv_heads=kv_heads)

    def sizes(self, d_model: int) -> AttentionSizes:
        head_dim = self.head_dim or d_model // self.num_heads
        rotary_dim = (self.position.dim or head_dim) if isinstance(self.position, Rotary) else 0
        return AttentionSizes(self.num_heads, self.num_kv_heads or self.num_heads, head_dim, rotary_dim, d_model)

    def value_width(self, d_model: int) -> int:
        """Return the features of each head's value, Q."""
        return self.v_head_dim or self.sizes(d_model).head_dim

    def attention_sizes(self, width: int) -> AttentionSizes:
        return self.sizes(width)

    def attention_call(self, width: int, place: str) -> AttentionCall:
        sizes, reach = self.sizes(width), self.pattern.reach
        unsupported = {
            "score": self.score != "dot",
            "sinks": self.sinks,
            "softmax": self.softmax != "standard",
            "differential": self.differential is not None,
            "key_bias": self.key_bias,
            "index": self.index is not None,
            "keys_from": self.keys_from is not None,
            "v_head_dim": self.value_width(width) != sizes.head_dim,
            "position": not (self.position.is_absent or self.position.rotates),
            "position.scaling": self.keys_follow_length or self.rereads_past is not None,
            "pattern": reach is None,
        }
        if fields := [name for name, is_set in unsupported.items() if is_set]:
            cause = "is not supported by the attention functions of other libraries"
            raise SpecError(f"{place}.{fields[0]}", cause, "use this library's attention")
        return AttentionCall(sizes, reach or None, self.softcap)

    @property
    def needs_whole_rows(self) -> NeedsWholeRows | None:
        # neither scaling by length nor projections of global tokens work on a part of a sequence
        if self.keys_follow_length:
            cause = "depends on the sequence length, but each process has only a part of a sequence"
            return NeedsWholeRows("position.scaling", cause, "use another scaling, or set parallel.context to 1")
        if self.position.reads_queries:
            cause = "adds to the scores of whole sequences, but each process has only a part of a sequence"
            return NeedsWholeRows("position", cause, "use other positions, or set parallel.context to 1")
        if self.key_bias:
            cause = "is added to the scores of whole sequences, but each process has only a part of a sequence"
            return NeedsWholeRows("key_bias", cause, "remove it, or set parallel.context to 1")
        if self.convolves:
            cause = "convolutions read sequences in order, and parallel.context splits them"
            return NeedsWholeRows("convolutions", cause, "remove it, or set parallel.context to 1")
        if self.projects_globally:
            cause = "all processes must see the global tokens, which only one process projects"
            return NeedsWholeRows("pattern", cause, "make global_projections false or parallel.context 1")
        return None if self.index is None else self.index.needs_whole_rows

    @property
    def tokens_read_by(self) -> str | None:
        return None if self.value_embedding is None else "value_embedding"

    @property
    def adds_to_loss(self) -> bool:
        return self.index is not None and self.index.adds_to_loss

    @property
    def sizes_to_divide(self) -> Mapping[str, Mapping[str, int]]:
        return {"tensor": {"num_heads": self.num_heads, "num_kv_heads": self.num_kv_heads or self.num_heads}}

    @property
    def separates_documents(self) -> bool:
        # a mask separates them, except with scaling by length or global projections
        if pattern_rule(self.pattern).depends_on_length:
            return False
        return not (self.projects_globally or self.keys_follow_length or self.convolves)

    @property
    def convolves(self) -> bool:
        """Whether queries, keys or values read earlier positions."""
        return self.convolutions is not None or self.joint_convolution is not None

    @property
    def projects_globally(self) -> bool:
        """Whether global tokens have their own projections."""
        return isinstance(self.pattern, GlobalWindow) and self.pattern.global_projections

    @property
    def keys_follow_length(self) -> bool:
        return isinstance(self.position, Rotary) and self.position.scaling.follows_length

    @property
    def rereads_past(self) -> int | None:
        return self.position.scaling.rereads_past if isinstance(self.position, Rotary) else None
