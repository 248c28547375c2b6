"""The role of mixers: attention, recurrences and state space models."""

from typing import Annotated, ClassVar, NamedTuple

from archetype.errors import SpecError
from archetype.roles.content import Content
from archetype.roles.parallel import NeedsWholeRows
from archetype.roles.position import AttentionSizes
from archetype.spec.base import Spec
from archetype.spec.errors import invalid
from archetype.spec.kinds import ByKind, Part

__all__ = ["AttentionCall", "Mixer"]


class AttentionCall(NamedTuple):
    """What another library's attention function is told besides queries, keys and values.

    Attributes:
        sizes: heads of queries, keys and values, whose vectors have the same width.
        window: number of newest positions that a query sees, its own among them (None: all earlier ones).
        softcap: c of the soft cap c tanh(s / c) on scores (None: no cap).
    """

    sizes: AttentionSizes
    window: int | None
    softcap: float | None


class Mixer(Content, Part):
    """Base class of mixers."""

    needs: ClassVar[str] = "module"
    sees_later: ClassVar[bool] = False  # whether positions see later ones in a stack that is not causal

    @property
    def separates_documents(self) -> bool:
        """Whether tokens cannot attend to other documents packed into the same sequence."""
        return False

    @property
    def keys_follow_length(self) -> bool:
        """Whether keys of earlier tokens change as the sequence grows, so that a prompt cannot be split into chunks."""
        return False

    @property
    def rereads_past(self) -> int | None:
        """Length beyond which the cache becomes invalid and a sequence must be prefilled again (None: never)."""
        return None

    @property
    def block_length(self) -> int | None:
        """Positions of a block that sees itself and all earlier blocks; None if the mixer has no such blocks."""
        return None

    @property
    def stack_bias(self) -> tuple[Spec, int] | None:
        """(specification, number of heads) of a position table shared by all layers of the stack, or None.

        Its module is constructed as `Module(spec, num_heads, d_model, causal)` and available as
        `context.position_bias`. Its cost class has a method `table(num_heads)`.
        """
        return None

    def source(self, layer: int) -> int | None:
        """Return the index of the earlier layer whose published values the mixer of `layer` reads, or None.

        Values are published by `context.leave` and read by `context.left_by`.
        """
        return None

    @property
    def source_name(self) -> str:
        """What the mixer reads of its source, in a word for diagrams."""
        return "keys"

    @property
    def own(self) -> "Mixer":
        """Copy of this mixer that does not read another layer."""
        return self

    def check_source(self, source: "Mixer", width: int) -> None:
        """Call `invalid` if this mixer cannot read the values that the mixer `source` publishes."""
        if not isinstance(source, type(self)) or source.own != source:
            remedy = f"name a layer of {getattr(self, 'kind', 'this mixer')} that reads no other layer"
            invalid("", "the mixer of the referenced layer publishes nothing to read", remedy)

    @property
    def needs_whole_rows(self) -> NeedsWholeRows | None:
        # None for a mixer that reads other processes' positions by `context.rows`
        cause = f"{getattr(self, 'kind', 'a mixer')} reads sequences in order, and parallel.context splits them"
        return NeedsWholeRows("", cause, "use attention, or set parallel.context to 1")

    def attention_sizes(self, width: int) -> AttentionSizes | None:
        """Return the attention sizes in a model of `width` features; None for mixers without attention."""
        return None

    def attention_call(self, width: int, place: str) -> AttentionCall:
        """Return how a function of another library can attend for this mixer.

        Args:
            place: path of the mixer in its specification, for the message.

        Raises:
            SpecError: no such function computes this mixer.
        """
        cause = f"{getattr(self, 'kind', 'this mixer')} is not attention to keys and values of its own"
        raise SpecError(place, cause, "use this library's attention")

    def check(self, width: int, causal: bool) -> None:
        """Call `invalid` if this mixer does not fit its stack.

        Args:
            width: features of each vector, D.
            causal: whether no position may depend on later positions.
        """


AnyMixer = Annotated[Mixer, ByKind(Mixer)]
