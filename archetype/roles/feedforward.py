"""The role of the part of a block that works on each position alone."""

from typing import Annotated

from archetype.roles.parallel import InLayout
from archetype.spec.kinds import ByKind, Part

__all__ = ["FeedForward"]


class FeedForward(InLayout, Part):
    """Base of all feed-forward parts."""


AnyFeedForward = Annotated[FeedForward, ByKind(FeedForward)]
