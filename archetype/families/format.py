"""Formats of published weights: config.json in both directions, and weight rules. Contains only data and no torch."""

import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from pydantic import ValidationError

from archetype.errors import MAX_MESSAGE, CheckpointError, UnreadKeys, one_line, shorten
from archetype.families.class_keys import is_later, keys_read
from archetype.families.classes import BARE, MASKED, SPANS, TEXTS, TOKENS, names_of_classes
from archetype.families.config import Config
from archetype.families.decoder_classes import OF_TEXTS, ClassHeads, ClassNames, read_class_head, write_class_head
from archetype.families.direction import as_decoder, read_direction, write_direction
from archetype.families.rules import Rule, weight_rules
from archetype.models.decoder.spec import Decoder
from archetype.models.encoder.spec import Encoder
from archetype.models.encoder_decoder.spec import EncoderDecoder
from archetype.models.file import parse
from archetype.models.spec import ModelSpec
from archetype.parts.head.spec import LanguageModelHead, NoHead
from archetype.spec.edit import differences
from archetype.spec.errors import explain

HEAD_FIELDS = ("head", "pooling", "pooler", "pooler_activation")  # of an encoder: what follows its last layer
SHOWN = 60  # characters of a value shown in an error
# Fields that do not affect a trained model; a format need not express them.
TRAINING_ONLY = ("name", "initialization", "dropout")
TIED = {"lm_head.weight": "embedding.token.weight"}
# Suffixes of classes that generate text.
SAME_HEAD = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration", "MTModel")
HEAD = re.compile(f"({'|'.join((*SAME_HEAD, MASKED, TEXTS, TOKENS, SPANS))})$")


class Keys(Protocol):
    """Reader and writer for the keys of config.json."""

    def read(self, config: Config) -> ModelSpec:
        """Return the specification described by a config.json. Every key is used or refused."""

    def write(self, model: ModelSpec) -> dict[str, Any]:
        """Return the keys for a specification."""

    def misfits(self, model: ModelSpec) -> list[CheckpointError]:
        """Return an error for every part whose kind the format does not support."""


@dataclass(frozen=True)
class Format:
    """Format for a folder of published weights.

    Attributes:
        architecture: transformers class, or a function of the model that returns it.
        keys: keys of config.json. `config_for` verifies that they express the complete specification.
        rules: rules that map tensors in the file to parameters, or a function of the model that returns the rules.
        prefix: prefix of all tensor names except the head's names; missing in files saved without the head.
        ignored: patterns of tensors that the model does not use.
        copies: tensor that a file may duplicate -> parameter.
        marks_global_tokens: whether the positions of global tokens are an input in transformers.
        class_heads: classification heads that transformers supports for these decoders.
        class_architecture: text classification class from which the name of the class without a head is derived
            (default: from `architecture`).
        constants: numbers that the model computes, by the names of `ignored` tensors that may repeat them.
    """

    model_type: str
    architecture: str | Callable[[ModelSpec], str]
    keys: Keys
    rules: tuple[Rule, ...] | Callable[[ModelSpec], tuple[Rule, ...]]
    prefix: str
    ignored: tuple[str, ...] = ()
    copies: Mapping[str, str] = field(default_factory=lambda: TIED)
    marks_global_tokens: bool = False
    class_heads: ClassHeads = field(default_factory=lambda: OF_TEXTS)
    class_architecture: str | None = None
    constants: Callable[[ModelSpec], Mapping[str, list[float]]] | None = None

    def rules_for(self, model: ModelSpec) -> tuple[Rule, ...]:
        """Return the weight rules for a model. Names have no prefix if the model has no head."""
        model = self._written_as(model)
        rules = self.rules(model) if callable(self.rules) else self.rules
        named = any("classifier.weight" in rule.params for rule in rules)  # in a family inferred from tensor names
        if isinstance(model, Decoder) and (names := self._class_names(model)) is not None and not named:
            if names.prefix is not None:
                rules = tuple(replace(rule, hf=_with_prefix(rule.hf, self.prefix, names.prefix)) for rule in rules)
            return (*rules, *weight_rules(f"{names.tensors}   classifier"))
        if model.head.is_absent:
            # the class without a head is the base model itself
            return tuple(replace(rule, hf=rule.hf.removeprefix(self.prefix)) for rule in rules)
        return rules

    def architecture_of(self, model: ModelSpec) -> str:
        model = self._written_as(model)
        if callable(self.architecture):
            return self.architecture(model)
        if isinstance(model, Decoder) and model.head.is_absent:
            return without_head(self.class_architecture or self.architecture)
        if (names := self._class_names(model)) is not None:
            usual = re.sub("ForCausalLM|LMHeadModel", names.ending, self.architecture)
            return self.class_architecture or usual if names.ending == TEXTS else usual
        return self.architecture

    @property
    def decodes(self) -> bool:
        return getattr(self.keys, "kind", None) is Decoder

    def _written_as(self, model: ModelSpec) -> ModelSpec:
        # the model that config.json describes: an encoder of a decoder's layers is written as that decoder
        model = self._without_sentence_head(model)
        return as_decoder(model) if self.decodes else model

    def _without_sentence_head(self, model: ModelSpec) -> ModelSpec:
        # modules.json describes a sentence head; config.json then describes a model without a head, or with a language
        # modelling head if the class without a head has a pooler that the model does not have
        bare = model.without_sentence_head()
        if bare is model or not isinstance(bare, Encoder) or bare.pooler:
            return bare
        config, lacking = self._write(bare)
        if not lacking or not config:
            return bare
        stem = without_head(config["architectures"][0]).removesuffix(BARE)
        try:
            return bare.replace(head=self.spec_from(config | {"architectures": [f"{stem}{MASKED}"]}).head)
        except CheckpointError:
            return bare

    def _class_names(self, model: ModelSpec) -> ClassNames | None:
        # None without a classification head, or if transformers has no such class
        return self.class_heads.get(type(model.head)) if isinstance(model, Decoder) else None

    def spec_from(self, config: dict[str, Any], place: str = "config.json") -> ModelSpec:
        reader = Config(config, place)
        try:
            model = self.keys.read(reader)
            if isinstance(model, Decoder) and (head := read_class_head(reader)) is not None:
                model = model.replace(head=head)
            elif isinstance(model, Decoder) and self._lacks_head(reader, model):
                model = model.replace(head=NoHead())
            self._check_class(reader, model)
            model = read_direction(reader, model)
        except ValidationError as error:  # sizes that do not fit each other
            raise explain(error, every=False).at(place) from None
        if unread := reader.finish(read=None if is_later(config) else keys_read(config)):
            text = one_line(f"{place}: no {self.model_type} class reads {', '.join(unread)}", MAX_MESSAGE)
            warnings.warn(UnreadKeys(text), stacklevel=2)
        return model

    def _lacks_head(self, config: Config, model: Decoder) -> bool:
        # a file of the class without a head only has the head's table if it is tied
        names = config.get("architectures")
        name = str(names[0]) if isinstance(names, list) and names else ""
        bare = self.architecture_of(model.replace(head=NoHead(), further_tokens=None))
        return name.lower() == bare.lower() and not model.head.shares_table

    def _check_class(self, config: Config, model: ModelSpec) -> None:
        # The class must be that of a model with this head, ignoring case (MPT was published as MPTForCausalLM). A class
        # without a head is accepted if the head is tied. Encoders read their class as a key.
        names = config.get("architectures")
        if not isinstance(model, Decoder | EncoderDecoder) or not isinstance(names, list) or not names:
            return
        expected = self.architecture_of(model)
        stem = HEAD.sub("", expected)
        known = {expected, *(f"{stem}{head}" for head in SAME_HEAD)}
        known |= {without_head(self.class_architecture or expected)} if model.head.shares_table else set()
        if str(names[0]).lower() not in {name.lower() for name in known}:
            cause = f"{names[0]!r} is not supported in the {self.model_type} format"
            raise config.error("architectures", cause, f"use one of {expected}")

    def config_for(self, model: ModelSpec) -> dict[str, Any]:
        """Return the config.json for a specification.

        Raises:
            CheckpointError: this format cannot express a field.
        """
        config, lacking = self._write(model)
        if lacking:
            raise lacking[0]
        return config

    def with_class_head(self, model: ModelSpec, num_classes: int, of_tokens: bool) -> ModelSpec:
        """Return an encoder with a new classification head, as in this model type's class for texts or tokens.

        Raises:
            CheckpointError: the format cannot express the encoder, or this model type has no such class.
        """
        config = self.config_for(model)
        stem = without_head(config["architectures"][0]).removesuffix(BARE)
        config |= {"architectures": [f"{stem}{TOKENS if of_tokens else TEXTS}"]} | names_of_classes(num_classes)
        read = self.spec_from(config)
        return model.replace(**{name: getattr(read, name) for name in HEAD_FIELDS})

    def lacking(self, model: ModelSpec) -> list[CheckpointError]:
        return self._write(model)[1]

    def can_compare(self, model: ModelSpec) -> bool:
        return bool(self._write(model)[0])  # `lacking` lists all differences only if a configuration could be read back

    def _write(self, model: ModelSpec) -> tuple[dict[str, Any], list[CheckpointError]]:
        # config.json, and errors for what it does not express, found by reading it back: a written file is never wrong
        model = self._without_sentence_head(model)
        body = self._written_as(model)
        if misfits := self.keys.misfits(body):
            return {}, misfits
        has_classes = isinstance(body, Decoder) and body.head.has_classes
        if has_classes and self._class_names(body) is None:
            cause = f"the {self.model_type} format has no such classification head"
            return {}, [CheckpointError("head", cause, "use the run directory, which needs no export")]
        if isinstance(body, Decoder) and not body.head.predicts_next:  # keys of other heads are not read back
            body = body.replace(head=LanguageModelHead(tied=has_classes))
        try:
            config = self.keys.write(body) | (write_class_head(model) if has_classes else {})
            if "model_type" not in config:  # otherwise the keys are an original config.json
                config = {"architectures": [self.architecture_of(model)], "model_type": self.model_type} | config
                config |= write_direction(model) if self.decodes else {}
            if isinstance(model, EncoderDecoder):
                # transformers' generation reads the key
                config["is_encoder_decoder"] = True
            read_back = self.spec_from(dict(config))
        except CheckpointError as error:
            return {}, [error]
        changes = differences(without_fields(model, TRAINING_ONLY), without_fields(read_back, TRAINING_ONLY))
        return config, [self._inexpressible(*change) for change in changes]

    def _inexpressible(self, path: str, value: Any, other: Any) -> CheckpointError:
        value, other = (shorten(repr(item), SHOWN) for item in (value, other))
        cause = f"the {self.model_type} format cannot express {value} here (it would be read as {other})"
        return CheckpointError(path, cause, "change the specification or export to another family")


def without_head(architecture: str) -> str:
    return f"{HEAD.sub('', architecture).removesuffix(BARE)}{BARE}"


def _with_prefix(name: str, old: str, new: str) -> str:
    return f"{new}{name.removeprefix(old)}" if name.startswith(old) else name


def without_fields(model: ModelSpec, names: tuple[str, ...]) -> ModelSpec:
    def stripped(data: Any) -> Any:
        match data:
            case dict():
                return {key: stripped(value) for key, value in data.items() if key not in names}
            case list():
                return [stripped(item) for item in data]
            case _:
                return data

    return parse(stripped(model.dump()))
