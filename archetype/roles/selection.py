"""The role of key selections: content-based choice of the keys that each query attends to."""

from typing import Annotated, ClassVar

from archetype.roles.parallel import NeedsWholeRows
from archetype.spec.kinds import ByKind, Part

__all__ = ["KeySelection"]


class KeySelection(Part):
    """Base class of key selections, which choose keys by content (a pattern chooses them by position).

    Its module is constructed as `Module(spec, place, query_features)` and derived from
    `archetype.nn.selection.KeySelector`, which documents its call, its state and its training loss.
    """

    needs: ClassVar[str] = "module"

    @property
    def adds_to_loss(self) -> bool:
        return False

    @property
    def needs_whole_rows(self) -> NeedsWholeRows:
        cause = "selects among the keys of a whole sequence, and parallel.context splits it"
        return NeedsWholeRows("index", cause, "remove it, or set parallel.context to 1")


AnyKeySelection = Annotated[KeySelection, ByKind(KeySelection)]
