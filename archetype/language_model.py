"""A model with its tokenizer: what `archetype.load` gives and every verb takes."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar, overload

import torch

from archetype import generate
from archetype.checkpoint import durable, gguf, hf, hub
from archetype.checkpoint.model_card import MODEL_CARD, model_card
from archetype.checkpoint.run import Run, read_run_model, write_run_spec, write_weights
from archetype.checkpoint.tensors import SHARD_BYTES
from archetype.data.chat import FILE as CHAT_TEMPLATE
from archetype.data.chat import ChatTemplate, Message, read_template
from archetype.data.tokenizer import Tokenizer, open_tokenizer
from archetype.errors import CheckpointError, DataError, SpecError
from archetype.families import PUBLISHED, Family, family_for
from archetype.families.classes import read_labels
from archetype.families.source import read_config
from archetype.generate import Beam, Guess, Pooling
from archetype.generate.settings import GENERATION_CONFIG, Sampling, generation_config, read_generation_config
from archetype.generate.special_ids import never_written, special_ids
from archetype.model import CausalModel, Decoder, Encoder, EncoderDecoder, MegaByte, Model, NGram, VisionEncoder
from archetype.spec import ModelSpec

M = TypeVar("M")
# What each kind of model is for, in the words of the command line.
VERBS: dict[type, str] = {
    Decoder: "generate",
    NGram: "generate",
    MegaByte: "generate",
    EncoderDecoder: "translate",
    Encoder: "fill, embed or classify texts",
    VisionEncoder: "classify images",
}


@dataclass
class LanguageModel:
    """A specification, its model and its tokenizer, ready to generate.

    Attributes:
        tokenizer: None where the folder holds none; text then cannot go in or out.
        sampling: what generation does where the caller says nothing.
        special: ids that start, end and pad a text, as the folder's files give them.
        labels: what the classes are called; empty where they have numbers only.
        template: how a conversation is written; None for a model that only continues texts.
    """

    spec: ModelSpec
    model: Model
    tokenizer: Tokenizer | None = None
    sampling: Sampling = field(default_factory=lambda: Sampling(temperature=0.0))
    special: dict[str, Any] = field(default_factory=dict)
    family: Family | None = None
    labels: tuple[str, ...] = ()
    template: ChatTemplate | None = None

    @overload
    def generate(self, prompt: str, **sampling: Any) -> str: ...

    @overload
    def generate(self, prompt: list[str], **sampling: Any) -> list[str]: ...

    def generate(self, prompt: str | list[str], **sampling: Any) -> str | list[str]:
        """The continuation of a prompt, or of each of several at once.

        Args:
            prompt: text, or a list of texts.
            sampling: any field of `Sampling`, such as max_new_tokens=200 or temperature=0.8.
        """
        prompts = [prompt] if isinstance(prompt, str) else prompt
        model = self._writer()
        texts = generate.generate(model, self._tokenizer(), prompts, self.settings(**sampling))
        return texts[0] if isinstance(prompt, str) else texts

    def stream(self, prompt: str, **sampling: Any) -> Iterator[str]:
        """The continuation of a prompt, piece by piece, never cutting a character in two."""
        return (piece for _, piece in self.stream_all([prompt], **sampling))

    def stream_all(self, prompts: list[str], **sampling: Any) -> Iterator[tuple[int, str]]:
        """(number of the prompt, next piece) for several prompts at once."""
        model = self._writer()
        return generate.stream(model, self._tokenizer(), prompts, self.settings(**sampling))

    def chat(self, messages: list[Message], **sampling: Any) -> str:
        """The answer to a conversation.

        Args:
            messages: each with its role (system, user, assistant) and its content.
            sampling: any field of `Sampling`.

        Raises:
            DataError: the model has no chat template, or it refuses these messages.
        """
        return "".join(self.stream_chat(messages, **sampling))

    def stream_chat(self, messages: list[Message], **sampling: Any) -> Iterator[str]:
        """The answer to a conversation, piece by piece."""
        model, tokenizer = self._writer(), self._tokenizer()
        if self.template is None:
            cause = "the folder has none: this model continues texts and was not made to answer"
            raise DataError("chat template", cause, "generate without chat")
        ids = tokenizer.encode_rendered(self.template.render(messages))
        return (piece for _, piece in generate.stream_ids(model, tokenizer, [ids], self.settings(**sampling)))

    @overload
    def translate(self, text: str, **beam: Any) -> str: ...

    @overload
    def translate(self, text: list[str], **beam: Any) -> list[str]: ...

    def translate(self, text: str | list[str], **beam: Any) -> str | list[str]:
        """The target of a source text, or of each of several, by an encoder-decoder.

        Args:
            text: a source, or a list of sources.
            beam: any field of `Beam`, such as beams=5 or length_penalty=1.0.
        """
        sources = [text] if isinstance(text, str) else text
        model = self._model(EncoderDecoder)
        start = self.special.get("decoder_start_token_id")
        settings = Beam.parse({"never": never_written(self.special)} | beam)
        targets = generate.translate(model, self._tokenizer(), sources, settings, start)
        return targets[0] if isinstance(text, str) else targets

    def fill(self, text: str, top: int = 5) -> list[list[Guess]]:
        """The likeliest tokens for every [MASK] of a text, by an encoder."""
        return generate.fill(self._model(Encoder), self._tokenizer(), text, top)

    def embed(self, texts: list[str], pooling: Pooling = "mean", normalized: bool = True) -> torch.Tensor:
        """A vector for each text, by an encoder: the mean of its tokens' vectors, or the first's; of length 1."""
        return generate.embed(self._model(Encoder), self._tokenizer(), texts, pooling, normalized)

    def classify(self, given: torch.Tensor | list[str]) -> torch.Tensor:
        """The probability of each class, (B, classes), for pictures (B, C, H, W) or texts, by an encoder."""
        if isinstance(given, torch.Tensor):
            return generate.classify_pictures(self._model(VisionEncoder), given)
        return generate.classify_texts(self._model(Encoder), self._tokenizer(), given)

    def settings(self, **sampling: Any) -> Sampling:
        """The model's own settings with some replaced."""
        return self.sampling.changed(**sampling)

    def _writer(self) -> CausalModel:
        """The model, where it is of a kind that writes text."""
        if isinstance(self.model, CausalModel):
            return self.model
        raise self._other_kind()

    def _model(self, kind: type[M]) -> M:
        """The model, where it is of the kind that can do what was asked."""
        if isinstance(self.model, kind):
            return self.model
        raise self._other_kind()

    def _other_kind(self) -> SpecError:
        verb = VERBS[type(self.model)]
        return SpecError("model", f"a model of kind {self.spec.kind} cannot do this", f"it is there to {verb}")

    def _tokenizer(self) -> Tokenizer:
        if self.tokenizer is None:
            raise DataError("tokenizer", "the model's folder holds none", "add its tokenizer.json or tokenizer.model")
        return self.tokenizer


def load(
    folder: str | Path,
    dtype: torch.dtype | None = None,
    device: str | torch.device = "cpu",
    pickled: bool = False,
) -> LanguageModel:
    """The model in a run directory or a Hugging Face folder, or one of huggingface.co.

    Args:
        folder: holds spec.yaml (a run) or config.json (Hugging Face); or the name of a model there, owner/name.
        dtype: type of the weights (absent: as stored).
        device: where they go.
        pickled: also read pytorch_model.bin, by an unpickler that makes nothing but tensors.

    Raises:
        CheckpointError: names the file and what is wrong with it.
    """
    folder, device = hub.local(Path(folder), pickled), torch.device(device)
    run = Run(folder)
    if run.exists:
        model = read_run_model(run, dtype, device)
        tokenizer = open_tokenizer(run.tokenizer_folder) if run.tokenizer_folder.is_dir() else None
        sampling, special = read_generation_config(folder)
        special = special_ids(special, folder / GENERATION_CONFIG)
        if not (folder / GENERATION_CONFIG).is_file():
            sampling = Sampling(temperature=0.8)
        return LanguageModel(model.spec, model, tokenizer, sampling, special)
    if not folder.is_dir():
        raise CheckpointError(str(folder), "there is no such folder", "give a run directory or a Hugging Face folder")
    if not (folder / "config.json").is_file():
        cause = "is neither a run directory (spec.yaml) nor a Hugging Face folder (config.json)"
        raise CheckpointError(str(folder), cause, "check the path")
    return _load_hf(folder, dtype, device, pickled)


def save_run(lm: LanguageModel, folder: Path) -> None:
    """Write a language model as a run directory."""
    with durable.new_folder(folder) as temporary:
        run = Run(temporary)
        write_run_spec(run, lm.spec)
        write_weights(run, lm.model)
        durable.write_json(temporary / GENERATION_CONFIG, lm.special | generation_config(lm.sampling))
        if lm.tokenizer is not None:
            run.tokenizer_folder.mkdir()
            lm.tokenizer.save(run.tokenizer_folder)


def export(
    lm: LanguageModel,
    folder: str | Path,
    family: str | None = None,
    shard_bytes: int | None = None,
    format: Literal["hf", "gguf"] = "hf",
) -> Family:
    """Write a language model as a folder for other programs, whole or not at all, and compare what is read back.

    Args:
        folder: must not exist, or be empty.
        family: the published format (absent: the one it was loaded from, or the first that can express it).
        shard_bytes: the size above which the weights go into several files.
        format: hf for transformers and what reads its folders, gguf for llama.cpp.

    Raises:
        CheckpointError: names the field that the format cannot express.
    """
    if family is not None and family not in PUBLISHED:
        raise CheckpointError("family", f"{family!r} has no format known here", f"use one of {', '.join(PUBLISHED)}")
    chosen = PUBLISHED[family] if family else lm.family or family_for(lm.spec)
    chosen.format.config_for(lm.spec)  # refuses before anything is written
    special = _special_ids(lm)
    with durable.new_folder(Path(folder)) as temporary:
        if format == "gguf":
            start = special.get("decoder_start_token_id")
            gguf.write_gguf(lm.model, chosen, lm.tokenizer, temporary / gguf.FILE, lm.template, start)
            return chosen
        hf.write_model(lm.model, chosen, temporary, special | _label_names(lm), shard_bytes or SHARD_BYTES)
        if isinstance(lm.model, CausalModel | EncoderDecoder):
            durable.write_json(temporary / GENERATION_CONFIG, special | generation_config(lm.sampling))
        if lm.tokenizer is not None:
            lm.tokenizer.save(temporary)
        if lm.template is not None:
            durable.write_bytes(temporary / CHAT_TEMPLATE, lm.template.source.encode())
        durable.write_bytes(temporary / MODEL_CARD, model_card(lm.spec, chosen).encode())
        hf.compare(lm.model, temporary)
    return chosen


def _load_hf(folder: Path, dtype: torch.dtype | None, device: torch.device, pickled: bool) -> LanguageModel:
    family, config = read_config(folder)
    model = hf.read_model(folder, dtype, device, pickled)
    sampling, special = read_generation_config(folder)
    special = special_ids(config, folder / "config.json") | special_ids(special, folder / GENERATION_CONFIG)
    tokenizer = _tokenizer_of(folder)
    if tokenizer is not None:
        _apply_special(tokenizer, special)
    return LanguageModel(
        model.spec, model, tokenizer, sampling, special, family, read_labels(config), read_template(folder)
    )


def _tokenizer_of(folder: Path) -> Tokenizer | None:
    """The folder's tokenizer; None where there is no file of one."""
    try:
        return open_tokenizer(folder)
    except DataError as error:
        if error.place == str(folder):
            return None
        raise


def _apply_special(tokenizer: Tokenizer, special: dict[str, Any]) -> None:
    """The ids in the model's files go before the tokenizer's own."""
    bos, eos = special.get("bos_token_id"), special.get("eos_token_id")
    tokenizer.bos = tokenizer.bos if bos is None else bos
    tokenizer.eos = tuple(eos if isinstance(eos, list) else [] if eos is None else [eos]) or tokenizer.eos


def _special_ids(lm: LanguageModel) -> dict[str, Any]:
    """What config.json says of a text's first and last token; null where there is none.

    A target begins with the token that ends it, unless the files say otherwise.
    """
    ids: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    if lm.tokenizer is not None:
        ends = lm.tokenizer.eos
        ids |= {"bos_token_id": lm.tokenizer.bos, "eos_token_id": ends[0] if len(ends) == 1 else list(ends) or None}
        if ends and isinstance(lm.model, EncoderDecoder):
            ids |= {"pad_token_id": ends[0], "decoder_start_token_id": ends[0]}
    return ids | {name: value for name, value in lm.special.items() if value is not None}


def _label_names(lm: LanguageModel) -> dict[str, Any]:
    """What config.json says of classes that have names."""
    if not lm.labels:
        return {}
    names = dict(enumerate(lm.labels))
    return {"id2label": {str(id): name for id, name in names.items()}, "label2id": {n: id for id, n in names.items()}}
