"""The role of mixers: attention, recurrences and state space models."""

from typing import Annotated, ClassVar

from archetype.roles.content import Content
from archetype.roles.parallel import NeedsWholeRows
from archetype.roles.position import AttentionSizes
from archetype.spec.base import Spec
from archetype.spec.errors import invalid
from archetype.spec.kinds import ByKind, Part

__all__ = ["Mixer"]


class Mixer(Content, Part):
    """Base class of mixers."""

    needs: ClassVar[str] = "module"
    sees_later: ClassVar[bool] = False  # whether positions see later ones in a stack that is not causal

    @property
    def separates_documents(self) -> bool:
        """Whether packed documents are computed independently."""
        return False

    @property
    def keys_follow_length(self) -> bool:
        """Whether its cached keys change as the sequence grows, so that a sequence must be read as a whole."""
        return False

    @property
    def rereads_past(self) -> int | None:
        """Length beyond which a sequence must be prefilled again, as cached values no longer apply; None: never."""
        return None

    @property
    def stack_bias(self) -> tuple[Spec, int] | None:
        """Specification of a position table shared by all layers of the stack, and the number of heads, if any.

        Its module is constructed as `Module(spec, num_heads, d_model, causal)` and available as
        `context.position_bias`; its cost has `table(num_heads)`.
        """
        return None

    def source(self, layer: int) -> int | None:
        """Return the earlier layer whose published values it reads as the mixer of `layer`; None if it reads none.

        Values are published by `context.leave` and read by `context.left_by`.
        """
        return None

    @property
    def own(self) -> "Mixer":
        """The same mixer without reading from another layer."""
        return self

    def check_source(self, source: "Mixer", width: int) -> None:
        """Raise an error by `invalid` if this mixer cannot read what the mixer `source` publishes."""
        if not isinstance(source, type(self)) or source.own != source:
            remedy = f"name a layer of {getattr(self, 'kind', 'this mixer')} that reads no other layer"
            invalid("", "the mixer of the layer that it reads publishes nothing for it", remedy)

    @property
    def needs_whole_rows(self) -> NeedsWholeRows | None:
        """Why context parallelism is impossible; None if it uses `context.rows` to read other processes' positions."""
        cause = f"{getattr(self, 'kind', 'a mixer')} reads sequences in order, and parallel.context splits them"
        return NeedsWholeRows("", cause, "use attention, or make parallel.context 1")

    def attention_sizes(self, width: int) -> AttentionSizes | None:
        """Return the sizes of attention in a model of `width` features; None if it is not attention."""
        return None

    def check(self, width: int, causal: bool) -> None:
        """Raise an error by `invalid` if this mixer does not fit its stack.

        Args:
            width: features of each vector, D.
            causal: whether no position may depend on a later one.
        """


AnyMixer = Annotated[Mixer, ByKind(Mixer)]
