"""The base of all mixers: attention, recurrences and state spaces."""

from typing import Annotated, ClassVar

from archetype.roles.content import Content
from archetype.roles.parallel import NeedsWholeRows
from archetype.roles.position import AttentionSizes
from archetype.spec.base import Spec, invalid
from archetype.spec.kinds import ByKind, Part

__all__ = ["Mixer"]


class Mixer(Content, Part):
    """Base of all mixers."""

    needs: ClassVar[str] = "module"
    sees_later: ClassVar[bool] = False  # whether a position sees later ones too, where its stack is not causal

    @property
    def separates_documents(self) -> bool:
        """Whether documents that stand in one row can be computed as if each stood alone."""
        return False

    @property
    def keys_follow_length(self) -> bool:
        """Whether what it keeps of a position changes as the sequence grows, so that a text must be read whole."""
        return False

    @property
    def rereads_past(self) -> int | None:
        """Tokens beyond which a text that grows is read anew, for what was kept of it no longer serves; None: never."""
        return None

    @property
    def stack_bias(self) -> tuple[Spec, int] | None:
        """What says a table of positions that all layers of its stack share, and the number of heads.

        Its module is made as `Module(spec, num_heads, d_model, causal)`, and found as `context.position_bias`; its cost
        has `table(num_heads)`.
        """
        return None

    def source(self, layer: int) -> int | None:
        """The earlier layer of which it reads, as the mixer of `layer`, what that one leaves; None where it reads none.

        It is asked for by `context.left_by`, and left by `context.leave`.
        """
        return None

    @property
    def own(self) -> "Mixer":
        """The same as one that reads nothing of another layer."""
        return self

    def check_source(self, source: "Mixer", width: int) -> None:
        """Refuse, by `invalid`, the mixer of another layer as the one of which it reads what that one leaves."""
        if not isinstance(source, type(self)) or source.own != source:
            remedy = f"name a layer of {getattr(self, 'kind', 'this mixer')} that reads none itself"
            invalid("", "the mixer of the layer that it reads leaves nothing for it", remedy)

    @property
    def needs_whole_rows(self) -> NeedsWholeRows | None:
        """Its order, unless it asks `context.rows` for the positions of other processes."""
        cause = f"{getattr(self, 'kind', 'a mixer')} reads rows in order, and parallel.context cuts them"
        return NeedsWholeRows("", cause, "use attention, or make parallel.context 1")

    def attention_sizes(self, width: int) -> AttentionSizes | None:
        """Heads and features of a mixer that attends, in a model of `width` features; None for one that does not."""
        return None

    def check(self, width: int, causal: bool) -> None:
        """Refuse, by `invalid`, a stack in which this mixer cannot stand.

        Args:
            width: features of each vector, D.
            causal: whether no position may depend on a later one.
        """


AnyMixer = Annotated[Mixer, ByKind(Mixer)]
