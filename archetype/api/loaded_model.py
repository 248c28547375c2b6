"""A model with all that its folder says of it: kept, moved, packed and saved."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, TypeVar, Unpack

import torch
from torch import Tensor

from archetype.convert.image_processor import ImageProcessor, open_processor
from archetype.convert.sentence_transformers.files import write_files
from archetype.data.images import has_pixels, open_pictures, picture_numbers
from archetype.errors import DataError, SpecError
from archetype.families import Family
from archetype.generate.generation_config import GENERATION_CONFIG, generation_config, never_written
from archetype.io import atomic
from archetype.io.tensors import dtype_of, save
from archetype.machine.device import resolve_device
from archetype.models.build import Model
from archetype.models.causal import CausalModel
from archetype.models.decoder.module import Decoder
from archetype.models.encoder.module import Encoder
from archetype.models.encoder_decoder.module import EncoderDecoder
from archetype.models.spec import ModelSpec
from archetype.models.vision.module import VisionEncoder
from archetype.runs.directory import Run, write_run_spec, write_weights
from archetype.runs.origin import write_origin
from archetype.settings.generation import Beam, LogitsRules, Sampling, SamplingFields
from archetype.table import Table
from archetype.tokenizers import Tokenizer
from archetype.tokenizers.chat_template import ChatTemplate, write_template
from archetype.tokenizers.known_templates import template_source
from archetype.tokenizers.same_ids import check_saved
from archetype.tokenizers.special_tokens import special_names
from archetype.weights.packing import pack_model

M = TypeVar("M")
# What each kind of model is for, in the words of the command line.
VERBS: dict[type, str] = {
    Decoder: "generate, score or embed texts",
    CausalModel: "generate or score texts",
    EncoderDecoder: "translate or generate texts",
    Encoder: "fill, embed or classify texts",
    VisionEncoder: "classify images",
}


@dataclass(repr=False)
class LoadedModel:
    """A specification, its model and its tokenizer, with all that the files of its folder say.

    Attributes:
        spec: the architecture.
        model: the torch module, in evaluation mode.
        tokenizer: None where the folder has none; the model then takes and returns token ids only.
        sampling: the defaults of generation.
        special: ids of the tokens that start, end and pad a text, as the folder's files give them.
        family: the published family that it was loaded from; None for a model that was trained here.
        labels: the names of the classes; empty where they have numbers only.
        template: the chat template; None for a model that only continues texts.
        left_out: weights of its folder that this model has no use for, such as those of a part that sees images; they
            are written back with it.
        image_processor: how pictures become its numbers: the contents of preprocessor_config.json, as they were read.
        sentence_files: how its folder says that texts become vectors (modules.json and what it names).
        generation: the contents of generation_config.json, as they were read.
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

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {', '.join(self._summary().values())}>"

    def _repr_html_(self) -> str:
        return Table(("", ""), [*self._summary().items()], text_columns=2).html()

    def to(self, device: str | torch.device | None = None, dtype: str | torch.dtype | None = None) -> Self:
        """Move the model to a device, or convert its weights to a type; returns this language model.

        Args:
            device: cpu, cuda, cuda:N or mps (default: where it is).
            dtype: such as "bfloat16" or torch.bfloat16 (default: as it is).
        """
        self.model.to(device=None if device is None else resolve_device(device), dtype=dtype_of(dtype))
        return self

    def pack(self, weights: str) -> Self:
        """Store the model's matrices in fewer bits; returns this language model.

        Args:
            weights: "int8" or "int4", in groups of 32 numbers that share a scale; "lossless", bfloat16 in 12 bits.

        Raises:
            SpecError: there is no such type, it does not fit the model's own, or the matrices are packed already.
        """
        pack_model(self.model, weights)
        return self

    def use_template(self, file: Path) -> Self:
        """Write conversations by the Jinja of a file, or by a known template's name; returns this language model."""
        self.template = ChatTemplate(template_source(file), self.special_names)
        return self

    @property
    def ends(self) -> tuple[int, ...]:
        """Ids that end a text: those of the generation settings; where they say none, the tokenizer's."""
        said = self.special.get("eos_token_id")
        own = () if self.tokenizer is None else self.tokenizer.eos
        return own if said in (None, []) else tuple(said) if isinstance(said, list) else (said,)

    @property
    def special_names(self) -> dict[str, str]:
        """bos_token, eos_token and pad_token as they are spelled, where the model has them."""
        if self.template is not None and self.template.tokens:
            return dict(self.template.tokens)
        return {} if self.tokenizer is None else special_names(self.tokenizer, self.special.get("pad_token_id"))

    def save(self, folder: str | Path) -> None:
        """Write a run directory, with all that the folder said which the model was loaded from.

        Args:
            folder: must not exist, or be empty.

        Raises:
            CheckpointError: it exists, or cannot be written.
        """
        with atomic.new_folder(Path(folder)) as temporary:
            run = Run(temporary)
            write_run_spec(run, self.spec)
            write_weights(run, self.model)
            atomic.write_json(
                temporary / GENERATION_CONFIG, self.special | generation_config(self.sampling, self.generation)
            )
            write_origin(temporary, self.spec, self.family, self.labels, self.image_processor)
            if self.sentence_files:
                run.sentence_folder.mkdir()
                write_files(self.sentence_files, run.sentence_folder)
            if self.left_out:
                save(run.left_out_file, self.left_out)
            if self.tokenizer is not None:
                run.tokenizer_folder.mkdir()
                self.tokenizer.save(run.tokenizer_folder)
                check_saved(self.tokenizer, run.tokenizer_folder, remedy="go on with the files that it was loaded from")
            if self.template is not None:
                write_template(self.template, run.tokenizer_folder)

    def settings(self, **sampling: Unpack[SamplingFields]) -> Sampling:
        """The model's defaults of generation with some fields replaced."""
        return self.sampling.replace(**sampling)

    def beam(self, **fields: Any) -> Beam:
        """The settings of a search: what the model's files say of its texts, with some fields replaced.

        Their limit of tokens gives way to `max_extra_tokens`.
        """
        said = self.sampling
        rules = {name: getattr(said, name) for name in LogitsRules.model_fields}
        rules["suppress_tokens"] = (*never_written(self.special), *said.suppress_tokens)
        if "max_extra_tokens" not in fields:
            rules["max_new_tokens"] = said.said_limit(num_prompt=1)  # the token that a target starts with
        return Beam.parse(rules | fields)

    @property
    def target_start(self) -> int | None:
        """The token that every target starts with, where the model's files say one."""
        return self.special.get("decoder_start_token_id")

    def open_image_processor(self) -> ImageProcessor | None:
        """How pictures become the model's numbers; None where nothing says it.

        Raises:
            CheckpointError: it says what is not done here.
        """
        if self.image_processor is None:
            return None
        return open_processor(self.image_processor, self.family.name if self.family else None)

    def images(self, *files: str | Path) -> Tensor:
        """Pictures as `classify` and `inspect` read them, (B, channels, height, width).

        Args:
            files: each of one picture, or a .npz file of `images`: pixels, or numbers that the model reads.

        Raises:
            ArchetypeError: a file is not one of pictures, or nothing says how they become numbers.
        """
        size, paths = self._model(VisionEncoder).spec.image_shape, [Path(file) for file in files]
        images = [open_pictures(path, *size, self._processor_of(path)) for path in paths]
        return torch.cat([torch.from_numpy(numbers) for numbers in images])

    def image(self, data: bytes) -> Tensor:
        """The picture in the bytes of a file, (channels, height, width); errors as for `images`."""
        size, processor = self._model(VisionEncoder).spec.image_shape, self.open_image_processor()
        return torch.from_numpy(picture_numbers(data, *size, processor))

    def _processor_of(self, path: Path) -> ImageProcessor | None:
        """What makes numbers of a file's pixels; not asked for where it holds numbers, of whatever steps."""
        return self.open_image_processor() if has_pixels(path) else None

    def _causal_model(self) -> CausalModel:
        if isinstance(self.model, CausalModel) and self.spec.continues_text:
            return self.model
        raise self._wrong_kind()

    def _pair(self) -> EncoderDecoder:
        if isinstance(self.model, EncoderDecoder) and self.spec.writes_target:
            return self.model
        raise self._wrong_kind()

    def _model(self, kind: type[M]) -> M:
        if isinstance(self.model, kind):
            return self.model
        raise self._wrong_kind()

    def _wrong_kind(self) -> SpecError:
        cause = f"a model of kind {self.spec.kind} cannot do this"
        if isinstance(self.model, EncoderDecoder) and self.model.classifier is not None:
            return SpecError("model", "an encoder-decoder with a head for classes cannot do this", "use classify")
        if isinstance(self.model, Decoder) and self.model.classifier is not None:
            return SpecError(
                "model", "a decoder with a head for classes cannot do this", "it can embed or classify texts"
            )
        if isinstance(self.model, Decoder) and self.model.lm_head is None:
            return SpecError("model", "a decoder without a head cannot do this", "it can embed texts")
        verbs = next((VERBS[base] for base in type(self.model).__mro__ if base in VERBS), "be trained and saved")
        return SpecError("model", cause, f"it can {verbs}")

    def _tokenizer(self) -> Tokenizer:
        if self.tokenizer is None:
            raise DataError("tokenizer", "the model's folder has none", "add its tokenizer.json or tokenizer.model")
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
