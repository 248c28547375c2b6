"""Multi-head latent attention: keys and values from one low-rank vector per position."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from archetype.parts.attention.spec import OutputGate, QueryScale
from archetype.parts.norm.spec import NoNorm, RMSNorm
from archetype.parts.pattern.spec import Full
from archetype.parts.position.spec import DEPENDS_ON_LENGTH, Rotary
from archetype.roles.mixer import Mixer
from archetype.roles.norm import VectorNorm
from archetype.roles.parallel import NeedsWholeRows
from archetype.roles.pattern import AnyPattern
from archetype.roles.position import AnyMixerPosition, AttentionSizes
from archetype.roles.selection import AnyKeySelection
from archetype.spec.base import MAX_SIZE, Flag, Positive, Probability, Spec
from archetype.spec.errors import inside, invalid
from archetype.spec.kinds import Named, part
from archetype.spec.sizes import Heads, HeadWidth, ScoreScale, Width

__all__ = ["DirectQuery", "LatentAttention", "LowRankQuery", "Query"]


class DirectQuery(Spec):
    """Queries from a single projection."""

    rank: ClassVar[None] = None
    scale: ClassVar[float] = 1.0
    joins_unnormed: ClassVar[bool] = False
    kind: Literal["direct"] = "direct"


class LowRankQuery(Spec):
    """Queries projected from a normalized latent of `rank` features.

    Attributes:
        rank: width of the query latent.
        scale: factor on the query latent after its norm.
        joins_unnormed: whether queries are projected from the concatenation of the latent after and before its norm.
    """

    kind: Literal["low_rank"] = "low_rank"
    rank: Width
    scale: Positive = 1.0
    joins_unnormed: Flag = False


RotatedWidth = Annotated[int, Field(strict=True, ge=0, le=MAX_SIZE)]
Query = Annotated[DirectQuery | LowRankQuery, Field(discriminator="kind"), Named()]


@part
class LatentAttention(Mixer):
    """Multi-head latent attention: keys and values from one low-rank vector (DeepSeek-AI 2024, section 2.1).

    The latent c = norm(x Wdkv) has `kv_lora_rank` features; a head's key is [c Wuk, rope(x Wkr)] and its value c Wuv.
    All heads share the rotated part, which has `qk_rope_head_dim` features. The cache holds only c and the rotated
    part. With `position: none`, nothing is rotated (Kimi Linear). `latent_scale` multiplies the latent, and `key_norm`
    normalizes the rotated part before the rotation (dots 3). `gate`, `sinks` and `query_scale` work as in attention
    (Ling 3, Hy4, Mistral Small 4). In A.X K2, queries and the gate are projected from the query latent before and after
    its norm.

    Attributes:
        num_heads: number of heads, H.
        query: how queries are projected.
        kv_lora_rank: width of the latent, C.
        qk_nope_head_dim: unrotated features of a head's query and key.
        qk_rope_head_dim: rotated features of a head's query and key, R (0 with `position: none`: GLM-5.3-Flash).
        v_head_dim: width of a head's value, Q.
        position: rotary embedding of the rotated features, or none.
        norm: norm of the latent and of the query latent.
        latent_scale: factor on the latent after its norm.
        key_norm: norm of the shared key's rotated features, before the rotation.
        bias: whether the down projections and the output projection have a bias.
        scale: factor on scores (absent: 1 / sqrt(qk_nope_head_dim + qk_rope_head_dim)).
        sinks: whether each head has a learned logit that takes part in the softmax but has no value.
        gate: gate on the output before the output projection (absent: none).
        gate_from: whether the gate reads the layer's input, or the vector that queries are projected from.
        query_scale: scaling of queries with their position (absent: none).
        index: selection of the keys that each query attends to (absent: all).
        pattern: positions that a query sees: full, or a window, and then the cache holds no more latents (dots 3).
        dropout: dropout probability of the attention weights in training.
    """

    title: ClassVar[str] = "Latent attention"
    letters: ClassVar[Mapping[str, str]] = {
        "P": "features of a head's query and key that are not rotated",
        "r": "rank of queries",
    }
    sees_later: ClassVar[bool] = True
    separates_documents: ClassVar[bool] = True  # a mask separates them
    source_name: ClassVar[str] = "index"
    kind: Literal["latent"] = "latent"
    num_heads: Heads
    query: Query = DirectQuery()
    kv_lora_rank: Width
    qk_nope_head_dim: HeadWidth
    qk_rope_head_dim: RotatedWidth
    v_head_dim: HeadWidth
    position: AnyMixerPosition = Rotary(interleaved=True)
    norm: VectorNorm = RMSNorm(eps=1e-6)
    latent_scale: Positive = 1.0
    key_norm: VectorNorm = NoNorm()
    bias: Flag = False
    scale: ScoreScale | None = None
    sinks: Flag = False
    gate: OutputGate | None = None
    gate_from: Literal["input", "query"] = "input"
    query_scale: QueryScale | None = None
    index: AnyKeySelection | None = None
    pattern: AnyPattern = Full()
    dropout: Probability = 0.0

    @model_validator(mode="after")
    def _rotation_fits(self) -> "LatentAttention":
        if self.qk_rope_head_dim % 2:
            invalid("qk_rope_head_dim", f"{self.qk_rope_head_dim} features cannot be paired", "use an even number")
        if self.position.is_absent:
            return self
        if not self.qk_rope_head_dim:
            invalid("qk_rope_head_dim", "0 features cannot be rotated", "use an even number, or position: none")
        if not isinstance(self.position, Rotary):
            invalid("position", "latent attention does not support score biases", "use rotary or none")
        if self.position.dim is not None:
            invalid("position.dim", "all qk_rope_head_dim features are rotated", "use qk_rope_head_dim")
        self.position.scaling.check(self.qk_rope_head_dim)
        self.position.check_kept_keys(DEPENDS_ON_LENGTH, "use yarn, as DeepSeek-V2 does, or another scaling")
        return self

    @model_validator(mode="after")
    def _index_fits(self) -> "LatentAttention":
        if not self.key_norm.is_absent and not self.qk_rope_head_dim:
            invalid("key_norm", "there are no features to normalize", "remove it")
        if self.index is not None and self.index.reads_heads:
            invalid("index", "latent attention has no keys per head", "use an index with projections of its own")
        if self.index is not None and self.index.num_selections > 1:
            cause = f"{self.index.num_selections} heads select keys, but all heads read the same latents"
            invalid("index.num_heads", cause, "use 1")
        if self.pattern.reach is None:
            invalid("pattern", "latents are read in full or within a window", "use full or window")
        if self.pattern.reach and self.index is not None:
            invalid("pattern", "an index selects among all keys, which a window does not keep", "use full, or no index")
        return self

    @model_validator(mode="after")
    def _gate_has_a_source(self) -> "LatentAttention":
        if self.gate_from == "query" and (self.gate is None or self.query.rank is None):
            invalid("gate_from", "needs a gate and a low-rank query", "use input, or set both")
        return self

    @property
    def needs_whole_rows(self) -> NeedsWholeRows | None:
        # latents can be gathered from other processes, an index's choice cannot
        return None if self.index is None else self.index.needs_whole_rows

    def source(self, layer: int) -> int | None:
        return None if self.index is None else self.index.source(layer)

    @property
    def own(self) -> "LatentAttention":
        if self.index is None or self.index.own == self.index:
            return self
        return self.model_copy(update={"index": self.index.own})

    def check_source(self, source: Mixer, width: int) -> None:
        assert self.index is not None
        with inside("index"):
            self.index.check_source(getattr(source, "index", None))

    @property
    def adds_to_loss(self) -> bool:
        return self.index is not None and self.index.adds_to_loss

    @property
    def head_dim(self) -> int:
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    @property
    def sizes(self) -> AttentionSizes:
        rotated = 0 if self.position.is_absent else self.qk_rope_head_dim
        return AttentionSizes(self.num_heads, self.num_heads, self.head_dim, rotated)

    def query_features(self, d_model: int) -> int:
        """Return the width of the query projection's input, without the unnormalized latent."""
        return self.query.rank or d_model

    def gate_features(self, d_model: int) -> int:
        """Return the width of the gate projection's input."""
        if self.gate_from == "input" or self.query.rank is None:
            return d_model
        return self.query.rank * (1 + self.query.joins_unnormed)

    def attention_sizes(self, width: int) -> AttentionSizes:
        return self.sizes

    def absorbs(self, queries: int, keys: int) -> bool:
        """Return whether attending to the latents is cheaper than expanding them to keys and values.

        Both forms are counted for one sequence. Plain: expand every latent, then the usual products. Absorbed: expand
        queries and results instead, with products over C + R and C features.
        """
        c, r, nope, v = self.kv_lora_rank, self.qk_rope_head_dim, self.qk_nope_head_dim, self.v_head_dim
        plain = keys * c * (nope + v) + queries * keys * (nope + r + v)
        return queries * c * (nope + v) + queries * keys * (2 * c + r) < plain
