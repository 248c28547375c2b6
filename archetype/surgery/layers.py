"""Which layer of the donor each layer of the new model continues."""

from collections.abc import Sequence

from archetype.errors import SpecError
from archetype.models.stack.spec import StackView


def origins(old: StackView, new: StackView, chosen: Sequence[int] | None = None) -> list[int]:
    """Return the donor's layer of each new layer: those chosen, the same ones, or the donor's spread evenly.

    Raises:
        SpecError: the choice names layers that do not exist, or another number of them.
    """
    count, total = len(old.layers), len(new.layers)
    if chosen is not None:
        if len(chosen) != total:
            cause = f"names {len(chosen)} layers of the donor, and the new model has {total}"
            raise SpecError("--layers", cause, f"name {total} layers")
        if not all(0 <= layer < count for layer in chosen):
            raise SpecError("--layers", f"the donor has layers 0 to {count - 1}", "use these numbers")
        return list(chosen)
    return [layer * count // total for layer in range(total)]
