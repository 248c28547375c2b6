"""Kinds of positions: added to embeddings, rotated into queries and keys, or added to scores."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from archetype.roles.position import EmbeddingPosition, MixerPosition
from archetype.spec.base import MAX_SIZE, Flag, Length, Named, Positive, Size, Spec, invalid
from archetype.spec.kinds import part
from archetype.spec.sizes import HeadWidth

__all__ = [
    "Alibi", "DynamicScaling", "Learned", "LinearScaling", "Llama3Scaling", "LongRopeScaling",
    "NoPosition", "NoScaling", "ProportionalScaling", "RelativeBias", "Rotary", "RotaryScaling", "Sinusoidal",
    "TransformerXL", "YarnScaling",
]  # fmt: skip


@part
class NoPosition(EmbeddingPosition, MixerPosition):
    """Order is known only through the causal mask."""

    is_absent: ClassVar[bool] = True
    kind: Literal["none"] = "none"


@part
class Learned(EmbeddingPosition):
    """A table of `context_length` vectors, added to the token's, after `offset` unused ones (RoBERTa has 2).

    Attributes:
        offset: unused vectors before the first position's.
    """

    title: ClassVar[str] = "positions"
    limits_length: ClassVar[bool] = True
    kind: Literal["learned"] = "learned"
    offset: Annotated[int, Field(strict=True, ge=0, le=MAX_SIZE)] = 0


@part
class Sinusoidal(EmbeddingPosition):
    """sin and cos of i / theta^(2j/D), added to the token's vector (Vaswani 2017, section 3.5).

    `interleaved`: in turn, as the paper has them; else all sines before all cosines (its authors' tensor2tensor).
    Positions are counted from `offset` (fairseq has 2).

    Attributes:
        theta: base of the wavelengths.
        interleaved: sines and cosines in turn, or all sines first.
        offset: the first position's number.
    """

    kind: Literal["sinusoidal"] = "sinusoidal"
    theta: Positive = 10_000.0
    interleaved: Flag = True
    offset: Annotated[int, Field(strict=True, ge=0, le=MAX_SIZE)] = 0

    def check(self, width: int) -> None:
        """Features are paired."""
        if width % 2:
            invalid("d_model", f"{width} features cannot be paired for sinusoidal positions", "use an even number")


class Scaling(Spec):
    """Base of the ways in which frequencies are changed for longer texts."""

    @property
    def follows_length(self) -> bool:
        """Whether frequencies change while a text grows, so that a prompt must be read whole."""
        return False

    @property
    def rereads_past(self) -> int | None:
        """Tokens beyond which a growing text is read anew; None where keys stay as they were rotated."""
        return None

    def check(self, rotary_dim: int) -> None:
        """Refuse, by `invalid`, a head of which so many features are rotated."""


class NoScaling(Scaling):
    """The frequencies as trained."""

    kind: Literal["none"] = "none"


class LinearScaling(Scaling):
    """Every frequency divided by `factor` (Chen 2023, position interpolation).

    Attributes:
        factor: what frequencies are divided by.
    """

    kind: Literal["linear"] = "linear"
    factor: Positive


class DynamicScaling(Scaling):
    """Theta grows with this request's length past `original_context_length` (NTK-aware, dynamic).

    Attributes:
        factor: how far the context is stretched.
        original_context_length: tokens up to which nothing is scaled.
    """

    kind: Literal["dynamic"] = "dynamic"
    factor: Positive
    original_context_length: Length

    @property
    def follows_length(self) -> bool:
        """Always."""
        return True


class YarnScaling(Scaling):
    """Slow frequencies interpolated, fast ones kept, a ramp between them (Peng 2023, YaRN).

    `attention_factor` multiplies cos and sin; absent, it is 0.1 ln(factor) + 1, or the quotient of that with
    `mscale` and with `mscale_all_dim` before the logarithm where both are given (DeepSeek-V2).

    Attributes:
        factor: how far the context is stretched.
        original_context_length: tokens of the context that was trained.
        beta_fast: turns within it from which on frequencies stay as they are.
        beta_slow: turns within it up to which they are divided by `factor`.
        mscale: numerator's weight in the factor on cos and sin.
        mscale_all_dim: denominator's weight in that factor.
        attention_factor: that factor itself (absent: 0.1 ln(factor) + 1).
        truncate: whether the ramp's ends are whole pairs.
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
    """Wavelengths beyond a band divided by `factor`, within it blended, below it kept (Llama 3.1).

    Attributes:
        factor: what low frequencies are divided by.
        low_frequency_factor: turns within the original context below which a frequency is low.
        high_frequency_factor: turns above which it stays as it is.
        original_context_length: tokens of the context that was trained.
    """

    kind: Literal["llama3"] = "llama3"
    factor: Positive
    low_frequency_factor: Positive
    high_frequency_factor: Positive
    original_context_length: Length

    @property
    def band(self) -> float:
        """Turns between low and high frequencies; next to none where both factors are equal (Llama 4)."""
        return max(self.high_frequency_factor - self.low_frequency_factor, 1e-9)

    @model_validator(mode="after")
    def _band_has_two_ends(self) -> "Llama3Scaling":
        if self.high_frequency_factor < self.low_frequency_factor:
            cause = f"{self.high_frequency_factor} is below low_frequency_factor {self.low_frequency_factor}"
            invalid("high_frequency_factor", cause, "use a larger one (Llama 3.1 has 4 and 1)")
        return self


class LongRopeScaling(Scaling):
    """Each frequency divided by a number of its own, from one list up to the trained length, else another (Ding 2024).

    Attributes:
        short_factors: divisors of a text of up to `original_context_length` tokens, R/2 of them.
        long_factors: divisors of a longer one.
        original_context_length: tokens of the context that was trained first.
        attention_factor: factor of cos and sin (LongRoPE has sqrt(1 + ln(factor) / ln(original_context_length))).
        rereads: whether a text that outgrows `original_context_length` is read anew (Phi-3); else what was kept of it
            stays as it was.
    """

    kind: Literal["longrope"] = "longrope"
    short_factors: tuple[Positive, ...]
    long_factors: tuple[Positive, ...]
    original_context_length: Length
    attention_factor: Positive = 1.0
    rereads: Flag = False

    @property
    def follows_length(self) -> bool:
        """Unless both lists are the same."""
        return self.short_factors != self.long_factors

    @property
    def rereads_past(self) -> int | None:
        """The original length, where the lists differ."""
        return self.original_context_length if self.rereads and self.follows_length else None

    def check(self, rotary_dim: int) -> None:
        """There is a divisor for each pair."""
        for name, factors in (("short_factors", self.short_factors), ("long_factors", self.long_factors)):
            if len(factors) != rotary_dim // 2:
                cause = f"{len(factors)} are not one for each of {rotary_dim // 2} pairs of rotated features"
                invalid(f"position.scaling.{name}", cause, f"give {rotary_dim // 2}")


class ProportionalScaling(Scaling):
    """Only the fastest `share` of all pairs turn, at the frequencies of a whole head (Gemma 4).

    Attributes:
        share: of the pairs, those that turn.
        factor: what their frequencies are divided by.
    """

    kind: Literal["proportional"] = "proportional"
    share: Annotated[float, Field(gt=0, le=1)]
    factor: Positive = 1.0


RotaryScaling = Annotated[
    NoScaling | LinearScaling | DynamicScaling | YarnScaling | Llama3Scaling | LongRopeScaling | ProportionalScaling,
    Field(discriminator="kind"),
    Named(),
]


@part
class Rotary(MixerPosition):
    """Queries and keys turned, pair by pair, by position * theta^(-2p/R) (Su 2021).

    Half-split pairs are (p, p + R/2); interleaved pairs are (2p, 2p + 1). `dim` rotates only the first R of the
    head's features (absent: all of them). `reversed` turns the other way (nanochat).

    Attributes:
        theta: base of the frequencies.
        dim: features of a head that are rotated, R (absent: all).
        interleaved: pairs are (2p, 2p + 1) and not (p, p + R/2).
        reversed: whether the rotation goes the other way.
        scaling: how frequencies are changed for longer texts.
    """

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
            invalid("theta", f"{self.theta} leaves yarn no slower frequencies", "use more than 1")
        return self


@part
class Alibi(MixerPosition):
    """Scores lowered by m_h |i - j|, with a slope for each head: m_h = 2^(-8h/H) (Press 2021).

    Where H is no power of two, the slopes of the next lower power come first, then every other one of the next higher.

    Attributes:
        scale: factor of all slopes (Falcon has 1 / sqrt(head_dim), for it adds them before it scales scores).
        rounded: whether slopes and their products with positions are rounded to bfloat16 first (Falcon).
    """

    kind: Literal["alibi"] = "alibi"
    scale: Positive = 1.0
    rounded: Flag = False


@part
class RelativeBias(MixerPosition):
    """Scores raised by a learned number for each head and bucket of j - i (Raffel 2019, section 2.1).

    Half of a direction's buckets hold one distance each, the others grow logarithmically up to `max_distance`. Where
    both directions are seen, each has half of the buckets. One table serves all layers of a stack.

    Attributes:
        num_buckets: buckets of distances, of both directions together.
        max_distance: distance from which on all share the last bucket.
    """

    kind: Literal["relative_bias"] = "relative_bias"
    num_buckets: Size = 32
    max_distance: Length = 128

    @model_validator(mode="after")
    def _buckets_reach(self) -> "RelativeBias":
        if self.num_buckets % 4:
            invalid("num_buckets", f"{self.num_buckets} cannot be halved twice", "use a multiple of 4")
        if self.max_distance <= self.num_buckets // 2:
            cause = f"{self.max_distance} leaves no distance to the logarithmic buckets"
            invalid("max_distance", cause, f"use more than {self.num_buckets // 2}")
        return self


@part
class TransformerXL(MixerPosition):
    """Scores (q_i + u)^T k_j + (q_i + v)^T W R_(i-j), of queries whose distance has a key of its own (Dai 2019, 3.3).

    Vectors u and v of each head are learned, and so is W, by which the waves R of a distance, sin and cos of
    distance / theta^(2m/D), become a key. Gopher and Chinchilla have them.

    Attributes:
        theta: base of the wavelengths.
    """

    reads_queries: ClassVar[bool] = True
    title: ClassVar[str] = "Transformer-XL"
    kind: Literal["transformer_xl"] = "transformer_xl"
    theta: Positive = 10_000.0
