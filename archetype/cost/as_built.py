"""How the costs of models with parts of extensions are compared with the modules that are built."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeVar

Block = TypeVar("Block")  # the cost of a block


class AsBuilt(Protocol):
    """Comparison of the costs of models that contain parts of extensions with the modules that are built."""

    def layers(
        self, stack: Any, layers: Sequence[int], count: Callable[[], Any]
    ) -> Iterable[tuple[Sequence[int], Any]]:
        """Divide layers with equal specifications into groups whose built modules are equal.

        Returns:
            (layer indices, cost of one of these layers, as returned by `count`) for each group.
        """

    def check(self, cost: Any) -> None:
        """Compare a `ModelCost` with the modules of the model.

        Raises:
            SpecError: the parameters of a part differ from those that its cost counts.
        """


_as_built: AsBuilt | None = None


def count_as_built(counter: AsBuilt | None) -> None:
    global _as_built
    _as_built = counter


def layers_as_built(
    stack: Any, layers: Sequence[int], count: Callable[[], Block]
) -> Iterable[tuple[Sequence[int], Block]]:
    # a single group without extensions
    return [(layers, count())] if _as_built is None else _as_built.layers(stack, layers, count)


def check_as_built(cost: Any) -> None:
    if _as_built is not None:
        _as_built.check(cost)
