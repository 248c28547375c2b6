"""A model with its tokenizer: what `archetype.load` returns, and what can be asked of it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar, Unpack, overload

import torch
from torch import Tensor

from archetype import generate
from archetype.convert.sentence_transformers import parse, write_files
from archetype.data.pairs import read_pairs
from archetype.errors import DataError, SpecError
from archetype.families import Family
from archetype.generate import (
    Beam,
    ClassReport,
    Engine,
    Pooling,
    Prediction,
    Score,
    TaskScores,
    TokenClass,
    TranslationScore,
    ValueReport,
)
from archetype.generate.generation_config import GENERATION_CONFIG, generation_config, never_written
from archetype.generate.settings import LogitsRules, Sampling, SamplingFields
from archetype.inspection import Inspection, Tracer
from archetype.inspection.inputs import Inputs, Text, inputs_of
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
from archetype.table import Table
from archetype.tokenizers import Tokenizer
from archetype.tokenizers.chat_template import ChatTemplate, Message, write_template
from archetype.weights.packing import pack_model

M = TypeVar("M")
MAX_ROWS = 32  # of several prompts, so many are decoded together
PREFIX_BYTES = 2**28  # for the states of those whose beginning others share
# What each kind of model is for, in the words of the command line.
VERBS: dict[type, str] = {
    Decoder: "generate, score or embed texts",
    CausalModel: "generate or score texts",
    EncoderDecoder: "translate or generate texts",
    Encoder: "fill, embed or classify texts",
    VisionEncoder: "classify images",
}


@dataclass(repr=False)
class LanguageModel:
    """A specification, its model and its tokenizer, ready to generate.

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
        image_processor: how its folder says that pictures are prepared by others (preprocessor_config.json).
        sentence_files: how its folder says that texts become vectors (modules.json and what it names).
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

    def __repr__(self) -> str:
        return f"<LanguageModel {', '.join(self._summary().values())}>"

    def _repr_html_(self) -> str:
        return Table(("", ""), [*self._summary().items()], text_columns=2).html()

    @overload
    def generate(
        self,
        prompt: str,
        *,
        draft: "Draft | None" = None,
        lookup: bool = False,
        **sampling: Unpack[SamplingFields],
    ) -> str: ...

    @overload
    def generate(
        self,
        prompt: list[str],
        *,
        draft: "Draft | None" = None,
        lookup: bool = False,
        **sampling: Unpack[SamplingFields],
    ) -> list[str]: ...

    def generate(
        self,
        prompt: str | list[str],
        *,
        draft: "Draft | None" = None,
        lookup: bool = False,
        **sampling: Unpack[SamplingFields],
    ) -> str | list[str]:
        """Continue a prompt, or several prompts as one batch; with an encoder-decoder, write the target of each.

        Args:
            prompt: text, or a list of texts; for an encoder-decoder the source.
            draft: a smaller model with the same tokens, whose guesses save time and change no token; or "self", for the
                further tokens that the model itself predicts.
            lookup: guess from the text itself instead, where a text repeats parts of its prompt.
            sampling: fields of `Sampling`, such as max_new_tokens=200 or temperature=0.8.

        Returns:
            The continuation without the prompt, or a list of them.

        Raises:
            ArchetypeError: the model does not generate text, a setting is out of range, or a prompt is too long.
        """
        prompts = [prompt] if isinstance(prompt, str) else prompt
        texts = [""] * len(prompts)
        for index, piece in self.stream_all(prompts, draft=draft, lookup=lookup, **sampling):
            texts[index] += piece
        return texts[0] if isinstance(prompt, str) else texts

    def stream(
        self,
        prompt: str,
        *,
        draft: "Draft | None" = None,
        lookup: bool = False,
        **sampling: Unpack[SamplingFields],
    ) -> Iterator[str]:
        """Continue a prompt piece by piece; no piece ends inside a character.

        Args:
            prompt: a text.
            draft: as for `generate`.
            lookup: likewise.
            sampling: fields of `Sampling`.
        """
        return self.engine(1, draft, lookup).submit(prompt, **sampling).pieces()

    def stream_all(
        self,
        prompts: list[str],
        *,
        draft: "Draft | None" = None,
        lookup: bool = False,
        **sampling: Unpack[SamplingFields],
    ) -> Iterator[tuple[int, str]]:
        """Continue several prompts at once.

        Args:
            prompts: the texts.
            draft: as for `generate`.
            lookup: likewise.
            sampling: fields of `Sampling`.

        Returns:
            Pairs of the prompt's index and the next piece of its continuation.
        """
        engine = self.engine(len(prompts), draft, lookup)
        several = len(prompts) > 1
        requests = [engine.submit(text, id=n if several else None, **sampling) for n, text in enumerate(prompts, 1)]
        index = {request: n for n, request in enumerate(requests)}
        return ((index[event.request], event.text) for event in engine.events() if event.text)

    def chat(self, messages: list[Message], **sampling: Unpack[SamplingFields]) -> str:
        """Answer a conversation.

        Args:
            messages: each with its role (system, user or assistant) and its content.
            sampling: fields of `Sampling`.

        Raises:
            DataError: the model has no chat template, or the template refuses these messages.
        """
        return "".join(self.stream_chat(messages, **sampling))

    def stream_chat(self, messages: list[Message], **sampling: Unpack[SamplingFields]) -> Iterator[str]:
        """Answer a conversation piece by piece; arguments and errors as for `chat`."""
        return self.engine(1).submit(self.encode_chat(messages), continues=False, **sampling).pieces()

    def encode_chat(self, messages: list[Message]) -> list[int]:
        """The ids of a conversation, up to where the model's answer begins; errors as for `chat`."""
        self._causal_model()
        tokenizer = self._tokenizer()
        if self.template is None:
            cause = "the folder has none: this model continues texts and was not made to answer"
            raise DataError("chat template", cause, "generate without chat")
        return tokenizer.encode_with_special_tokens(self.template.render(messages))

    @overload
    def translate(self, text: str, **beam: Any) -> str: ...

    @overload
    def translate(self, text: list[str], **beam: Any) -> list[str]: ...

    def translate(self, text: str | list[str], **beam: Any) -> str | list[str]:
        """Translate a source text, or several as one batch, with an encoder-decoder.

        Args:
            text: a source, or a list of sources.
            beam: fields of `Beam`, such as num_beams=5 or length_penalty=1.0.

        Raises:
            ArchetypeError: the model is no encoder-decoder, a setting is out of range, or a source is too long.
        """
        sources = [text] if isinstance(text, str) else text
        model = self._model(EncoderDecoder)
        targets = generate.translate(model, self._tokenizer(), sources, self.beam(**beam), self.target_start)
        return targets[0] if isinstance(text, str) else targets

    def fill(self, text: str, top: int = 5) -> list[list[Prediction]]:
        """Predict the token behind every [MASK] of a text, with an encoder.

        Args:
            text: with [MASK] for each token to predict.
            top: predictions for each mask, the likeliest first.
        """
        return generate.fill(self._model(Encoder), self._tokenizer(), text, top)

    def score(self, text: str, stride: int | None = None, length: int | None = None) -> Score:
        """How well the model predicts a text: loss per token, perplexity, bits per byte.

        Args:
            text: of any length.
            stride: tokens by which a window of `length` moves on (default: half of it).
            length: tokens of a window (default: the model's context, or less for a large vocabulary).
        """
        return generate.score(self._causal_model(), self._tokenizer(), text, stride, length)

    def evaluate(
        self, data: str | Path | tuple[str | Path, str | Path], **beam: Any
    ) -> ClassReport | ValueReport | TranslationScore:
        """How good the model's classes, values or translations are, beside the right ones.

        Args:
            data: JSON lines or CSV of text and label; for images a .npz file, or a folder with a subfolder for each
                class; for an encoder-decoder the files of source and target lines, or JSON lines of both.
            beam: of translations: fields of `Beam`, such as num_beams=1.

        Raises:
            ArchetypeError: the model only continues texts (see `score`), or the data are wrong.
        """
        if isinstance(self.model, EncoderDecoder):
            tokenizer, settings = self._tokenizer(), self.beam(**beam)
            return generate.translation_score(self.model, tokenizer, *read_pairs(data), settings, self.target_start)
        if isinstance(data, tuple) or beam:
            raise SpecError("data", "pairs and beams are for an encoder-decoder", "give one file, without --num-beams")
        if isinstance(self.model, VisionEncoder):
            return generate.evaluate_images(self.model, Path(data), self.labels)
        if isinstance(self.model, Encoder | Decoder) and self.model.spec.head.classifies:
            return generate.evaluate_texts(self.model, self._tokenizer(), Path(data), self.labels)
        raise SpecError("data", "the model has no classes, values or targets", "give a text that it is to predict")

    def evaluate_tasks(self, tasks: list[str], num_fewshot: int | None = None, limit: int | None = None) -> TaskScores:
        """The scores of known tasks, by lm-eval, the harness of EleutherAI.

        Args:
            tasks: names, YAML files of tasks, or folders of them.
            num_fewshot: examples before each question (default: the task's).
            limit: questions of each task (default: all).

        Raises:
            ArchetypeError: the model does not continue texts, lm-eval is not installed, or there is no such task.
        """
        self._causal_model()
        self._tokenizer()
        return generate.evaluate_tasks(self, tasks, num_fewshot, limit)

    def to(self, device: str | torch.device | None = None, dtype: str | torch.dtype | None = None) -> "LanguageModel":
        """Move the model to a device, or convert its weights to a type; returns this language model.

        Args:
            device: cpu, cuda, cuda:N or mps (default: where it is).
            dtype: such as "bfloat16" or torch.bfloat16 (default: as it is).
        """
        self.model.to(device=None if device is None else resolve_device(device), dtype=dtype_of(dtype))
        return self

    def pack(self, weights: str) -> "LanguageModel":
        """Store the model's matrices in fewer bits; returns this language model.

        Args:
            weights: "int8" or "int4", in groups of 32 numbers that share a scale; "lossless", bfloat16 in 12 bits.

        Raises:
            SpecError: there is no such type, it does not fit the model's own, or the matrices are packed already.
        """
        pack_model(self.model, weights)
        return self

    def make_deterministic(self) -> "LanguageModel":
        """Have a text's logits the same bits alone and in company, as `load(..., deterministic=True)`; returns this.

        Raises:
            SpecError: the model does not continue texts, or cannot do so with these kernels.
        """
        model = self.model if isinstance(self.model, EncoderDecoder) else self._causal_model()
        generate.make_deterministic(model)
        return self

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
            atomic.write_json(temporary / GENERATION_CONFIG, self.special | generation_config(self.sampling))
            write_origin(temporary, self.spec, self.family, self.labels, self.image_processor)
            if self.sentence_files:
                run.sentence_folder.mkdir()
                write_files(self.sentence_files, run.sentence_folder)
            if self.left_out:
                save(run.left_out_file, self.left_out)
            if self.tokenizer is not None:
                run.tokenizer_folder.mkdir()
                self.tokenizer.save(run.tokenizer_folder)
            if self.template is not None:
                write_template(self.template, run.tokenizer_folder)

    def embed(
        self, texts: str | Sequence[str | list[int]], pooling: Pooling | None = None, normalized: bool | None = None
    ) -> Tensor:
        """Embed texts as vectors, with an encoder or a decoder.

        Args:
            texts: one, or several: a row of the result each; or the token ids of whole texts.
            pooling: "mean" over a text's tokens (default for an encoder), its "first" token through the pooler, or its
                "last" token, which alone has seen the whole text in a decoder (default there). Where the folder has
                modules.json of sentence-transformers, that is the default: the vectors are as that library's.
            normalized: scale vectors to length 1 (default: as modules.json says, else true).

        Returns:
            Vectors, (B, D).
        """
        model = self.model if isinstance(self.model, Decoder) else self._model(Encoder)
        modules = None if pooling is not None else parse(self.sentence_files)
        rows = self.embedding_tokens(texts, pooling)
        return generate.embed(model, rows, pooling, normalized, modules)

    def embedding_tokens(
        self, texts: str | Sequence[str | list[int]], pooling: Pooling | None = None
    ) -> list[list[int]]:
        """The token ids that `embed` reads: each text with its prompt and cut, where modules.json says so.

        Args:
            texts: as for `embed`; ids are whole texts and stay as they are.
            pooling: as for `embed`.
        """
        modules = None if pooling is not None else parse(self.sentence_files)
        model = self.model if isinstance(self.model, Decoder) else self._model(Encoder)
        return generate.embedding_tokens(model, self._tokenizer(), texts, modules)

    def classify(self, inputs: Tensor | str | list[str]) -> Tensor:
        """The probability of each class, for images or texts; with a head for one class, the value that it estimates.

        Args:
            inputs: images, (B, channels, height, width), a text, or texts.

        Returns:
            Probabilities, (B, classes), or values, (B, 1).
        """
        if isinstance(inputs, Tensor):
            return generate.classify_pictures(self._model(VisionEncoder), inputs)
        model = self.model if isinstance(self.model, Decoder) else self._model(Encoder)
        return generate.classify_texts(model, self._tokenizer(), inputs)

    def classify_tokens(self, texts: str | list[str]) -> list[list[TokenClass]]:
        """The class of each token of a text, such as whether it begins a name, and that class' probability.

        Args:
            texts: one, or several.

        Returns:
            For each text its tokens, without the special ones around it.

        Raises:
            ArchetypeError: the model's head gives no token a class, or a text is empty or too long.
        """
        model = self.model if isinstance(self.model, Decoder) else self._model(Encoder)
        return generate.classify_tokens(model, self._tokenizer(), texts, self.labels)

    def inspect(self, text: Text, target: Text | None = None) -> Inspection:
        """Look inside the model while it reads a text.

        Args:
            text: a text or its token ids; an image (channels, height, width) for a vision encoder.
            target: of an encoder-decoder (default: what it writes itself).

        Returns:
            Views: attention, logit lens, residual stream, experts, recurrent states, attributions.

        Raises:
            DataError: the text is empty, or longer than the model's context.
        """
        return Inspection(self.trace(text, target).run(), self.tokenizer, self.labels)

    def trace(self, text: Text, target: Text | None = None) -> Tracer:
        """A pass over a text whose activations are recorded, and may be set, by name; nothing is computed before `run`.

            trace = lm.trace("The capital of France is").ablate("blocks.3.mixer", heads=1).run()
            trace.logits, trace["blocks.5.out"]

        Args:
            text: as for `inspect`.
            target: likewise.
        """
        return Tracer(self.model, self.inputs(text, target), self)

    def inputs(self, text: Text, target: Text | None = None) -> Inputs:
        """The inputs of the model's forward pass for a text; arguments as for `inspect`."""
        start = self.special.get("decoder_start_token_id")
        return inputs_of(self.model, self.tokenizer, text, target, start)

    def engine(self, num_prompts: int = 1, draft: "Draft | None" = None, lookup: bool = False) -> Engine:
        """An engine for some prompts and no more.

        Args:
            num_prompts: that are to be continued; the beginnings of one alone are not remembered.
            draft: as for `generate`.
            lookup: likewise.

        Raises:
            SpecError: the model does not continue texts, or cannot be used with guesses.
        """
        if not isinstance(self.model, EncoderDecoder):
            self._causal_model()
        prefix_bytes = PREFIX_BYTES if num_prompts > 1 else 0
        return Engine(self, min(max(num_prompts, 1), MAX_ROWS), prefix_bytes, draft=draft, lookup=lookup)

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

    def _causal_model(self) -> CausalModel:
        if isinstance(self.model, CausalModel) and getattr(self.model, "classifier", None) is None:
            return self.model
        raise self._wrong_kind()

    def _model(self, kind: type[M]) -> M:
        if isinstance(self.model, kind):
            return self.model
        raise self._wrong_kind()

    def _wrong_kind(self) -> SpecError:
        cause = f"a model of kind {self.spec.kind} cannot do this"
        if isinstance(self.model, Decoder) and self.model.classifier is not None:
            return SpecError(
                "model", "a decoder with a head for classes cannot do this", "it can embed or classify texts"
            )
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


Draft = LanguageModel | Literal["self"]  # what guesses: a smaller model, or the model itself
