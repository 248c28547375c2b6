"""Several mixers, or several feed-forward parts, on the same input with outputs added."""

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from archetype.parts.convolutions.spec import Convolutions
from archetype.roles.content import Content
from archetype.roles.feedforward import AnyFeedForward, FeedForward
from archetype.roles.mixer import AnyMixer, Mixer
from archetype.roles.norm import VectorNorm
from archetype.roles.parallel import NeedsWholeRows
from archetype.spec.base import Finite, Flag, Spec
from archetype.spec.errors import inside, invalid
from archetype.spec.kinds import part

Scales = tuple[Finite, ...]
OutputScales = Scales | Literal["learned"] | None
Norms = tuple[VectorNorm, ...]


class SumConvolutions(Convolutions):
    """Short convolution over the summed output of the parts.

    Attributes:
        at: position of the convolution: `output`.
    """

    at: tuple[Literal["output"]] = ("output",)


class _Together(Content, Spec):
    """Base of parts side by side.

    Attributes:
        parts: the parts, F_i.
        scales: factor on each part's output, s_i; `learned`: parameters initialized to 1 (absent: 1).
        input_scales: factor on each part's input, r_i (absent: 1).
        norms: norm of each part's input, n_i (absent: none).
        post_norms: norm of each part's output, n'_i (absent: none).
    """

    title: ClassVar[str] = "Side by side"
    kind: Literal["together"] = "together"
    parts: tuple[Any, ...]
    scales: OutputScales = None
    input_scales: Scales | None = None
    norms: Norms | None = None
    post_norms: Norms | None = None

    @model_validator(mode="after")
    def _fields_agree(self) -> Self:
        for name in ("scales", "input_scales", "norms", "post_norms"):
            values, what = getattr(self, name), "norm" if name.endswith("norms") else "factor"
            if isinstance(values, tuple) and len(values) != len(self.parts):
                cause = f"{len(values)} {what}s for {len(self.parts)} parts"
                invalid(name, cause, f"use one {what} for each part")
        for index, inner in enumerate(self.parts):
            if inner.is_absent:
                invalid(f"parts[{index}]", "is absent", "remove it")
        return self

    @property
    def factors(self) -> Scales:
        """Constant or initial factors on the parts' outputs."""
        return factors(self.scales, len(self.parts))

    @property
    def delays(self) -> tuple[bool, ...]:
        """Whether each part's output is added after the next layer."""
        return (False,) * len(self.parts)

    @property
    def sum_convolutions(self) -> Convolutions | None:
        """A short convolution of the sum (None: none)."""
        return None

    @property
    def separates_documents(self) -> bool:
        return all(inner.separates_documents for inner in self.parts)

    @property
    def adds_to_loss(self) -> bool:
        return any(inner.adds_to_loss for inner in self.parts)

    def named_parts(self) -> Iterator[tuple[str, Any]]:
        for index, content in enumerate(self.parts):
            for path, inner in content.named_parts():
                yield f"parts.{index}.{path}".rstrip("."), inner

    def check(self, width: int, causal: bool) -> None:
        for index, inner in enumerate(self.parts):
            with inside(f"parts[{index}]"):
                inner.check(width, causal)


@part
class MixersTogether(_Together, Mixer):
    """sum_i s_i n'_i(F_i(r_i n_i(x))): mixers in parallel, such as attention and Mamba-2 in Falcon-H1."""

    parts: Annotated[tuple[AnyMixer, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _reads_no_other_layer(self) -> Self:
        for index, mixer in enumerate(self.parts):
            if mixer.own != mixer:
                cause = "reads another layer, which parallel mixers cannot do"
                invalid(f"parts[{index}]", cause, "use a mixer that reads no other layer")
        return self

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


@part
class FeedForwardsTogether(_Together, FeedForward):
    """sum_i s_i n'_i(F_i(r_i n_i(x))): feed-forward parts in parallel, such as MLP and experts (Arctic; Gemma 4).

    The output of a `delayed` part is added to the residual stream one layer later, so a token's experts can run in
    parallel with that layer (Cai 2024, ScMoE; LongCat-Flash). A short convolution over the summed output may follow, as
    after Inkling's experts.

    Attributes:
        delayed: whether each part's output is added one layer later (absent: no part is delayed).
        convolutions: short convolution over the latest positions of the sum (absent: none).
    """

    parts: Annotated[tuple[AnyFeedForward, ...], Field(min_length=1)]
    delayed: tuple[Flag, ...] | None = None
    convolutions: SumConvolutions | None = None

    @model_validator(mode="after")
    def _one_is_added_now(self) -> Self:
        if self.delayed is not None and (len(self.delayed) != len(self.parts) or all(self.delayed)):
            cause = "must have a value for each part, and at least one part must not be delayed"
            invalid("delayed", cause, "use one of true and false for each part")
        return self

    @property
    def reads_input(self) -> bool:
        return any(inner.reads_input for inner in self.parts)

    @property
    def separates_documents(self) -> bool:
        return self.convolutions is None and super().separates_documents

    def check(self, width: int, causal: bool) -> None:
        super().check(width, causal)
        if self.convolutions is not None:
            with inside("convolutions"):
                self.convolutions.check(causal)
            if self.delays_output:
                cause = "delayed outputs cannot be convolved"
                invalid("convolutions", cause, "remove it, or delayed")

    @property
    def delays_output(self) -> bool:
        return any(self.delays)

    @property
    def router_state(self) -> tuple[int, int]:
        states = [inner.router_state for inner in self.parts]
        return max(read for read, _ in states), max(left for _, left in states)

    @property
    def delays(self) -> tuple[bool, ...]:
        return self.delayed or (False,) * len(self.parts)

    @property
    def sum_convolutions(self) -> Convolutions | None:
        return self.convolutions


def factors(scales: OutputScales, count: int) -> Scales:
    """Return a factor for each part: 1 where none is given, or where it is learned."""
    return (1.0,) * count if scales is None or scales == "learned" else scales
