"""Kinds of positions: added to embeddings, rotated into queries and keys, or added to scores."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from archetype.roles.position import EmbeddingPosition, MixerPosition
from archetype.spec.base import MAX_SIZE, Flag, Length, Positive, Size, Spec
from archetype.spec.errors import invalid
from archetype.spec.kinds import Named, part
from archetype.spec.sizes import HeadWidth

__all__ = [
    "Alibi", "DynamicScaling", "Learned", "LinearScaling", "Llama3Scaling", "LongRopeScaling",
    "NoPosition", "NoScaling", "ProportionalScaling", "RelativeBias", "RelativeLogits", "Rotary", "RotaryScaling",
    "Sinusoidal", "TransformerXL", "YarnScaling",
]  # fmt: skip


@part
class NoPosition(EmbeddingPosition, MixerPosition):
    """No position encoding: only the causal mask conveys order."""

    is_absent: ClassVar[bool] = True
    kind: Literal["none"] = "none"


@part
class Learned(EmbeddingPosition):
    """Table of `context_length` vectors added to token vectors, after `offset` unused ones (RoBERTa has 2).

    Attributes:
        offset: unused vectors before the first position.
    """

    title: ClassVar[str] = "positions"
    limits_length: ClassVar[bool] = True
    kind: Literal["learned"] = "learned"
    offset: Annotated[int, Field(strict=True, ge=0, le=MAX_SIZE)] = 0


@part
class Sinusoidal(EmbeddingPosition):
    """sin and cos of i / theta^(2j/D), added to token vectors (Vaswani 2017, section 3.5).

    `interleaved` alternates sines and cosines, as in the paper. Otherwise all sines come first (tensor2tensor).
    Positions start at `offset` (2 in fairseq).

    Attributes:
        theta: base of the wavelengths.
        interleaved: whether sines and cosines alternate; otherwise all sines come first.
        offset: index of the first position.
    """

    kind: Literal["sinusoidal"] = "sinusoidal"
    theta: Positive = 10_000.0
    interleaved: Flag = True
    offset: Annotated[int, Field(strict=True, ge=0, le=MAX_SIZE)] = 0

    def check(self, width: int) -> None:
        if width % 2:
            invalid("d_model", f"{width} features cannot be paired for sinusoidal positions", "use an even number")


class Scaling(Spec):
    """Base of scalings of rotary frequencies for longer sequences."""

    @property
    def follows_length(self) -> bool:
        """Whether frequencies change as a sequence grows, so that a prompt must be processed as a whole."""
        return False

    @property
    def rereads_past(self) -> int | None:
        """Length in tokens beyond which a growing sequence is processed again; None if cached keys stay as rotated."""
        return None

    def check(self, rotary_dim: int) -> None:
        """Call `invalid` if a head cannot have this many rotated features."""


class NoScaling(Scaling):
    """Unscaled frequencies."""

    kind: Literal["none"] = "none"


class LinearScaling(Scaling):
    """Divide every frequency by `factor` (position interpolation; Chen 2023).

    Attributes:
        factor: divisor of the frequencies.
    """

    kind: Literal["linear"] = "linear"
    factor: Positive


class DynamicScaling(Scaling):
    """Increase theta with the sequence length beyond `original_context_length` (dynamic NTK-aware scaling).

    Attributes:
        factor: factor by which the context is extended.
        original_context_length: length in tokens up to which frequencies are not scaled.
    """

    follows_length: ClassVar[bool] = True
    kind: Literal["dynamic"] = "dynamic"
    factor: Positive
    original_context_length: Length


class YarnScaling(Scaling):
    """Interpolate slow frequencies and keep fast ones, with a ramp in between (Peng 2023, YaRN).

    `attention_factor` multiplies cos and sin; by default it is 0.1 ln(factor) + 1. If both `mscale` and
    `mscale_all_dim` are given, it is (0.1 mscale ln(factor) + 1) / (0.1 mscale_all_dim ln(factor) + 1) (DeepSeek-V2).

    Attributes:
        factor: factor by which the context is extended.
        original_context_length: context length in training, in tokens.
        beta_fast: number of rotations within the original context above which frequencies are kept.
        beta_slow: number of rotations within the original context below which frequencies are divided by `factor`.
        mscale: weight of the logarithm in the numerator of the factor on cos and sin.
        mscale_all_dim: weight of the logarithm in the denominator of the factor on cos and sin.
        attention_factor: factor on cos and sin (absent: from `mscale` and `mscale_all_dim` if both are given, else 0.1
            ln(factor) + 1).
        truncate: whether the ramp's ends are rounded to whole pairs.
    """

    kind: Literal["yarn"] = "yarn"
    factor: Positive
    original_context_length: Length
    beta_fast: Positive = 32.0
    beta_slow: Positive = 1.0
    mscale: Positive | None = None
    mscale_all_dim: Positive | None = None
    attention_factor: Positive | None = None
    truncate: Flag = True


class Llama3Scaling(Scaling):
    """Divide frequencies below a band by `factor`, keep frequencies above it, and blend within it (Llama 3.1).

    Attributes:
        factor: divisor of low frequencies.
        low_frequency_factor: rotations within the original context below which a frequency is divided by `factor`.
        high_frequency_factor: rotations within the original context above which a frequency is kept.
        original_context_length: context length in training, in tokens.
    """

    kind: Literal["llama3"] = "llama3"
    factor: Positive
    low_frequency_factor: Positive
    high_frequency_factor: Positive
    original_context_length: Length

    @property
    def band(self) -> float:
        """Width of the band in turns; almost 0 if both factors are equal (Llama 4)."""
        return max(self.high_frequency_factor - self.low_frequency_factor, 1e-9)

    @model_validator(mode="after")
    def _band_has_two_ends(self) -> "Llama3Scaling":
        if self.high_frequency_factor < self.low_frequency_factor:
            cause = f"{self.high_frequency_factor} is below low_frequency_factor {self.low_frequency_factor}"
            invalid("high_frequency_factor", cause, "use a larger factor (Llama 3.1 has 4 and 1)")
        return self


class LongRopeScaling(Scaling):
    """Divide each frequency by its entry in a list: one list up to the original length, another beyond (Ding 2024).

    Attributes:
        short_factors: R/2 divisors for sequences up to `original_context_length` tokens.
        long_factors: R/2 divisors for longer sequences.
        original_context_length: context length in tokens before the extension.
        attention_factor: factor on cos and sin (LongRoPE has sqrt(1 + ln(factor) / ln(original_context_length))).
        rereads: whether a sequence that outgrows `original_context_length` is processed again (Phi-3); otherwise cached
            keys stay unchanged.
    """

    kind: Literal["longrope"] = "longrope"
    short_factors: tuple[Positive, ...]
    long_factors: tuple[Positive, ...]
    original_context_length: Length
    attention_factor: Positive = 1.0
    rereads: Flag = False

    @property
    def follows_length(self) -> bool:
        return self.short_factors != self.long_factors

    @property
    def rereads_past(self) -> int | None:
        return self.original_context_length if self.rereads and self.follows_length else None

    def check(self, rotary_dim: int) -> None:
        for name, factors in (("short_factors", self.short_factors), ("long_factors", self.long_factors)):
            if len(factors) != rotary_dim // 2:
                cause = f"{len(factors)} divisors for {rotary_dim // 2} pairs of rotated features"
                invalid(f"position.scaling.{name}", cause, f"use {rotary_dim // 2} divisors")


class ProportionalScaling(Scaling):
    """Rotate only the fraction `share` of pairs with the highest frequencies, as in a full head (Gemma 4).

    Attributes:
        share: fraction of pairs that rotate.
        factor: divisor of the rotated pairs' frequencies.
    """

    kind: Literal["proportional"] = "proportional"
    share: Annotated[float, Field(gt=0, le=1)]
    factor: Positive = 1.0


RotaryScaling = Annotated[
    NoScaling | LinearScaling | DynamicScaling | YarnScaling | Llama3Scaling | LongRopeScaling | ProportionalScaling,
    Field(discriminator="kind"),
    Named(),
]


DEPENDS_ON_LENGTH = "{kind} scaling depends on the sequence length, which is not supported here"


@part
class Rotary(MixerPosition):
    """Rotary position embedding: rotate pair p of queries and keys by position * theta^(-2p/R) (Su 2021).

    Pairs are (p, p + R/2), or (2p, 2p + 1) if interleaved. `dim` rotates only the first R features of a head (absent:
    all). `reversed` rotates in the other direction (nanochat).

    Attributes:
        theta: base of the frequencies.
        dim: rotated features of a head, R (absent: all).
        interleaved: whether pairs are (2p, 2p + 1) instead of (p, p + R/2).
        reversed: whether the rotation is reversed.
        scaling: scaling of the frequencies for longer sequences.
    """

    rotates: ClassVar[bool] = True
    kind: Literal["rotary"] = "rotary"
    theta: Positive = 10_000.0
    dim: HeadWidth | None = None
    interleaved: Flag = False
    reversed: Flag = False
    scaling: RotaryScaling = NoScaling()

    @model_validator(mode="after")
    def _pairs(self) -> "Rotary":
        if self.dim is not None and self.dim % 2:
            invalid("dim", f"{self.dim} features cannot be paired", "use an even number")
        if isinstance(self.scaling, YarnScaling) and self.theta <= 1:
            invalid("theta", f"{self.theta} is not above 1, as yarn needs", "use a theta above 1")
        return self

    def check_heads(self, head_dim: int) -> None:
        if self.dim is None and head_dim % 2:
            invalid("head_dim", f"{head_dim} features cannot be paired for rotary positions", "use an even head_dim")
        if self.dim is not None and self.dim > head_dim:
            invalid("position.dim", f"{self.dim} is more than head_dim {head_dim}", f"use at most {head_dim}")
        self.scaling.check(self.dim or head_dim)

    def check_kept_keys(self, cause: str, remedy: str = "use another scaling") -> None:
        """Call `invalid` if stored keys would have to be rotated again when a sequence grows."""
        if self.scaling.follows_length:
            invalid("position.scaling", cause.format(kind=self.scaling.kind), remedy)


@part
class Alibi(MixerPosition):
    """Linear bias -m_h |i - j| on scores, with one slope per head: m_h = 2^(-8h/H) (Press 2021).

    If H is not a power of two, the slopes of the next lower power come first, then every other slope of the next higher
    power.

    Attributes:
        scale: factor on all slopes (1 / sqrt(head_dim) in Falcon, which adds the bias before scaling the scores).
        rounded: whether slopes and their products with positions are rounded to bfloat16 (Falcon).
    """

    kind: Literal["alibi"] = "alibi"
    scale: Positive = 1.0
    rounded: Flag = False


@part
class RelativeBias(MixerPosition):
    """Learned bias on scores, per head and bucket of j - i (Raffel 2019, section 2.1).

    Half of a direction's buckets hold one distance each; the others grow logarithmically up to `max_distance`. Without
    a causal mask, each direction has half of the buckets. All layers of a stack share one table.

    Attributes:
        num_buckets: number of buckets, for both directions together.
        max_distance: distance from which on all distances share the last bucket.
    """

    kind: Literal["relative_bias"] = "relative_bias"
    num_buckets: Size = 32
    max_distance: Length = 128

    @model_validator(mode="after")
    def _buckets_reach(self) -> "RelativeBias":
        if self.num_buckets % 4:
            invalid("num_buckets", f"{self.num_buckets} cannot be halved twice", "use a multiple of 4")
        if self.max_distance <= self.num_buckets // 2:
            cause = f"{self.max_distance} leaves no distances for the logarithmic buckets"
            invalid("max_distance", cause, f"use more than {self.num_buckets // 2}")
        return self


@part
class TransformerXL(MixerPosition):
    """Scores (q_i + u)^T k_j + (q_i + v)^T W R_(i-j), with a key for each distance (Dai 2019, section 3.3).

    Matrix W and the vectors u and v of each head are learned; R contains sin and cos of distance / theta^(2m/D). Used
    by Gopher and Chinchilla.

    Attributes:
        theta: base of the wavelengths.
    """

    reads_queries: ClassVar[bool] = True
    needs_all_keys: ClassVar[bool] = True
    title: ClassVar[str] = "Transformer-XL"
    kind: Literal["transformer_xl"] = "transformer_xl"
    theta: Positive = 10_000.0


@part
class RelativeLogits(MixerPosition):
    """Position bias r_i^T B_(i-j) on scores, computed from the query (Inkling).

    The `rank` features r_i of each head are projected from the same vector as the query. Each layer has a learned
    vector B_d for each distance d below `extent`; keys further away get no bias. The bias is multiplied by
    `query_scale`, but not by the scale of the scores.

    Attributes:
        rank: number of features r_i per head.
        extent: number of distances with a bias.
    """

    reads_queries: ClassVar[bool] = True
    title: ClassVar[str] = "Relative logits"
    letters: ClassVar = {"r": "features of each head's query that choose its biases", "u": "distances with a bias"}
    kind: Literal["relative_logits"] = "relative_logits"
    rank: Size = 16
    extent: Length = 1024

    @property
    def query_features(self) -> int:
        return self.rank
