"""What a family is: presets and, where its weights are published, the format they come in. Data, no torch."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from archetype.errors import CheckpointError
from archetype.families.format import Format
from archetype.spec import ModelSpec

TINY = "for tests and first trials: bytes as tokens"


@dataclass(frozen=True)
class Preset:
    """A size by name: how to make its specification, and where its numbers stand."""

    make: Callable[[], ModelSpec]
    source: str


@dataclass(frozen=True)
class Family:
    """Models of one design.

    Attributes:
        name: our name.
        presets: sizes by name.
        published: how its weights are published; None where they are not, or not in a way that Archetype knows.
    """

    name: str
    presets: Mapping[str, Preset]
    published: Format | None = None

    @property
    def format(self) -> Format:
        """Its published format.

        Raises:
            CheckpointError: it has none.
        """
        if self.published is None:
            raise CheckpointError(self.name, "this family has no published format", "export to another family")
        return self.published


def sizes(source: str, make: Callable[..., ModelSpec], table: Mapping[str, Mapping[str, Any]]) -> dict[str, Preset]:
    """Presets out of one source: of each row, `make` with its arguments and its name."""
    return {name: Preset(partial(make, name=name, **row), source) for name, row in table.items()}


def tiny(make: Callable[..., ModelSpec], table: Mapping[str, Mapping[str, Any]]) -> dict[str, Preset]:
    """Presets that train in minutes: `make` with each row's arguments, on short texts of bytes.

    A row names a larger vocabulary where the objective needs ids that are no byte.
    """
    common = {"d_model": 64, "vocab_size": 256, "context_length": 128}
    return sizes(TINY, make, {name: common | dict(row) for name, row in table.items()})
