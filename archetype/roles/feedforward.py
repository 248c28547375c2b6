"""The role of the part of a block that works on each position alone."""

from typing import Annotated, ClassVar

from archetype.roles.parallel import InLayout
from archetype.spec.kinds import ByKind, Part

__all__ = ["FeedForward"]


class FeedForward(InLayout, Part):
    """Base of all feed-forward parts."""

    needs: ClassVar[str] = "module"


AnyFeedForward = Annotated[FeedForward, ByKind(FeedForward)]
