"""Several mixers, or several feed-forward parts, on the same input with outputs added."""

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from archetype.roles.content import Content
from archetype.roles.feedforward import AnyFeedForward, FeedForward
from archetype.roles.mixer import AnyMixer, Mixer
from archetype.roles.norm import VectorNorm
from archetype.roles.parallel import NeedsWholeRows
from archetype.spec.base import Finite
from archetype.spec.errors import inside, invalid
from archetype.spec.kinds import part

__all__ = ["FeedForwardsTogether", "MixersTogether"]

Scales = tuple[Finite, ...]
OutputScales = Scales | Literal["learned"] | None
Norms = tuple[VectorNorm, ...]


@part
class MixersTogether(Mixer):
    """sum_i s_i n'_i(F_i(r_i n_i(x))): mixers side by side, such as attention and a state space in Falcon-H1.

    Attributes:
        parts: the mixers, F_i.
        scales: factor on each mixer's output, s_i; `learned`: parameters that begin at 1 (absent: 1).
        input_scales: factor on each mixer's input, r_i (absent: 1).
        norms: norm of each mixer's input, n_i (absent: none).
        post_norms: norm of each mixer's output, n'_i (absent: none).
    """

    title: ClassVar[str] = "Side by side"
    kind: Literal["together"] = "together"
    parts: Annotated[tuple[AnyMixer, ...], Field(min_length=1)]
    scales: OutputScales = None
    input_scales: Scales | None = None
    norms: Norms | None = None
    post_norms: Norms | None = None

    @model_validator(mode="after")
    def _one_scale_a_part(self) -> "MixersTogether":
        _check(self)
        for index, mixer in enumerate(self.parts):
            if mixer.own != mixer:
                cause = "reads another layer, which mixers side by side cannot do"
                invalid(f"parts[{index}]", cause, "use a mixer that reads no other layer")
        return self

    @property
    def factors(self) -> Scales:
        """Constant or initial factors on the mixers' outputs."""
        return factors(self.scales, len(self.parts))

    @property
    def separates_documents(self) -> bool:
        return all(mixer.separates_documents for mixer in self.parts)

    @property
    def needs_whole_rows(self) -> NeedsWholeRows | None:
        return next((cause for mixer in self.parts if (cause := mixer.needs_whole_rows) is not None), None)

    @property
    def sees_later(self) -> bool:  # type: ignore[override]
        return any(mixer.sees_later for mixer in self.parts)

    @property
    def keys_follow_length(self) -> bool:
        return any(mixer.keys_follow_length for mixer in self.parts)

    @property
    def rereads_past(self) -> int | None:
        return min((length for mixer in self.parts if (length := mixer.rereads_past) is not None), default=None)

    @property
    def adds_to_loss(self) -> bool:
        return any(mixer.adds_to_loss for mixer in self.parts)

    def named_parts(self) -> Iterator[tuple[str, Any]]:
        return _named(self.parts)

    def check(self, width: int, causal: bool) -> None:
        for index, mixer in enumerate(self.parts):
            with inside(f"parts[{index}]"):
                mixer.check(width, causal)


@part
class FeedForwardsTogether(FeedForward):
    """sum_i s_i n'_i(F_i(r_i n_i(x))): feed-forward parts side by side, such as an MLP and experts (Arctic; Gemma 4).

    Attributes:
        parts: the feed-forward parts, F_i.
        scales: factor on each part's output, s_i; `learned`: parameters that begin at 1 (absent: 1).
        input_scales: factor on each part's input, r_i (absent: 1).
        norms: norm of each part's input, n_i (absent: none).
        post_norms: norm of each part's output, n'_i (absent: none).
    """

    title: ClassVar[str] = "Side by side"
    kind: Literal["together"] = "together"
    parts: Annotated[tuple[AnyFeedForward, ...], Field(min_length=1)]
    scales: OutputScales = None
    input_scales: Scales | None = None
    norms: Norms | None = None
    post_norms: Norms | None = None

    @model_validator(mode="after")
    def _one_scale_a_part(self) -> "FeedForwardsTogether":
        _check(self)
        return self

    @property
    def factors(self) -> Scales:
        """Constant or initial factors on the parts' outputs."""
        return factors(self.scales, len(self.parts))

    @property
    def adds_to_loss(self) -> bool:
        return any(feedforward.adds_to_loss for feedforward in self.parts)

    @property
    def separates_documents(self) -> bool:
        return all(part.separates_documents for part in self.parts)

    def named_parts(self) -> Iterator[tuple[str, Any]]:
        return _named(self.parts)

    def check(self, width: int, causal: bool) -> None:
        for index, feedforward in enumerate(self.parts):
            with inside(f"parts[{index}]"):
                feedforward.check(width, causal)


def _named(parts: Sequence[Content]) -> Iterator[tuple[str, Any]]:
    for index, content in enumerate(parts):
        for path, inner in content.named_parts():
            yield f"parts.{index}.{path}".rstrip("."), inner


def factors(scales: OutputScales, count: int) -> Scales:
    """Return a factor for each part: 1 where none is given, or where it is learned."""
    return (1.0,) * count if scales is None or scales == "learned" else scales


def _check(together: MixersTogether | FeedForwardsTogether) -> None:
    for name in ("scales", "input_scales", "norms", "post_norms"):
        values, what = getattr(together, name), "norm" if name.endswith("norms") else "factor"
        if isinstance(values, tuple) and len(values) != len(together.parts):
            cause = f"{len(values)} {what}s for {len(together.parts)} parts"
            invalid(name, cause, f"use one {what} for each part")
    for index, inner in enumerate(together.parts):
        if inner.is_absent:
            invalid(f"parts[{index}]", "is absent", "remove it")
