"""Families: presets and, for published weights, the format. Contains only data and no torch."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any

from archetype.errors import CheckpointError, one_line
from archetype.families.format import Format
from archetype.models.spec import ModelSpec
from archetype.table import Table

SHOWN = 6  # items of a list shown in one line
TINY = "for tests and first trials: bytes as tokens"


@dataclass(frozen=True)
class Preset:
    """Named size in a family.

    Attributes:
        make: builds the specification.
        source: source of the sizes.
        weights: dtypes of the published weights, by patterns of module names. The first match counts (empty: unknown).
    """

    make: Callable[[], ModelSpec]
    source: str
    weights: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class InferenceReport:
    """Report of the inference of an unregistered family.

    Attributes:
        recognized: keys of config.json that were used.
        tensors: number of tensors that became parameters.
        assumed: assumptions that neither keys nor tensors determine, as path=value with the reason.
        unknown: keys that were not understood, with their values.
        unread: keys that the family's class in transformers never reads.
        left_out: tensors that a text decoder does not use.
        alternatives: other possible values for each assumed layout, by name.
        proof: reference with which the outputs agree; empty if there is none.
    """

    recognized: tuple[str, ...]
    tensors: int
    assumed: tuple[str, ...]
    unknown: tuple[str, ...]
    unread: tuple[str, ...]
    left_out: tuple[str, ...]
    alternatives: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    proof: str = ""

    def summary(self, name: str) -> str:
        text = f"{name} is not a registered family; inferred from {len(self.recognized)} keys, {self.tensors} tensors"
        text += f"; {self.proof or f'not proved: {self._what_counts()}'}"
        for words, items, shown in (
            ("assumed", () if self.proof else self.assumed, len(self.assumed)),
            ("keys not understood", self.unknown, SHOWN),
            ("keys that its class never reads", self.unread, SHOWN),
        ):
            more = f" and {len(items) - shown} more" if len(items) > shown else ""
            text += f"; {words}: {', '.join(items[:shown])}{more}" if items else ""
        if self.left_out:
            text += f"; {len(self.left_out)} tensors left out, such as {self.left_out[0]}"
        open_ends = self.unknown or (self.assumed and not self.proof)
        return one_line(f"{text}; correct what is wrong with --set NAME=VALUE" if open_ends else text)

    def _what_counts(self) -> str:
        # layouts change neither sizes nor costs; other assumptions may
        names = [item.partition("=")[0] for item in self.assumed]
        fields = [name for name in names if name not in self.alternatives]
        return f"sizes and costs depend on {', '.join(fields) if fields else 'nothing that is assumed'}"

    def table(self, name: str) -> str:
        lines = (f"  {kind:<14}  {one_line(item)}" for kind, item in self._rows())
        return "\n".join([f"{one_line(name)} is not a registered family", *lines])

    def _repr_html_(self) -> str:
        return Table(("how", "what"), self._rows(), text_columns=2).html()

    def _rows(self) -> list[tuple[str, str]]:
        rows = [("proved" if self.proof else "not proved", self.proof or self._what_counts())]
        rows += [("recognized", key) for key in self.recognized]
        rows += [("recognized", f"{self.tensors} tensors have a place")]
        rows += [("assumed", item) for item in self.assumed]
        rows += [("not understood", item) for item in self.unknown]
        rows += [("never read", item) for item in self.unread]
        return rows + [("left out", item) for item in self.left_out]


@dataclass(frozen=True)
class Family:
    """Models with the same design.

    Attributes:
        published: format of the weights; None if there are no published weights in a known format.
        reading: inference report, if the family was inferred from a model's files.
    """

    name: str
    presets: Mapping[str, Preset]
    published: Format | None = None
    reading: InferenceReport | None = None

    @property
    def decodes(self) -> bool:
        return self.format.decodes

    @property
    def format(self) -> Format:
        # such as families known from a paper only
        if self.published is None:
            raise CheckpointError(self.name, "this family has no published format", "export to another family")
        return self.published


def presets(
    source: str,
    make: Callable[..., ModelSpec],
    table: Mapping[str, Mapping[str, Any]],
    weights: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Preset]:
    """Build presets from a single source.

    Args:
        make: builds the specification from a preset's name and arguments.
        table: arguments by preset name.
        weights: dtypes of the published weights, by patterns of module names.
    """
    return {name: Preset(partial(make, name=name, **row), source, weights) for name, row in table.items()}


def tiny(make: Callable[..., ModelSpec], table: Mapping[str, Mapping[str, Any]]) -> dict[str, Preset]:
    """Build presets that train in minutes on short byte sequences. The arguments are the same as for `presets`.

    A row overrides the vocabulary size if its objective needs more ids than the 256 bytes.
    """
    common = {"d_model": 64, "vocab_size": 256, "context_length": 128}
    return presets(TINY, make, {name: common | dict(row) for name, row in table.items()})
