"""The base of all mixers: attention, recurrences and state spaces."""

from typing import Annotated, ClassVar

from archetype.roles.content import Content
from archetype.roles.parallel import NeedsWholeRows
from archetype.roles.position import AttentionSizes
from archetype.spec.kinds import ByKind, Part

__all__ = ["Mixer"]


class Mixer(Content, Part):
    """Base of all mixers."""

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
