"""Model with its tokenizer and the settings in its folder."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypedDict, TypeVar, Unpack

import torch
from torch import Tensor

from archetype.convert.image_processor import ImageProcessor, open_processor
from archetype.convert.sentence_transformers.files import write_files
from archetype.errors import DataError, WrongKind
from archetype.families import Family
from archetype.generate.generation_config import GENERATION_CONFIG, generation_config
from archetype.inspection import Inspection, Tracer
from archetype.inspection.inputs import Inputs, Text, inputs_of
from archetype.io import atomic
from archetype.io.tensors import dtype_of, save
from archetype.machine.device import resolve_device
from archetype.models.build import Model
from archetype.models.spec import ModelSpec
from archetype.runs.directory import Run, write_run_spec, write_weights
from archetype.runs.origin import write_origin
from archetype.settings.generation import Sampling
from archetype.table import Table
from archetype.tokenizers import Tokenizer
from archetype.tokenizers.chat_template import ChatTemplate, write_template
from archetype.tokenizers.known_templates import template_source
from archetype.tokenizers.same_ids import check_saved
from archetype.tokenizers.special_tokens import special_names
from archetype.weights.packing import pack_model

K = TypeVar("K", bound="LanguageModel")


class LoadOptions(TypedDict, total=False):
    """Keyword arguments of `archetype.load`."""

    dtype: str | torch.dtype | None
    device: str | torch.device
    allow_pickle: bool
    overrides: Sequence[str]
    weights: str | None
    further_tokens: bool
    deterministic: bool
    state_dtype: str | torch.dtype | None
    accept_unproved: bool


@dataclass(repr=False)
class LanguageModel:
    """Model with its tokenizer. Each kind of model has a subclass with the methods that it supports.

    `archetype.load(folder)` and `LanguageModel(spec, model, ...)` choose the subclass: `CausalLM`, `DecoderLM`,
    `Seq2SeqLM`, `TextEncoder`, `TextClassifier` or `ImageEncoder`. For a type checker, name the subclass:
    `archetype.CausalLM.load(folder)`.

    Attributes:
        spec: the architecture.
        model: the torch module, in evaluation mode.
        tokenizer: None if the folder has no tokenizer; the model then takes and returns token ids only.
        sampling: default sampling settings.
        special: ids of the tokens that start, end and pad a text, according to the folder's files.
        family: published family that the model was loaded from; None for a model trained with Archetype.
        labels: class names; empty if the folder does not name classes.
        template: chat template; None if the model has no chat template.
        left_out: weights in the folder that this model does not use, such as a vision tower; an export to the same
            family includes them.
        image_processor: contents of preprocessor_config.json.
        sentence_files: files in the format of sentence-transformers (modules.json and the files that it names).
        generation: contents of generation_config.json.
    """

    spec: ModelSpec
    model: Model
    tokenizer: Tokenizer | None = None
    sampling: Sampling = field(default_factory=lambda: Sampling(temperature=0.0))
    special: dict[str, Any] = field(default_factory=dict)
    family: Family | None = None
    labels: tuple[str, ...] = ()
    template: ChatTemplate | None = None
    left_out: Mapping[str, Tensor] = field(default_factory=dict)
    image_processor: dict[str, Any] | None = None
    sentence_files: dict[str, bytes] = field(default_factory=dict)
    generation: Mapping[str, Any] = field(default_factory=dict)

    def __new__(cls, spec: ModelSpec | None = None, *_: Any, **__: Any) -> Self:
        from archetype.api.kinds import kind_of

        # Python then calls __init__, because the subclass is a LanguageModel, too
        kind: type[Any] = kind_of(spec) if cls is LanguageModel and spec is not None else cls
        return object.__new__(kind)

    if not TYPE_CHECKING:  # otherwise a type checker would accept any attribute

        def __getattr__(self, name: str) -> Any:
            from archetype.api.kinds import KINDS

            # called only for names that this class does not have: methods of other kinds get a message of their own
            if any(hasattr(kind, name) for kind in KINDS):
                raise self._wrong_kind()
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @classmethod
    def load(cls, folder: str | Path, **options: Unpack[LoadOptions]) -> Self:
        """Load a model of this class. Arguments are those of `archetype.load`.

        Raises:
            ArchetypeError: a file is invalid, or the model is of another kind.
        """
        from archetype.api.functions import load

        return load(folder, **options).expect(cls)

    def expect(self, kind: type[K]) -> K:
        """Return self, typed as a model of the given class.

        Raises:
            WrongKind: the model is of another kind.
        """
        if isinstance(self, kind):
            return self
        raise self._wrong_kind()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {', '.join(self._summary().values())}>"

    def _repr_html_(self) -> str:
        return Table(("", ""), [*self._summary().items()], text_columns=2).html()

    def to(self, device: str | torch.device | None = None, dtype: str | torch.dtype | None = None) -> Self:
        """Move the model to a device, or convert its weights to a type such as "bfloat16". Return self."""
        self.model.to(device=None if device is None else resolve_device(device), dtype=dtype_of(dtype))
        return self

    def pack(self, weights: str) -> Self:
        """Store the model's matrices in fewer bits. Return self.

        Args:
            weights: "int8" or "int4" with one scale for each group of 32 weights, or "lossless", bfloat16 in 12 bits.

        Raises:
            SpecError: the type is unknown or cannot store the model's dtype, or the matrices are already packed.
        """
        pack_model(self.model, weights)
        return self

    def use_template(self, file: Path) -> Self:
        """Set the chat template from a Jinja file or the name of a known template. Return self."""
        self.template = ChatTemplate(template_source(file), self.special_names)
        return self

    @property
    def ends(self) -> tuple[int, ...]:
        """Ids of the tokens that end a text, from the generation settings or else from the tokenizer."""
        eos = self.special.get("eos_token_id")
        # in generation_config.json, one id or a list
        if eos in (None, []):
            return () if self.tokenizer is None else self.tokenizer.eos
        return tuple(eos) if isinstance(eos, list) else (eos,)

    @property
    def special_names(self) -> dict[str, str]:
        """Texts of bos_token, eos_token and pad_token, if the model has them."""
        # the texts that the template prints; a list of EOS ids does not say which token is eos_token
        if self.template is not None and self.template.tokens:
            return dict(self.template.tokens)
        return {} if self.tokenizer is None else special_names(self.tokenizer, self.special.get("pad_token_id"))

    def save(self, folder: str | Path) -> None:
        """Write the model and everything loaded with it as a run directory.

        Raises:
            CheckpointError: the folder exists and is not empty, or cannot be written.
        """
        with atomic.new_folder(Path(folder)) as temporary:
            self.write(temporary)

    def write(self, folder: Path) -> None:
        """Write the files of a run directory into an existing folder, which is incomplete after an error."""
        run = Run(folder)
        write_run_spec(run, self.spec)
        write_weights(run, self.model)
        atomic.write_json(folder / GENERATION_CONFIG, self.special | generation_config(self.sampling, self.generation))
        write_origin(folder, self.spec, self.family, self.labels, self.image_processor)
        if self.sentence_files:
            run.sentence_folder.mkdir()
            write_files(self.sentence_files, run.sentence_folder)
        if self.left_out:
            save(run.left_out_file, self.left_out)
        if self.tokenizer is not None:
            run.tokenizer_folder.mkdir()
            self.tokenizer.save(run.tokenizer_folder)
            # refuses to save a tokenizer that would give other ids when it is read again
            check_saved(self.tokenizer, run.tokenizer_folder, remedy="use the files that it was loaded from")
        if self.template is not None:
            write_template(self.template, run.tokenizer_folder)

    @property
    def target_start(self) -> int | None:
        """Token with which every target starts, if the model's files name it."""
        return self.special.get("decoder_start_token_id")

    def open_image_processor(self) -> ImageProcessor | None:
        """Return the image preprocessing of this model; None without preprocessor_config.json.

        Raises:
            CheckpointError: preprocessor_config.json uses an unsupported step.
        """
        if self.image_processor is None:
            return None
        return open_processor(self.image_processor, self.family.name if self.family else None)

    def inspect(self, text: Text, target: Text | None = None) -> Inspection:
        """Record attention, residual stream and other internals while the model reads a text.

        Args:
            text: a text or its token ids; an image (channels, height, width) for an image encoder.
            target: target of an encoder-decoder (default: the target that it generates).

        Returns:
            Inspection with views of attention, logit lens, residual stream, experts, recurrent states and attributions.

        Raises:
            DataError: the text is empty, or longer than the model's context.
        """
        return Inspection(self.trace(text, target).run(), self.tokenizer, self.labels)

    def trace(self, text: Text, target: Text | None = None) -> Tracer:
        """Prepare a forward pass whose activations can be read and replaced by name. `run` computes the pass.

            trace = lm.trace("The capital of France is").ablate("blocks.3.mixer", heads=1).run()
            trace.logits, trace["blocks.5.out"]

        Takes the same arguments as `inspect`.
        """
        return Tracer(self.model, self.inputs(text, target), self)

    def inputs(self, text: Text, target: Text | None = None) -> Inputs:
        """Return the inputs of the model's forward pass for a text. Arguments are those of `inspect`."""
        return inputs_of(self.model, self.tokenizer, text, target, self.target_start)

    @property
    def _purpose(self) -> str:
        # completes "it can ..." in messages
        return "be trained, inspected and saved"

    def _wrong_kind(self) -> WrongKind:
        cause = f"a model of kind {self.spec.kind} with head {self.spec.head.kind} cannot do this"
        return WrongKind("model", cause, f"it can {self._purpose}")

    def _tokenizer(self) -> Tokenizer:
        if self.tokenizer is None:
            raise DataError(
                "tokenizer", "the model's folder has no tokenizer", "add its tokenizer.json or tokenizer.model"
            )
        return self.tokenizer

    def _summary(self) -> dict[str, str]:
        parameters = [*self.model.parameters()]
        summary = {"name": self.spec.name or "without a name", "kind": self.spec.kind}
        summary["parameters"] = f"{sum(parameter.numel() for parameter in parameters):,} parameters"
        if parameters:
            summary["dtype"] = str(parameters[0].dtype).removeprefix("torch.")
            summary["device"] = str(parameters[0].device)
        if self.tokenizer is not None:
            summary["tokenizer"] = f"{self.tokenizer.kind} tokenizer of {self.tokenizer.vocab_size:,} ids"
        return summary
