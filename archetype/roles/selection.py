"""The role of key selections: content-based choice of the keys that each query attends to."""

from typing import Annotated, ClassVar

from archetype.roles.parallel import NeedsWholeRows
from archetype.roles.position import AttentionSizes
from archetype.spec.errors import invalid
from archetype.spec.kinds import ByKind, Part


class KeySelection(Part):
    """Base class of key selections, which choose keys by content (a pattern chooses them by position).

    Its module is constructed as `Module(spec, place, query_features)` and derived from
    `archetype.nn.selection.KeySelector`, which documents its call, its state and its training loss.
    """

    needs: ClassVar[str] = "module"

    @property
    def num_selections(self) -> int:
        """Number of selections, each for an equal share of the attention's heads."""
        return 1

    @property
    def reads_heads(self) -> bool:
        """Whether the attention's queries and keys select, by the module's `choose(q, k, allowed, context)`."""
        return False

    def check_heads(self, sizes: AttentionSizes) -> None:
        """Call `invalid` if this selection does not fit the heads of its attention."""

    def sees_all(self, length: int) -> bool:
        """Return whether every key of a sequence of this length is selected."""
        return False

    @property
    def adds_to_loss(self) -> bool:
        return False

    def source(self, layer: int) -> int | None:
        """Return the index of the earlier layer whose selection is used in `layer`, or None.

        A selection publishes its choice by `context.leave`, and another layer reads it by `context.left_by`.
        """
        return None

    @property
    def own(self) -> "KeySelection":
        """Copy of this selection that does not read another layer."""
        return self

    def check_source(self, source: "KeySelection | None") -> None:
        """Call `invalid` if this selection cannot use that of the layer that it reads."""
        if source is None or source.own != source:
            remedy = "name a layer whose index selects keys itself"
            invalid("", "the referenced layer does not select keys", remedy)

    @property
    def needs_whole_rows(self) -> NeedsWholeRows:
        cause = "selects among the keys of a whole sequence, and parallel.context splits it"
        return NeedsWholeRows("index", cause, "remove it, or set parallel.context to 1")


AnyKeySelection = Annotated[KeySelection, ByKind(KeySelection)]
