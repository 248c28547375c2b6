"""The keys of one architecture in GGUF, the format of llama.cpp: one table, read and written."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic import ValidationError

from archetype.convert.gguf.changes import Change
from archetype.errors import CheckpointError, enumeration, shorten
from archetype.families.config import Config
from archetype.families.format import SHOWN, TRAINING_ONLY, without_fields
from archetype.families.keys import ConfigTable, Values
from archetype.families.rules import Rule
from archetype.models.block.spec import Block
from archetype.models.spec import ModelSpec
from archetype.parts.experts.spec import MixtureOfExperts
from archetype.parts.feedforward.spec import MLP, GatedMLP
from archetype.roles.activation import Activation
from archetype.spec.base import explain
from archetype.spec.edit import differences

Value = str | int | float | bool
Keys = dict[str, Value]
Shapes = Mapping[str, tuple[int, ...]]
TOKENIZER = "tokenizer."  # what keys begin with that are no architecture's own
TABLE = "token_embd.weight"
# Fields that a finished model does not compute with, which no key says.
UNSAID = (*TRAINING_ONLY, "balance_loss", "dt_min", "dt_max")


class FileKeys(Config):
    """The keys of a file that an architecture has for its own, without its name before them, and the tensors' shapes.

    Args:
        values: by key.
        place: of the file, for errors.
        architecture: as llama.cpp calls it.
        shapes: of the tensors, by name.
        vector: gives the numbers of a small tensor.
    """

    def __init__(
        self,
        values: Mapping[str, Any],
        place: str,
        architecture: str,
        shapes: Shapes,
        vector: Callable[[str], list[float]],
    ) -> None:
        super().__init__(dict(values), place)
        self.architecture, self.shapes, self.vector = architecture, shapes, vector
        self.used_tensors: set[str] = set()
        if TABLE in shapes:
            self.values.setdefault("vocab_size", shapes[TABLE][0])

    def error(self, key: str, cause: str, remedy: str = "") -> CheckpointError:
        """An error at this key, as the file calls it."""
        return CheckpointError(f"{self.place}: {self.architecture}.{key}", cause, remedy)


@dataclass(frozen=True)
class Shown:
    """Arguments that a file's tensors give by being there, and no key."""

    arguments: Callable[[Shapes], Values]

    def read(self, config: Config, values: Values) -> Values:
        """The arguments."""
        assert isinstance(config, FileKeys)
        return self.arguments(config.shapes)

    def write(self, model: Any) -> dict[str, Any]:
        """No key: the tensors are written anyway."""
        return {}


def _accept(model: ModelSpec) -> None:
    """Refuse nothing."""


@dataclass(frozen=True)
class Gguf:
    """An architecture of llama.cpp: what it asks of a file, in both directions.

    Attributes:
        architecture: what llama.cpp calls it.
        table: keys without the architecture's name before them, and the constructor of what they describe.
        rules: tensors of the file and parameters of the model.
        changes: tensors whose numbers the file keeps otherwise than the model.
        check: refuses what llama.cpp does not compute, in words of its own.
        computed: the specification as llama.cpp computes it, where it need not be the one that is written.
    """

    architecture: str
    table: ConfigTable
    rules: tuple[Rule, ...]
    changes: tuple[Change, ...] = ()
    check: Callable[[ModelSpec], None] = _accept
    computed: Callable[[Any], ModelSpec] = lambda model: model

    def change(self, name: str) -> Change | None:
        """How the file keeps a tensor that the rules name; None where it is as in the model."""
        return next((change for change in self.changes if re.fullmatch(change.tensors, name)), None)

    def metadata(self, model: ModelSpec, shapes: Callable[[], Shapes], vector: Callable[[str], list[float]]) -> Keys:
        """All keys of a model, of which it is proved that they say what it computes.

        Args:
            model: to be written.
            shapes: gives those of the file's tensors, once nothing is refused.
            vector: gives the numbers of a small one.

        Raises:
            CheckpointError: names the field that llama.cpp does not compute.
        """
        if misfits := self.table.misfits(model):
            raise misfits[0]
        self.check(model)
        computed = self.computed(model)
        keys = self.table.write(computed)
        read = self.read(FileKeys(keys, "--format gguf", self.architecture, shapes(), vector))
        for path, value, other in differences(without_fields(computed, UNSAID), without_fields(read, UNSAID)):
            if not _same(value, other):
                ours, theirs = (shorten(repr(item), SHOWN) for item in (value, other))
                raise unsupported(path, f"{ours} in {self.architecture}, only {theirs}")
        return keys

    def read(self, keys: FileKeys) -> ModelSpec:
        """The specification that a file describes.

        Raises:
            CheckpointError: names the key that is missing, wrong or not understood.
        """
        try:
            model = self.table.read(keys)
        except ValidationError as error:  # sizes that do not fit each other
            raise explain(error, every=False).at(keys.place) from None
        keys.finish(frozenset())
        return model


def _same(value: Any, other: Any) -> bool:
    """Whether two values are one number of 32 bits, as files keep them."""
    numbers = isinstance(value, float) and isinstance(other, float)
    return numbers and bool(np.float32(value) == np.float32(other))


def unsupported(place: str, what: str, remedy: str = "export with --format hf") -> CheckpointError:
    """The error for a field that llama.cpp does not compute."""
    return CheckpointError(place, f"llama.cpp does not know {what}", remedy)


def check_activations(layers: Iterable[Block], known: tuple[Activation, ...], place: str = "layers[{i}]") -> None:
    """Refuse feed-forward parts with an activation that is none of the known ones."""
    for index, block in enumerate(layers):
        part = block.feedforward
        network = part.expert if isinstance(part, MixtureOfExperts) else part
        if isinstance(network, MLP | GatedMLP) and network.activation not in known:
            names = enumeration((repr(activation.kind) for activation in known), "or")
            field = f"{place.replace('{i}', str(index))}.feedforward.activation"
            raise unsupported(field, f"{network.activation.kind!r} here, only {names}")
