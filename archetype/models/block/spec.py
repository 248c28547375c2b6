"""Specification of blocks: sublayers, and the wirings of their norms and residual connections."""

from typing import ClassVar, Literal

from pydantic import model_validator

from archetype.parts.attention.spec import Attention
from archetype.parts.feedforward.spec import NoFeedForward
from archetype.parts.norm.spec import L2Norm
from archetype.parts.pattern.spec import Full
from archetype.parts.position.spec import NoPosition
from archetype.roles.feedforward import AnyFeedForward, FeedForward
from archetype.roles.mixer import AnyMixer, Mixer
from archetype.roles.norm import AnyNorm, Norm
from archetype.roles.wiring import AnyWiring, Wiring
from archetype.spec.base import Flag, Index, Positive, Probability, Spec
from archetype.spec.errors import invalid
from archetype.spec.kinds import part
from archetype.spec.repeats import OF_PASSES
from archetype.spec.sizes import Width

__all__ = [
    "Block",
    "Interpolated",
    "Laurel",
    "NoMixer",
    "OutputNorm",
    "ParallelResidual",
    "Plain",
    "PostNorm",
    "PreNorm",
    "SandwichNorm",
]


class NormedWiring(Wiring):
    """Base class of wirings with a norm for each sublayer. `norm` applies where a sublayer has no separate norm.

    Attributes:
        norm: norm of every sublayer.
        mixer_norm: norm of the mixer (absent: `norm`).
        cross_attention_norm: norm of cross-attention (absent: `norm`).
        feedforward_norm: norm of the feed-forward part (absent: `norm`).
    """

    norm: AnyNorm
    mixer_norm: AnyNorm | None = None
    cross_attention_norm: AnyNorm | None = None
    feedforward_norm: AnyNorm | None = None

    def norm_of(self, content: str, norm: str = "norm") -> Norm:
        """Return the norm of a sublayer, or the common norm if it has no separate norm."""
        field = f"{'cross_attention' if content == 'cross' else content}_{norm}"
        content_norm: Norm | None = getattr(self, field, None)
        return self.norm if content_norm is None else content_norm


@part
class PreNorm(NormedWiring):
    """x + F(norm(x)) for each sublayer in turn (Xiong 2020).

    Attributes:
        norm: norm of each sublayer's input.
    """

    normalizes_input: ClassVar[bool] = True
    adds_to_stream: ClassVar[bool] = True
    kind: Literal["pre_norm"] = "pre_norm"


@part
class PostNorm(NormedWiring):
    """norm(x + F(x)) for each sublayer in turn (Vaswani 2017).

    Attributes:
        norm: norm of the sum with the residual.
    """

    normalizes_output: ClassVar[bool] = True
    kind: Literal["post_norm"] = "post_norm"


@part
class SandwichNorm(NormedWiring):
    """x + norm'(F(norm(x))) for each sublayer in turn (Ding 2021; Gemma 2).

    Attributes:
        norm: norm of each sublayer's input and output.
        mixer_post_norm: norm of the mixer's output (absent: `norm`).
        cross_attention_post_norm: norm of cross-attention's output (absent: `norm`).
        feedforward_post_norm: norm of the feed-forward part's output (absent: `norm`).
    """

    normalizes_input: ClassVar[bool] = True
    normalizes_output: ClassVar[bool] = True
    adds_to_stream: ClassVar[bool] = True
    kind: Literal["sandwich"] = "sandwich"
    mixer_post_norm: AnyNorm | None = None
    cross_attention_post_norm: AnyNorm | None = None
    feedforward_post_norm: AnyNorm | None = None


@part
class Laurel(SandwichNorm):
    """(x + norm'(mixer(h)) + h + norm''(W_r W_l h)) / sqrt(2) with h = norm(x) (LAuReL, Menghani 2024; Gemma 3n).

    The path of low rank beside the mixer is learned. Other sublayers are wired as with `sandwich`.

    Attributes:
        rank: rank of the path.
        path_norm: norm of the path's output (absent: `norm`).
    """

    title: ClassVar[str] = "LAuReL"
    adds_to_stream: ClassVar[bool] = False
    kind: Literal["laurel"] = "laurel"  # type: ignore[assignment]
    rank: Width
    path_norm: AnyNorm | None = None


@part
class Interpolated(NormedWiring):
    """h + |a| (norm'(F(h)) - h) with h = norm(x): a step from h towards the output (nGPT, Loshchilov 2024).

    The rate a is learned per feature and sublayer. The stored parameter starts at `stored_rate` and is multiplied by
    `rate` / `stored_rate`, which sets its effective learning rate.

    Attributes:
        norm: norm of the stream before each sublayer, and of each sublayer's output.
        mixer_post_norm: norm of the mixer's output (absent: `norm`).
        cross_attention_post_norm: norm of cross-attention's output (absent: `norm`).
        feedforward_post_norm: norm of the feed-forward part's output (absent: `norm`).
        rate: initial rate.
        stored_rate: initial value of the stored parameters (absent: 1 / sqrt(d_model)).
    """

    normalizes_input: ClassVar[bool] = True
    kind: Literal["interpolated"] = "interpolated"
    norm: AnyNorm = L2Norm()
    mixer_post_norm: AnyNorm | None = None
    cross_attention_post_norm: AnyNorm | None = None
    feedforward_post_norm: AnyNorm | None = None
    rate: Positive = 0.05
    stored_rate: Positive | None = None

    def stored(self, d_model: int) -> float:
        return d_model**-0.5 if self.stored_rate is None else self.stored_rate


@part
class OutputNorm(NormedWiring):
    """x + norm(F(x)) for each sublayer in turn (Liu 2021, Swin v2; OLMo 2).

    Attributes:
        norm: norm of each sublayer's output.
    """

    normalizes_output: ClassVar[bool] = True
    adds_to_stream: ClassVar[bool] = True
    kind: Literal["output_norm"] = "output_norm"


@part
class ParallelResidual(NormedWiring):
    """x + mixer(norm(x)) + feedforward(norm'(x)) (GPT-J; Chowdhery 2022); `shared_norm` uses one norm for both.

    Attributes:
        norm: norm of the sublayers' inputs.
        shared_norm: whether mixer and feed-forward part share one norm.
    """

    normalizes_input: ClassVar[bool] = True
    adds_to_stream: ClassVar[bool] = True
    reads_first: ClassVar[bool] = True
    kind: Literal["parallel"] = "parallel"
    shared_norm: Flag = False

    @model_validator(mode="after")
    def _shared_norm_is_one(self) -> "ParallelResidual":
        if self.shared_norm and self.feedforward_norm is not None:
            invalid(
                "feedforward_norm",
                "with shared_norm, both parts use the mixer's norm",
                "remove it, or use shared_norm: false",
            )
        return self


@part
class Plain(Wiring):
    """F(x) for each sublayer in turn, without residual connections or norms; for recurrent stacks.

    The output of cross-attention is added to its query vector (Luong 2015, equation 5).
    """

    kind: Literal["plain"] = "plain"


@part
class NoMixer(Mixer):
    """No mixer: the block has only a feed-forward part."""

    is_absent: ClassVar[bool] = True
    separates_documents: ClassVar[bool] = True  # no information passes between positions
    needs_whole_rows: ClassVar[None] = None  # positions are independent
    kind: Literal["none"] = "none"


Reinject = Flag | Literal["unit"]


class Block(Spec):
    """One layer: mixer, optional cross-attention to an encoder's output, feed-forward part.

    Each sublayer's output gets dropout and is multiplied by `residual_scale` (Granite) before it is added.

    Attributes:
        wiring: placement of norms and residual connections.
        mixer: token mixer (none: a block with only a feed-forward part).
        cross_attention: cross-attention to an encoder's output (absent: none).
        feedforward: part that processes each position separately.
        dropout: dropout probability of each sublayer's output in training.
        residual_scale: factor on each sublayer's output.
        output_scale: whether the block's output is multiplied by a learned scalar (Gemma 4).
        weights_of: index of an earlier layer whose weights this layer shares (absent: none).
        reinject: whether the input of the layer `weights_of` is added to this layer's input; with `unit`, both are
            first scaled to unit length (Dory).
        adds_input_of: index of an earlier layer whose input is added to this layer's input (absent: none). Connects
            two stacks that take turns (HRM), or adds a skip connection.
        norm_between: whether the stack's final norm is applied to the input of this layer, before `reinject` or
            `adds_input_of` adds to it.
    """

    wiring: AnyWiring
    mixer: AnyMixer
    cross_attention: Attention | None = None
    feedforward: AnyFeedForward = NoFeedForward()
    dropout: Probability = 0.0
    residual_scale: Positive = 1.0
    output_scale: Flag = False
    weights_of: Index | None = None
    reinject: Reinject = False
    adds_input_of: Index | None = None
    norm_between: Flag = False

    @property
    def contents(self) -> dict[str, Mixer | FeedForward]:
        parts = {"mixer": self.mixer, "cross": self.cross_attention, "feedforward": self.feedforward}
        return {name: part for name, part in parts.items() if part is not None and not part.is_absent}

    @property
    def own(self) -> "Block":
        # without what is not of the layer itself
        alone = {"weights_of": None, "adds_input_of": None, **dict.fromkeys(OF_PASSES, False)}
        is_plain = self.weights_of is None and self.adds_input_of is None
        return self if is_plain else self.model_copy(update=alone)

    @property
    def reads_again(self) -> int | None:
        """Index of the layer whose input is added to the input of this one; None for none."""
        return self.weights_of if self.reinject else self.adds_input_of

    @model_validator(mode="after")
    def _contents_fit_the_wiring(self) -> "Block":
        if not self.contents:
            invalid(
                "mixer", "the block has neither a mixer nor a feed-forward part", "add a mixer or a feed-forward part"
            )
        is_unread = (
            isinstance(self.wiring, PreNorm | SandwichNorm | ParallelResidual) and not self.feedforward.reads_input
        )
        if is_unread and not self.wiring.norm_of("feedforward").is_absent:
            cause = "the feed-forward part reads only token ids, so a norm of its input would never be trained"
            invalid("wiring.feedforward_norm", cause, "use feedforward_norm: none")
        if self.feedforward.reads_streams and not self.wiring.norm_of("feedforward").is_absent:
            cause = "the feed-forward part reads all residual streams, and normalizes what it reads itself"
            invalid("wiring.feedforward_norm", cause, "use feedforward_norm: none")
        if isinstance(self.wiring, ParallelResidual | Laurel) and self.mixer.is_absent:
            invalid("wiring", f"{self.wiring.kind} wiring needs a mixer", "add a mixer, or use pre_norm")
        if isinstance(self.wiring, ParallelResidual):
            if self.feedforward.is_absent:
                invalid(
                    "wiring", "parallel wiring needs a feed-forward part", "add a feed-forward part, or use pre_norm"
                )
            if self.cross_attention is not None:
                invalid("wiring", "parallel wiring does not support cross-attention", "use pre_norm or post_norm")
        return self

    @model_validator(mode="after")
    def _reinjects_into_a_repetition(self) -> "Block":
        if self.reinject and self.weights_of is None:
            invalid("reinject", "applies only to a layer with weights_of", "set weights_of")
        if self.norm_between and self.weights_of is None and self.adds_input_of is None:
            invalid("norm_between", "applies only to a layer with weights_of", "set weights_of")
        if self.reinject and self.adds_input_of is not None:
            invalid("adds_input_of", "cannot be combined with reinject", "remove one of them")
        return self

    @model_validator(mode="after")
    def _cross_sees_all(self) -> "Block":
        if (cross := self.cross_attention) is None:
            return self
        unordered, whole = (
            "source and target have no common positions",
            "cross-attention always attends to the whole source",
        )
        causes = {
            "position": (not isinstance(cross.position, NoPosition), unordered),
            "query_scale": (cross.query_scale is not None, unordered),
            "keys_from": (cross.keys_from is not None, "cross-attention always reads the source's keys"),
            "pattern": (not isinstance(cross.pattern, Full), whole),
            "differential": (cross.differential is not None, "only self-attention supports it"),
            "convolutions": (cross.convolves, "queries and keys come from different sequences"),
            "index": (cross.index is not None, whole),
            "value_embedding": (
                cross.value_embedding is not None,
                "the values come from the source, but the token ids from the target",
            ),
        }
        for field, (is_set, cause) in causes.items():
            if is_set:
                invalid(f"cross_attention.{field}", cause, "remove it")
        return self
