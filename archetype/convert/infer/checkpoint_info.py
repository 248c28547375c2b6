"""The facts that a checkpoint shows of its model: keys, shapes, and what had to be assumed."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from archetype.convert.infer.names import LEFT_OUT
from archetype.convert.infer.quirks import (
    ACTIVATION,
    DECODERS,
    EPS,
    MISSING_BY_KEY,
    MISSING_BY_PLACE,
    MISSING_BY_TENSOR,
    MISSING_BY_TYPE,
    QUIRKS,
    FamilyQuirks,
)
from archetype.errors import CheckpointError, SpecError, enumeration, one_line
from archetype.families.class_keys import DERIVED
from archetype.families.config import ACTIVATIONS, Config
from archetype.families.decoder_classes import read_class_head
from archetype.parts.head.spec import ClassHead
from archetype.parts.norm.spec import LayerNorm, RMSNorm
from archetype.roles.activation import Activation
from archetype.roles.checkpoint import Shape
from archetype.spec.base import MAX_SIZE

Shapes = Mapping[str, Shape]  # by the names of the file


@dataclass
class CheckpointInfo:
    """Keys of config.json and shapes of tensors, by the file's names.

    Attributes:
        type: what config.json says that the text model is.
        outer_type: what it says that the whole model is.
        stated: the keys that the file itself has; the others of `config` are its class's defaults.
        defaults: of each key that its class in transformers reads; None where nobody knows which these are.
        unread: keys of the file that this class never reads, and that are not in `config`.
        settings: layouts that somebody has settled, by name.
        assumed: what neither says, in the order in which it was needed.
        alternatives: the other values of each layout that was assumed, by its name.
        asked: names of the layouts on which the reading depends.
    """

    config: Config
    shapes: Shapes
    type: str
    outer_type: str
    stated: frozenset[str]
    defaults: Mapping[str, Any] | None = None
    unread: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    assumed: dict[str, None] = field(default_factory=dict)
    alternatives: dict[str, tuple[str, ...]] = field(default_factory=dict)
    asked: set[str] = field(default_factory=set)

    @property
    def quirks(self) -> FamilyQuirks:
        """The settings that the family's code fixes."""
        return QUIRKS.get(self.type, FamilyQuirks())

    @property
    def class_head(self) -> ClassHead | None:
        """The head for classes of texts or tokens, whose matrix is called `score` in decoders; None where it is not."""
        return read_class_head(self.config) if "score.weight" in self.shapes else None

    def assume(self, path: str, value: object, why: str) -> None:
        """Note a value that neither keys nor tensors give."""
        self.assumed[f"{path}={_word(value)} ({why})"] = None

    def settle(self, name: str, values: tuple[Any, ...], why: str) -> Any:
        """Return one of several layouts that neither keys nor tensors tell apart.

        It is the one that was set, or that the family's code is known to have, or else the first, noted as assumed.

        Args:
            name: of the layout, as `--set NAME=VALUE` takes it.
            values: all layouts that can be read, the usual one first.
            why: what the file does not say.

        Raises:
            SpecError: the layout that was set cannot be read.
        """
        self.asked.add(name)
        if name in self.settings:
            if (value := self.settings[name]) not in values:
                remedy = f"use {enumeration(map(_word, values), 'or')}"
                raise SpecError(name, f"{one_line(repr(value), 60)} is not a layout that this model can have", remedy)
            return value
        if fixed := getattr(self.quirks, name, None):
            return fixed
        others = [_word(value) for value in values[1:]]
        self.alternatives[name] = tuple(others)
        self.assume(name, values[0], "; ".join([f"or {', '.join(others)}", why] if others else [why]))
        return values[0]

    def check_supported(self) -> None:
        """Check that this is a decoder of text, and that neither family nor keys need a part that is missing here.

        Raises:
            CheckpointError: names the part.
        """
        classes = self.config.get("architectures") or []
        decodes = not isinstance(classes, list) or not classes or re.search(DECODERS, str(classes[0])) is not None
        if not decodes and self.class_head is None:
            cause = f"{classes[0]!r} is not a decoder of text with its head"
            raise CheckpointError(
                f"{self.config.place}: architectures", cause, "other models need a family of their own"
            )
        if self.type in MISSING_BY_TYPE:
            raise self.missing(self.config.place, MISSING_BY_TYPE[self.type])
        self.refuse_derived(*self.quirks.asks)
        outer = QUIRKS.get(self.outer_type, FamilyQuirks())
        for key, value in {*self.quirks.only, *outer.only}:
            if key in self.stated:
                self.config.expect(key, value, f"the {self.type} class obeys it in a way of its own")
        sections = (value for value in self.config.values.values() if isinstance(value, dict))
        for values in (self.config.values, *sections):
            for key, part in MISSING_BY_KEY.items():
                if values.get(key) is not None:
                    raise self.missing(f"{self.config.place}: {key}", part)

    def missing(self, place: str, part: str) -> CheckpointError:
        """An error that names a missing part."""
        return CheckpointError(place, f"needs {part}, which is missing here", f"the {self.type} family is not known")

    def no_place(self, tensor: str) -> CheckpointError:
        """An error at a tensor that has no place; where its name, or another one's, shows why, it names the part."""
        used = (name for name in self.shapes if not LEFT_OUT.fullmatch(name))
        for names, table in (((tensor, *used), MISSING_BY_TENSOR), ((tensor,), MISSING_BY_PLACE)):
            for name in names:
                for pattern, part in table:
                    if re.fullmatch(pattern, name):
                        return self.missing(name, part)
        return CheckpointError(tensor, "belongs to a part that is missing here", f"the {self.type} family is not known")

    def first(self, keys: tuple[str, ...], default: Any = None) -> Any:
        """The value of the first of these keys that the file has."""
        key = self._first_key(keys)
        return default if key is None else self.config.get(key)

    def positive(self, keys: tuple[str, ...], default: float) -> float:
        """A number above 0, by the first of these keys that the file has."""
        key = self._first_key(keys)
        return default if key is None else self.config.positive(key)

    def size(self, keys: tuple[str, ...], layer: int | None = None, most: int = MAX_SIZE) -> int | None:
        """A size, by the first of these keys that the file has; None where it has none.

        Args:
            keys: spellings.
            layer: whose size it is where a key lists one for each (absent: no key may).
            most: the largest that is allowed.
        """
        key = self._first_key(keys)
        if key is None:
            return None
        values = self.config.get(key)
        if layer is None or not isinstance(values, list):
            return self.config.size(key, most=most)
        if layer >= len(values):
            raise self.config.error(key, f"says nothing of layer {layer}", "fix the file")
        return Config({key: values[layer]}, self.config.place).size(key)

    def _first_key(self, keys: tuple[str, ...]) -> str | None:
        """The first of these keys that has a value in the file, or else by default; the others are its spellings."""
        self.config.used |= set(keys)
        known = [key for key in keys if self.config.values.get(key) is not None]
        return next((key for key in known if key in self.stated), known[0] if known else None)

    def refuse_derived(self, *keys: str) -> None:
        """Refuse a file without any of these keys, for which the class has a rule of its own."""
        for key in keys:
            if self.defaults is not None and self.defaults.get(key) == DERIVED and key not in self.stated:
                raise self.config.error(key, f"is missing, and follows from a rule of the {self.type} class", "add it")

    def sides(self, tensor: str) -> Shape:
        """Rows and columns of a matrix."""
        shape = self.shapes[tensor]
        if len(shape) != 2 or not all(shape):
            raise CheckpointError(tensor, f"has shape {list(shape)} where a matrix should be", "is the file whole?")
        return shape

    def activation(self, gated: bool) -> Activation:
        """The nonlinearity of the feed-forward parts."""
        name = self.first(ACTIVATION)
        if self.quirks.activation is not None:
            return self.quirks.activation
        if name is None:
            name = "silu" if gated else "gelu"
            self.assume("layers[*].feedforward.activation", name, "no key names it")
        if not isinstance(name, str) or name not in ACTIVATIONS:
            raise self.missing(f"{self.config.place}: activation", f"the activation {name!r}")
        return ACTIVATIONS[name]

    def norm(self, bias: bool, weight: bool = True) -> LayerNorm | RMSNorm:
        """A norm: with a bias or under a key of LayerNorm's a LayerNorm, else an RMSNorm."""
        key = self._first_key(EPS)
        eps = self.quirks.eps or (1e-5 if key is None else self.config.positive(key))
        if self.quirks.norm is not None:
            norm = self.quirks.norm.replace(eps=eps)
            return norm.replace(bias=bias) if hasattr(norm, "bias") else norm
        kind = "layer" if bias else "rms"
        if not bias and not str(key).startswith("rms"):
            kinds = ("layer", "rms") if str(key).startswith("layer") else ("rms", "layer")
            kind = self.settle("norm_kind", kinds, "no tensor is a bias and no key names the kind")
        why = "no file says whether 1 is added to the weights of norms"
        offset = weight and self.settle("unit_offset", (False, True), why)
        if kind == "layer":
            return LayerNorm(eps=eps, bias=bias, weight=weight, unit_offset=offset)
        return RMSNorm(eps=eps, weight=weight, unit_offset=offset)


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
