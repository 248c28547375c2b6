"""Keys of a published config.json, with one table per family for reading and writing.

A row has a key, the argument of the family's constructor that the key sets, and the path of the value in a
specification. Reading collects the arguments and calls the constructor. Writing uses the same rows.
"""

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

from archetype.errors import CheckpointError
from archetype.families.config import Config, activation_name
from archetype.models.decoder.spec import Decoder
from archetype.models.spec import ModelSpec
from archetype.parts.feedforward.spec import NoFeedForward
from archetype.spec.base import MAX_LENGTH, MAX_WIDE, Spec
from archetype.spec.repeats import MAX_LAYERS

Values = dict[str, Any]  # arguments of a constructor, by name
Check = Callable[..., Any]  # a method of Config: (config, key, default) -> value
# Such as block.mixer.num_heads, where `block` is the first layer and `last` the last; or a function of the model.
Path = str | Callable[[Any], Any]
UNSET: Any = object()


def value_at(model: Any, path: Path) -> Any:
    """Return the value at a path of a specification; `UNSET` if the field does not exist."""
    if callable(path):
        return path(model)
    value = model
    for name in path.split("."):
        if name in ("block", "last"):
            layers = getattr(value, "stacks", (value,))[0].layers
            value = layers[0 if name == "block" else -1]
        else:
            value = getattr(value, name, UNSET)
    return value


def width(path: str) -> Callable[[Any], Any]:
    """Return a function from a specification to the inner width of a feed-forward part; `UNSET` without such a part."""

    def inner_width(model: Any) -> Any:
        part = value_at(model, path)
        return part if part is UNSET else int(part.width(model.d_model))

    return inner_width


def head_sizes(name: str) -> Path:
    return lambda model: getattr(value_at(model, "block.mixer").sizes(model.d_model), name)


class Argument(NamedTuple):
    """Check of a constructor argument, path of its value in a specification, and encoding of the value in files."""

    check: Check
    path: Path
    encode: Callable[[Any], Any] | None = None


check_width = partial(Config.size, most=MAX_WIDE)
check_num_layers = partial(Config.size, most=MAX_LAYERS)
check_length = partial(Config.size, most=MAX_LENGTH)

# Arguments of several constructors.
ARGUMENTS = {
    "vocab_size": Argument(check_width, "vocab_size"),
    "context_length": Argument(check_length, "context_length"),
    "d_model": Argument(Config.size, "d_model"),
    "num_layers": Argument(check_num_layers, "num_layers"),
    "num_heads": Argument(Config.size, "block.mixer.num_heads"),
    "num_kv_heads": Argument(Config.size, head_sizes("num_kv_heads")),
    "head_dim": Argument(Config.size, head_sizes("head_dim")),
    "d_ff": Argument(check_width, width("block.feedforward")),
    "activation": Argument(Config.activation, "block.feedforward.activation", activation_name),
    "eps": Argument(Config.positive, "final_norm.eps"),
    "tied": Argument(Config.flag, "head.tied"),
    "attention_bias": Argument(Config.flag, "block.mixer.bias.q"),
    "mlp_bias": Argument(Config.flag, "block.feedforward.bias"),
    "qkv_bias": Argument(Config.flag, "block.mixer.bias.q"),
    "dropout": Argument(Config.rate, "block.dropout"),
    "attention_dropout": Argument(Config.rate, "block.mixer.dropout"),
    "num_token_types": Argument(Config.size, "embedding.num_token_types"),
    "std": Argument(Config.positive, "initialization.std"),
    "num_experts": Argument(Config.size, "last.feedforward.num_experts"),
    "experts_per_token": Argument(Config.size, "last.feedforward.experts_per_token"),
    "expert_d_ff": Argument(check_width, width("last.feedforward.expert")),
    "balance_loss": Argument(Config.number, "last.feedforward.balance_loss"),
    "attention_softcap": Argument(Config.optional_positive, "block.mixer.softcap"),
    "softcap": Argument(Config.optional_positive, "head.softcap"),
    "decoder_d_ff": Argument(check_width, width("decoder.block.feedforward")),
    "num_decoder_layers": Argument(check_num_layers, lambda model: len(model.decoder.layers)),
}


class Row(Protocol):
    """Row of a table, which reads arguments from the keys of a file and writes keys for a specification."""

    def read(self, config: Config, values: Values) -> Values:
        """Return the arguments that the row reads, given the arguments of earlier rows in `values`."""

    def write(self, model: Any) -> dict[str, Any]:
        """Return the keys that the row writes for a specification."""


@dataclass(frozen=True)
class Key:
    """Key, and the constructor argument that it sets.

    Attributes:
        names: spellings of the key, with one value if a file has several of them.
        argument: name of the constructor argument.
        default: default in the transformers class, or a function of the arguments read before.
        check: check of the value (default: as in `ARGUMENTS`, or a size).
        path: path of the value (default: as in `ARGUMENTS`, or in the first layer's mixer).
        written: spelling to write (default: the first spelling).
        null: value that null stands for (default: `default`).
        decode: (value, arguments read before) -> argument (default: the value).
        encode: value in the specification -> value in the file (default: as in `ARGUMENTS`).
    """

    names: str | tuple[str, ...]
    argument: str
    default: Any = None
    _: KW_ONLY
    check: Check | None = None
    path: Path | None = None
    written: str | None = None
    null: Any = UNSET
    decode: Callable[[Any, Values], Any] | None = None
    encode: Callable[[Any], Any] | None = None

    @property
    def spellings(self) -> tuple[str, ...]:
        return (self.names,) if isinstance(self.names, str) else self.names

    @property
    def shared(self) -> Argument:
        return ARGUMENTS.get(self.argument, Argument(Config.size, f"block.mixer.{self.argument}"))

    def read(self, config: Config, values: Values) -> Values:
        default, first = self.default, self.spellings[0]
        if self.null is not UNSET and first in config.values and config.values[first] is None:
            default = self.null
        value, check = default(values) if callable(default) else default, self.check or self.shared.check
        stated = [name for name in self.spellings if config.values.get(name) is not None]
        if other := next((name for name in stated if config.values[name] != config.values[stated[0]]), None):
            raise config.error(other, f"contradicts {stated[0]}", "remove one of them")
        # each spelling is the default of the one before it
        for name in reversed(self.spellings):
            value = check(config, name, value)
        return {self.argument: value if self.decode is None else self.decode(value, values)}

    def write(self, model: Any) -> dict[str, Any]:
        """Return {key: value}. Without the field, return the default, or nothing if the default is computed."""
        name, encode = self.written or self.spellings[0], self.encode or self.shared.encode
        value = value_at(model, self.path or self.shared.path)
        if value is UNSET:
            return {} if callable(self.default) else {name: self.default}
        return {name: value if encode is None else encode(value)}


@dataclass(frozen=True)
class Expected:
    """Key with a required value, fixed or computed from earlier arguments. It is written if it has a path."""

    name: str
    value: Any
    meaning: str
    path: Path | None = None

    def read(self, config: Config, values: Values) -> Values:
        config.expect(self.name, self.value(values) if callable(self.value) else self.value, self.meaning)
        return {}

    def write(self, model: Any) -> dict[str, Any]:
        return {} if self.path is None else {self.name: value_at(model, self.path)}


@dataclass(frozen=True)
class Ignored:
    """Keys that follow from others or do not change results. The first key is written if it has a path."""

    names: tuple[str, ...]
    path: Path | None = None

    def read(self, config: Config, values: Values) -> Values:
        config.used |= set(self.names)
        return {}

    def write(self, model: Any) -> dict[str, Any]:
        return {} if self.path is None else {self.names[0]: value_at(model, self.path)}


def ignored(*names: str, path: Path | None = None) -> Ignored:
    return Ignored(names, path)


@dataclass(frozen=True)
class Converted:
    """Group of keys, converted to arguments and back by a pair of functions."""

    read: Callable[[Config, Values], Values]
    write: Callable[[Any], dict[str, Any]]


@dataclass(frozen=True)
class Section:
    """Key with a nested mapping, read and written by a table of rows."""

    name: str
    rows: tuple[Row, ...]

    def read(self, config: Config, values: Values) -> Values:
        section = config.section(self.name) or Config({}, f"{config.place}: {self.name}")
        arguments = read_rows(self.rows, section, values)
        section.finish()
        return arguments

    def write(self, model: Any) -> dict[str, Any]:
        return {self.name: write_rows(self.rows, model)}


def read_rows(rows: tuple[Row, ...], config: Config, values: Values) -> Values:
    arguments: Values = {}
    for row in rows:
        arguments |= row.read(config, values | arguments)  # arguments) | later rows have precedence
    return arguments


def write_rows(rows: tuple[Row, ...], model: Any) -> dict[str, Any]:
    return {name: value for row in rows for name, value in row.write(model).items()}


def with_defaults(rows: tuple[Row, ...], **defaults: Any) -> tuple[Row, ...]:
    """Replace the defaults of some keys."""
    return tuple(
        replace(row, default=defaults[row.names])
        if isinstance(row, Key) and isinstance(row.names, str) and row.names in defaults
        else row
        for row in rows
    )


@dataclass(frozen=True)
class ConfigTable:
    """Key table of a family.

    Attributes:
        build: the family's constructor.
        kind: kind of models that can be written.
        parts: only kind allowed for a part, by path.
    """

    build: Callable[..., ModelSpec]
    rows: tuple[Row, ...]
    kind: type[Spec] = Decoder
    parts: Mapping[str, type[Spec]] = field(default_factory=dict)

    def read(self, config: Config) -> ModelSpec:
        return self.build(**read_rows(self.rows, config, {}))

    def write(self, model: ModelSpec) -> dict[str, Any]:
        return write_rows(self.rows, model)

    def misfits(self, model: ModelSpec) -> list[CheckpointError]:
        if not isinstance(model, self.kind):
            return [wrong_kind(self.kind, model, "kind")]
        parts = ((path, kind, value_at(model, path)) for path, kind in self.parts.items())
        return [
            wrong_kind(kind, part or NoFeedForward(), _place(model, path))
            for path, kind, part in parts
            if part is not UNSET and not isinstance(part, kind)
        ]


def _place(model: Any, path: str) -> str:
    # a path as in a specification file
    layers = "layers" if "." in path.partition("block")[0] else f"{model.stacks[0].prefix}layers"
    return path.replace("block", f"{layers}[0]").replace("last", f"{layers}[-1]")


Part = TypeVar("Part", bound=Spec)


def expect_kind(kind: type[Part], part: Spec, place: str) -> Part:
    """Return `part` if it has the only kind that a format supports; otherwise raise a CheckpointError."""
    if isinstance(part, kind):
        return part
    raise wrong_kind(kind, part, place)


def wrong_kind(kind: type[Spec], part: Spec, place: str) -> CheckpointError:
    names = kind.model_fields["kind"].default, type(part).model_fields["kind"].default
    cause = f"only kind {names[0]} can be written, not {names[1]}"
    return CheckpointError(place, cause, "change the specification or export to another family")
