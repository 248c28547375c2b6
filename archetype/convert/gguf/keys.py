"""Read and write the metadata keys of one GGUF architecture."""

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
from archetype.spec.edit import differences
from archetype.spec.errors import explain

Value = str | int | float | bool
Keys = dict[str, Value]
Shapes = Mapping[str, tuple[int, ...]]
TOKENIZER = "tokenizer."  # prefix of keys that no architecture owns
TABLE = "token_embd.weight"
# Fields that do not change what a trained model computes, and so have no key.
UNSAID = (*TRAINING_ONLY, "balance_loss", "dt_min", "dt_max")


class FileKeys(Config):
    """Keys of one architecture, without its prefix, together with the tensors' shapes.

    Args:
        values: by key.
        place: of the file, for error messages.
        architecture: llama.cpp's name.
        shapes: of the tensors, by name.
        vector: reads the numbers of a small tensor.
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
        """Return an error at a key, named as in the file."""
        return CheckpointError(f"{self.place}: {self.architecture}.{key}", cause, remedy)


@dataclass(frozen=True)
class Shown:
    """Constructor arguments derived from which tensors a file has."""

    arguments: Callable[[Shapes], Values]

    def read(self, config: Config, values: Values) -> Values:
        """Return the arguments."""
        assert isinstance(config, FileKeys)
        return self.arguments(config.shapes)

    def write(self, model: Any) -> dict[str, Any]:
        """Write no key, since the tensors say it."""
        return {}


def _accept(model: ModelSpec) -> None:
    """Refuse nothing."""


@dataclass(frozen=True)
class Gguf:
    """Description of an architecture of llama.cpp, for reading and writing.

    Attributes:
        architecture: llama.cpp's name.
        table: keys without the architecture's prefix, and the constructor that they call.
        rules: map tensors of the file to parameters of the model.
        changes: conversions of tensors whose values differ in the file.
        check: refuses what llama.cpp does not compute.
        computed: replaces the specification by an equivalent one that llama.cpp computes.
    """

    architecture: str
    table: ConfigTable
    rules: tuple[Rule, ...]
    changes: tuple[Change, ...] = ()
    check: Callable[[ModelSpec], None] = _accept
    computed: Callable[[Any], ModelSpec] = lambda model: model

    def change(self, name: str) -> Change | None:
        """Return the conversion of a tensor that a rule names; None if its values do not change."""
        return next((change for change in self.changes if re.fullmatch(change.tensors, name)), None)

    def metadata(self, model: ModelSpec, shapes: Callable[[], Shapes], vector: Callable[[str], list[float]]) -> Keys:
        """Return all keys of a model, after checking that reading them gives the same model.

        Args:
            shapes: returns the shapes of the file's tensors; called once the model has passed the checks.
            vector: reads the numbers of a small tensor.

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
        """Return the specification that the keys of a file describe.

        Raises:
            CheckpointError: names the key that is missing, wrong or unknown.
        """
        try:
            model = self.table.read(keys)
        except ValidationError as error:  # for example sizes that contradict each other
            raise explain(error, every=False).at(keys.place) from None
        keys.finish(frozenset())
        return model


def _same(value: Any, other: Any) -> bool:
    numbers = isinstance(value, float) and isinstance(other, float)
    return numbers and bool(np.float32(value) == np.float32(other))


def unsupported(place: str, what: str, remedy: str = "export with --format hf") -> CheckpointError:
    """Return the error for a field that llama.cpp does not compute."""
    return CheckpointError(place, f"llama.cpp does not know {what}", remedy)


def check_activations(layers: Iterable[Block], known: tuple[Activation, ...], place: str = "layers[{i}]") -> None:
    """Refuse feed-forward layers whose activation is not in `known`."""
    for index, block in enumerate(layers):
        part = block.feedforward
        network = part.expert if isinstance(part, MixtureOfExperts) else part
        if isinstance(network, MLP | GatedMLP) and network.activation not in known:
            names = enumeration((repr(activation.kind) for activation in known), "or")
            field = f"{place.replace('{i}', str(index))}.feedforward.activation"
            raise unsupported(field, f"{network.activation.kind!r} here, only {names}")
