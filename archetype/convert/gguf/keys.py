"""Read and write the metadata keys of one GGUF architecture."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
from pydantic import ValidationError

from archetype.convert.gguf.changes import UNWRITTEN, AnyChange, Change
from archetype.errors import CheckpointError, enumeration, shorten
from archetype.families.config import Config
from archetype.families.format import SHOWN, TRAINING_ONLY, without_fields
from archetype.families.keys import Values, wrong_kind
from archetype.families.rules import Rule
from archetype.models.block.spec import Block
from archetype.models.decoder.spec import Decoder
from archetype.models.spec import ModelSpec
from archetype.parts.experts.spec import MixtureOfExperts
from archetype.parts.feedforward.spec import MLP, GatedMLP
from archetype.roles.activation import Activation
from archetype.spec.base import MAX_LENGTH, MAX_WIDE
from archetype.spec.edit import differences
from archetype.spec.errors import explain


class Wide(list[int]):
    """List of integers that a file stores in 64 bits."""


Value = str | int | float | bool | list[int] | list[float] | list[bool]
Keys = dict[str, Value]
Shapes = Mapping[str, tuple[int, ...]]
OUTSIDE = ("tokenizer.", "diffusion.", "xielu.")  # prefixes of keys without an architecture's name
TABLE = "token_embd.weight"
INDEX_HEADS = {"attention.indexer.head_count": "num_heads", "attention.indexer.key_length": "head_dim"}
# Fields without a key, since they do not change what a trained model computes.
UNSAID = (*TRAINING_ONLY, "balance_loss", "dt_min", "dt_max", "chunk_size")


class FileKeys(Config):
    """Metadata keys of one architecture, without its prefix, and the shapes of the file's tensors.

    Args:
        place: path of the file, for error messages.
        architecture: name in llama.cpp.
        vector: reads a small tensor.
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
            # not every architecture has the key, but every file has the table
            self.values.setdefault("vocab_size", shapes[TABLE][0])

    def sizes(self) -> dict[str, Any]:
        """Return the sizes that every model has."""
        return {
            "vocab_size": self.size("vocab_size", most=MAX_WIDE),
            "context_length": self.size("context_length", most=MAX_LENGTH),
            "d_model": self.size("embedding_length"),
        }

    def fields(self, names: Mapping[str, str]) -> dict[str, int]:
        """Return the fields of a part that are sizes, given their names by key."""
        return {field: self.size(key) for key, field in names.items()}

    def error(self, key: str, cause: str, remedy: str = "") -> CheckpointError:
        """Return an error for a key, with the architecture's prefix."""
        return CheckpointError(f"{self.place}: {self.architecture}.{key}", cause, remedy)


@dataclass(frozen=True)
class Layer:
    """One layer of a file: its tensors, and its values of keys, which may be per-layer lists."""

    keys: FileKeys
    index: int

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Return the shape of a tensor of this layer; None if the file does not have it."""
        return self.keys.shapes.get(f"blk.{self.index}.{name}")

    def has(self, name: str) -> bool:
        return self.shape(name) is not None

    def count(self, key: str, default: int | None = None) -> int:
        """Return this layer's value of a key as an integer of at least 0."""
        value = self.keys.get(key, default)
        value = value[self.index] if isinstance(value, list) and len(value) > self.index else value
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_WIDE:
            raise self.keys.error(key, f"{value!r:.80} is not a number of layer {self.index}", "fix the file")
        return value


Has = Literal["no", "any", "all"]  # whether no layer has something, the tensors show it, or every layer has it


def has(has: Has, shown: bool) -> bool:
    return shown if has == "any" else has == "all"


@dataclass(frozen=True)
class Shown:
    """Constructor arguments that follow from the tensors of a file."""

    arguments: Callable[[Shapes], Values]

    def read(self, config: Config, values: Values) -> Values:
        """Return the constructor arguments that follow from the file's tensors."""
        assert isinstance(config, FileKeys)
        return self.arguments(config.shapes)

    def write(self, model: Any) -> dict[str, Any]:
        """Return no keys, because the tensors already determine the arguments."""
        return {}


class Table(Protocol):
    """Keys of an architecture, read and written."""

    def read(self, config: Config) -> ModelSpec: ...

    def write(self, model: ModelSpec) -> dict[str, Any]: ...

    def misfits(self, model: ModelSpec) -> list[CheckpointError]: ...


class DecoderTable:
    """Base class of tables whose models are decoders."""

    def misfits(self, model: ModelSpec) -> list[CheckpointError]:
        return [] if isinstance(model, Decoder) else [wrong_kind(Decoder, model, "kind")]


def written_sizes(model: Any) -> Keys:
    """Return the keys of the sizes that every model has."""
    return {
        "context_length": model.context_length,
        "embedding_length": model.d_model,
        "block_count": model.num_layers,
        "vocab_size": model.vocab_size,
    }


def written_fields(part: Any, names: Mapping[str, str]) -> Keys:
    """Return the keys of a part's fields, which `FileKeys.fields` reads."""
    return {key: getattr(part, field) for key, field in names.items()}


def _accept(model: ModelSpec) -> None:
    """Accept every model."""


@dataclass(frozen=True)
class Gguf:
    """llama.cpp architecture, for reading and writing.

    Attributes:
        architecture: name in llama.cpp.
        table: keys without the architecture's prefix, and the constructor that takes their values.
        rules: rules that map tensors in the file to parameters of the model, or a function of the specification.
        changes: conversions of tensors that the file stores differently.
        check: refuses what llama.cpp does not support.
        computed: returns an equivalent specification that llama.cpp supports.
        numbers: keys that hold a parameter of each layer, with its shape. Rules name it `key.layer`.
        constants: returns the vectors of the file that hold no parameters, by name.
    """

    architecture: str
    table: Table
    rules: tuple[Rule, ...] | Callable[[ModelSpec], tuple[Rule, ...]]
    changes: tuple[AnyChange, ...] = ()
    check: Callable[[ModelSpec], None] = _accept
    computed: Callable[[Any], ModelSpec] = lambda model: model
    numbers: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    constants: Callable[[Any], Mapping[str, list[float]]] = lambda model: {}

    def rules_of(self, model: ModelSpec) -> tuple[Rule, ...]:
        """Return the rules that map tensors in the file to parameters of a model."""
        return self.rules(model) if callable(self.rules) else self.rules

    def change(self, name: str) -> Change | None:
        """Return the conversion of a tensor that a rule names; None if the tensor is stored unchanged."""
        if name.rpartition(".")[0] in self.numbers:
            return UNWRITTEN
        return next((change.at(name) for change in self.changes if re.fullmatch(change.tensors, name)), None)

    def metadata(self, model: ModelSpec, shapes: Callable[[], Shapes], vector: Callable[[str], list[float]]) -> Keys:
        """Return all keys of a model, after checking that they read back as the same model.

        Args:
            shapes: returns the shapes of the file's tensors. It is called after the model has passed the checks.
            vector: reads a small tensor.

        Raises:
            CheckpointError: llama.cpp does not support a field.
        """
        if misfits := self.table.misfits(model):
            raise misfits[0]
        self.check(model)
        computed = self.computed(model)
        keys = self.table.write(computed)
        # A field that has no key would silently get llama.cpp's value: read the keys back, and refuse what differs.
        read = self.read(FileKeys(keys, "--format gguf", self.architecture, shapes(), vector))
        for path, value, other in differences(without_fields(computed, UNSAID), without_fields(read, UNSAID)):
            if not _same(value, other):
                ours, theirs = (shorten(repr(item), SHOWN) for item in (value, other))
                raise unsupported(path, f"{ours} in {self.architecture}, only {theirs}")
        return keys

    def read(self, keys: FileKeys) -> ModelSpec:
        """Return the specification that the keys of a file describe.

        Raises:
            CheckpointError: a key is missing, wrong or unknown.
        """
        try:
            model = self.table.read(keys)
        except ValidationError as error:  # for example sizes that contradict each other
            raise explain(error, every=False).at(keys.place) from None
        keys.finish(frozenset())
        return model


def _same(value: Any, other: Any) -> bool:
    are_floats = isinstance(value, float) and isinstance(other, float)  # GGUF stores float32
    return are_floats and bool(np.float32(value) == np.float32(other))


def unsupported(field: str, feature: str, remedy: str = "export with --format hf") -> CheckpointError:
    """Return the error for a field that llama.cpp does not support."""
    return CheckpointError(field, f"llama.cpp does not support {feature}", remedy)


def check_activations(layers: Iterable[Block], known: tuple[Activation, ...], path: str = "layers[{i}]") -> None:
    """Refuse feed-forward layers whose activation is not in `known`."""
    kinds = {activation.kind for activation in known}
    for index, block in enumerate(layers):
        part = block.feedforward
        network = part.expert if isinstance(part, MixtureOfExperts) else part
        if isinstance(network, MLP | GatedMLP) and network.activation.kind not in kinds:
            names = enumeration((repr(kind) for kind in dict.fromkeys(a.kind for a in known)), "or")
            field = f"{path.replace('{i}', str(index))}.feedforward.activation"
            raise unsupported(field, f"{network.activation.kind!r} here, only {names}")
