"""The role of the part of a block that works on each position alone."""

from typing import Annotated, ClassVar

from archetype.roles.content import Content
from archetype.roles.parallel import NeedsWholeRows
from archetype.spec.kinds import ByKind, Part

__all__ = ["FeedForward"]


class FeedForward(Content, Part):
    """Base of all feed-forward parts."""

    needs: ClassVar[str] = "module"

    @property
    def separates_documents(self) -> bool:
        """Whether documents in one row are computed as if each stood alone; not where it keeps a state."""
        return True

    @property
    def needs_whole_rows(self) -> NeedsWholeRows | None:
        """Its order, where it keeps a state."""
        if self.separates_documents:
            return None
        cause = f"{getattr(self, 'kind', 'a part')} reads rows in order, and parallel.context cuts them"
        return NeedsWholeRows("", cause, "use a part without a state, or make parallel.context 1")


AnyFeedForward = Annotated[FeedForward, ByKind(FeedForward)]
