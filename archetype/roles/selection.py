"""The role of key selections: which keys each query of an attention sees, chosen by what its tokens are."""

from typing import Annotated, ClassVar

from archetype.roles.parallel import NeedsWholeRows
from archetype.spec.kinds import ByKind, Part

__all__ = ["KeySelection"]


class KeySelection(Part):
    """Base of key selections; a pattern chooses keys by their positions alone.

    Its module is made as `Module(spec, place, query_features)` and derived from `archetype.nn.selection.KeySelector`,
    which says how it is called, what it may keep of each position, and how it may learn from the attention.
    """

    needs: ClassVar[str] = "module"

    @property
    def adds_to_loss(self) -> bool:
        """Whether it learns by a loss of its own."""
        return False

    @property
    def needs_whole_rows(self) -> NeedsWholeRows:
        """Why processes cannot share the positions of a row."""
        cause = "chooses among the keys of a whole row, and parallel.context cuts it"
        return NeedsWholeRows("index", cause, "leave it out, or make parallel.context 1")


AnyKeySelection = Annotated[KeySelection, ByKind(KeySelection)]
