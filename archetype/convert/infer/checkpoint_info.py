"""Keys and shapes of a checkpoint, with the assumptions made while reading it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from archetype.convert.infer.missing import MISSING_BY_PLACE, MISSING_BY_TENSOR
from archetype.convert.infer.names import LEFT_OUT
from archetype.convert.infer.quirks import QUIRKS, FamilyQuirks
from archetype.convert.infer.spellings import ACTIVATION, CONTEXT, DECODERS, EPS, LAYER_KINDS, OVERRIDES
from archetype.errors import CheckpointError, SpecError, enumeration, one_line
from archetype.families.class_keys import DERIVED
from archetype.families.config import ACTIVATIONS, Config
from archetype.families.decoder_classes import read_class_head
from archetype.parts.activation.spec import SiTU
from archetype.parts.head.spec import ClassHead
from archetype.parts.norm.spec import L2Norm, LayerNorm, RMSNorm
from archetype.roles.activation import Activation
from archetype.roles.checkpoint import Shape
from archetype.spec.base import MAX_SIZE

BIDIRECTIONAL = "use_bidirectional_attention"  # whether tokens see later ones: all tokens, or only those of an image
USUAL_EPS = 1e-5
NAMED_PARTS = 3  # missing parts that fit into one line
NO_QUIRKS = FamilyQuirks()
Shapes = Mapping[str, Shape]  # by the names of the file


@dataclass
class CheckpointInfo:
    """Keys of config.json, and tensor shapes by the names in the file.

    Attributes:
        type: model_type of the text model.
        outer_type: model_type of the model that contains the text model.
        stated: keys that the file contains. The other keys in `config` are defaults of the class.
        defaults: default of each key that the class in transformers reads; None if the class is unknown.
        unread: keys in the file that the class never reads; left out of `config`.
        settings: layouts set by the user, by name.
        assumed: values that neither keys nor tensors determine, in order of use.
        alternatives: other possible values of each assumed layout, by name.
        asked: names of all layouts that matter for the model.
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
        """Settings fixed by the family's code."""
        return QUIRKS.get(self.type, NO_QUIRKS)

    @property
    def class_head(self) -> ClassHead | None:
        """Classification head, whose matrix is `score` in decoders; None if there is no such head."""
        return read_class_head(self.config) if "score.weight" in self.shapes else None

    def is_zero(self, name: str) -> bool:
        """Return whether a tensor must be zero."""
        return self.quirks.zeros is not None and re.fullmatch(self.quirks.zeros, name) is not None

    def assume(self, path: str, value: object, why: str) -> None:
        """Record a value that neither keys nor tensors determine."""
        self.assumed[f"{path}={_word(value)} ({why})"] = None

    def settle(self, name: str, values: tuple[Any, ...], why: str) -> Any:
        """Choose a layout that neither keys nor tensors determine.

        The user's setting has precedence, then the family's known layout, then the first value (recorded as assumed).

        Args:
            name: name of the layout, as in `--set NAME=VALUE`.
            values: all supported layouts, the most common first.
            why: what the file does not determine, shown in the report.

        Raises:
            SpecError: the user's setting is not one of `values`.
        """
        self.asked.add(name)
        if name in self.settings:
            if (value := self.settings[name]) not in values:
                remedy = f"use {enumeration(map(_word, values), 'or')}"
                raise SpecError(name, f"{one_line(repr(value), 60)} is not a possible layout of this model", remedy)
            return value
        if fixed := getattr(self.quirks, name, None):
            return fixed
        others = [_word(value) for value in values[1:]]
        self.alternatives[name] = tuple(others)
        self.assume(name, values[0], "; ".join([f"or {', '.join(others)}", why] if others else [why]))
        return values[0]

    def check_supported(self) -> None:
        """Refuse models that are not text decoders, and families or keys that need an unsupported part.

        Raises:
            CheckpointError: the model needs an unsupported part.
        """
        classes = self.config.get("architectures") or []
        decodes = not isinstance(classes, list) or not classes or re.search(DECODERS, str(classes[0])) is not None
        if not decodes and self.class_head is None:
            cause = f"{classes[0]!r} is not a text decoder with a head"
            raise CheckpointError(f"{self.config.place}: architectures", cause, "other models need a registered family")
        self.refuse_derived(*self.quirks.asks)
        if self.config.get(BIDIRECTIONAL) not in (None, False, "vision"):  # images are left out
            raise self.missing(f"{self.config.place}: {BIDIRECTIONAL}", "attention to later tokens")
        if self.quirks.asks_is_decoder and self.config.get("is_decoder") is not True:
            cause = f"is not true, so that the {self.type} class attends to later tokens too"
            raise self.config.error("is_decoder", cause, "set it to true if the model was trained as a decoder")
        self._check_overrides()
        outer = QUIRKS.get(self.outer_type, NO_QUIRKS)
        for key, value in {*self.quirks.only, *outer.only}:
            if key in self.stated:
                self.config.expect(key, value, f"the {self.type} class treats it differently")

    def _check_overrides(self) -> None:
        # of keys for some layers, each class of transformers reads others, and most read none
        stated = self.config.get(OVERRIDES)
        for values in stated.values() if isinstance(stated, dict) else [stated] if stated else []:
            if not isinstance(values, dict) or not values.keys() <= set(self.quirks.overridden):
                raise self.missing(f"{self.config.place}: {OVERRIDES}", "per-layer values of other keys")

    def missing(self, place: str, *parts: str) -> CheckpointError:
        """Return the error for a model that needs unsupported parts."""
        further = len(parts) - NAMED_PARTS
        named = parts if further < 1 else (*parts[:NAMED_PARTS], f"{further} further part{'s' * (further > 1)}")
        cause = f"needs {enumeration(named)}, which {'is' if len(parts) == 1 else 'are'} not supported"
        return CheckpointError(place, cause, f"{self.type} models cannot be read")

    def no_place(self, tensor: str) -> CheckpointError:
        """Return the error for an unknown tensor. It names the unsupported parts that the tensor names reveal."""
        used = [name for name in self.shapes if not LEFT_OUT.fullmatch(name)]
        # other tensors may name what is missing better than the one that was found first, or other missing parts
        first: dict[str, str] = {}
        for name in (tensor, *used):
            for pattern, part in MISSING_BY_TENSOR:
                if re.fullmatch(pattern, name):
                    first.setdefault(part, name)
        if first:
            return self.missing(next(iter(first.values())), *first)
        for pattern, part in MISSING_BY_PLACE:
            if re.fullmatch(pattern, tensor):
                return self.missing(tensor, part)
        return CheckpointError(tensor, "belongs to an unknown part", f"{self.type} is not supported")

    def first(self, keys: tuple[str, ...], default: Any = None) -> Any:
        """Return the value of the first of these keys that the file contains."""
        key = self._first_key(keys)
        return default if key is None else self.config.get(key)

    def positive(self, keys: tuple[str, ...], default: float) -> float:
        """Return the positive number under the first of these keys that the file contains."""
        key = self._first_key(keys)
        return default if key is None else self.config.positive(key)

    def size(self, keys: tuple[str, ...], layer: int | None = None, most: int = MAX_SIZE) -> int | None:
        """Return the size under the first of these keys that the file contains; None if it contains none of them.

        Args:
            layer: index into a list with one size per layer (default: lists are refused).
            most: largest allowed size.
        """
        key = self._first_key(keys)
        if key is None:
            return None
        if layer is not None and (override := self.overrides(layer).get(key)) is not None:
            return Config({key: override}, self.config.place).size(key)
        values = self.config.get(key)
        if layer is None or not isinstance(values, list):
            return self.config.size(key, most=most)
        if layer >= len(values):
            raise self.config.error(key, f"has no entry for layer {layer}", "fix the file")
        return Config({key: values[layer]}, self.config.place).size(key)

    def overrides(self, layer: int) -> Mapping[str, Any]:
        """Return the keys that have another value in one layer, if the class reads such keys (Gemma 4)."""
        if not self.quirks.overridden:
            return {}
        stated = self.config.get(OVERRIDES)
        if OVERRIDES in self.stated:
            values = (stated or {}).get(str(layer), {})
            return values if isinstance(values, dict) else {}
        # the spelling of the published files, which is about layers with full attention
        if list_item(self.config.get(LAYER_KINDS[0]), layer) != "full_attention":
            return {}
        kv_heads = self.config.get("num_global_key_value_heads") if self.config.get("attention_k_eq_v", True) else None
        return {"head_dim": self.config.get("global_head_dim"), "num_key_value_heads": kv_heads}

    def _first_key(self, keys: tuple[str, ...]) -> str | None:
        # keys in the file have precedence over those with a default of the class
        self.config.used |= set(keys)
        known = [key for key in keys if self.config.values.get(key) is not None]
        stated = [key for key in known if key in self.stated]
        if not known:
            return None
        first = (stated or known)[0]
        value = self.config.values[first]
        # of two lengths the first is safe; a list has a value for each layer, in place of one for all
        for key in stated if keys != CONTEXT and not isinstance(value, list) else ():
            if self.config.values[key] != value:
                raise self.config.error(key, f"contradicts {first}", "remove one of them")
        return first

    def refuse_derived(self, *keys: str) -> None:
        """Refuse a file that lacks one of these keys if the class derives the key's value."""
        for key in keys:
            if self.defaults is not None and self.defaults.get(key) == DERIVED and self.config.values.get(key) is None:
                raise self.config.error(key, f"is missing, and the {self.type} class derives it by a rule", "add it")

    def sides(self, tensor: str) -> Shape:
        """Return (rows, columns) of a matrix."""
        shape = self.shapes[tensor]
        if len(shape) != 2 or not all(shape):
            raise CheckpointError(tensor, f"has shape {list(shape)} but must be a matrix", "is the file complete?")
        return shape

    def activation(self, gated: bool) -> Activation:
        """Return the activation of the feed-forward parts."""
        name = self.first(ACTIVATION)
        if self.quirks.activation is not None:
            return self.quirks.activation
        if name is None:
            name = "silu" if gated else "gelu"
            self.assume("layers[*].feedforward.activation", name, "no key names it")
        if name == "situ":
            return SiTU(beta=self.config.positive("activation_situ_beta", 1.0))
        if not isinstance(name, str) or name not in ACTIVATIONS:
            raise self.missing(f"{self.config.place}: activation", f"the activation {name!r}")
        return ACTIVATIONS[name]

    def norm(self, bias: bool, weight: bool = True) -> LayerNorm | RMSNorm | L2Norm:
        """Return LayerNorm if the norms have a bias or the key for epsilon names LayerNorm, otherwise RMSNorm.

        The class's own key counts if the file has another name for it (EXAONE 3 calls it `layer_norm_epsilon`).
        """
        key = self._first_key(EPS)
        eps = self.quirks.eps or (USUAL_EPS if key is None else self.config.positive(key))
        if key is None and not self.quirks.eps:
            self.assume("layers[*].wiring.norm.eps", USUAL_EPS, "no key names it")
        if self.quirks.norm is not None:
            norm = self.quirks.norm.replace(eps=eps)
            if not weight and hasattr(norm, "weight"):
                return norm.replace(weight=False, unit_offset=False)
            return norm.replace(bias=bias) if hasattr(norm, "bias") else norm
        kind = "layer" if bias else "rms"
        own = next((name for name in EPS if (self.defaults or {}).get(name) is not None), None)
        if not bias and not any(str(name).startswith("rms") for name in (key, own)):
            kinds = ("layer", "rms") if str(key).startswith("layer") else ("rms", "layer")
            kind = self.settle("norm_kind", kinds, "no tensor is a bias and no key names the kind")
        why = "no file states whether 1 is added to the weights of norms"
        offset = weight and self.settle("unit_offset", (False, True), why)
        if kind == "layer":
            return LayerNorm(eps=eps, bias=bias, weight=weight, unit_offset=offset)
        return RMSNorm(eps=eps, weight=weight, unit_offset=offset)


def list_item(values: Any, index: int) -> Any:
    """Return an item of a list in config.json; None if the value is not a list, or is shorter."""
    return values[index] if isinstance(values, list) and index < len(values) else None


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
