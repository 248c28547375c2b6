"""Base class of views, which are shown or saved as a table, plain data, tensors or a figure."""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from archetype.errors import SpecError
from archetype.io import atomic
from archetype.io.tensors import save
from archetype.table import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg", ".json", ".safetensors")


class View(ABC):
    """View of a forward pass. Notebooks show its table."""

    @abstractmethod
    def table(self) -> Table:
        """Return the view as a table."""

    @abstractmethod
    def record(self) -> dict[str, Any]:
        """Return the view as plain data."""

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """Return the view as tensors by name."""

    @abstractmethod
    def draw(self) -> "Figure":
        """Return the view as a figure."""

    def save(self, file: str | Path) -> None:
        """Write the view to a file as a figure (.png, .svg), data (.json) or tensors (.safetensors).

        Raises:
            ArchetypeError: the suffix is unknown, or the file cannot be written.
        """
        file = Path(file)
        match file.suffix:
            case ".png" | ".svg":
                save_figure(self.draw(), file)
            case ".json":
                atomic.write_json(file, self.record())
            case ".safetensors":
                save(file, {name: x.clone() for name, x in self.tensors().items()})  # tensors may share memory
            case _:
                raise SpecError(str(file), "has an unknown suffix", f"use one of {', '.join(SUFFIXES)}")

    def __str__(self) -> str:
        return str(self.table())

    def _repr_html_(self) -> str:
        return self.table().html()


def save_figure(figure: "Figure", file: Path) -> None:
    """Save a figure atomically. Characters missing in the font are drawn as boxes."""
    from matplotlib import rc_context

    kind = file.suffix[1:]
    # without date and random ids, equal figures give equal files
    metadata: dict[str, Any] = {"Date": None} if kind == "svg" else {}
    write: Callable[[Path], None] = lambda temporary: figure.savefig(temporary, format=kind, metadata=metadata)  # noqa: E731
    with warnings.catch_warnings(), rc_context({"svg.hashsalt": "archetype"}):
        warnings.simplefilter("ignore")
        atomic.write_with(file, write)


def rounded(tensor: Tensor) -> Any:
    """Convert a tensor to nested lists, rounded to 5 significant digits. NaN and infinities become None."""
    return _rounded(tensor.detach().cpu().double().tolist())


def _rounded(value: Any) -> Any:
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return float(f"{value:.5g}") if value == value and abs(value) != float("inf") else None
