"""A model with its tokenizer: what `archetype.load` gives, and its verbs."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar, overload

import torch

from archetype import generate
from archetype.errors import DataError, SpecError
from archetype.families import Family
from archetype.generate import Beam, Pooling, Prediction
from archetype.generate.settings import Sampling
from archetype.generate.special_ids import never_written
from archetype.models import CausalModel, Decoder, Encoder, EncoderDecoder, MegaByte, Model, NGram, VisionEncoder
from archetype.spec import ModelSpec
from archetype.tokenizers import Tokenizer
from archetype.tokenizers.chat_template import ChatTemplate, Message

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
        ids = tokenizer.encode_with_special_tokens(self.template.render(messages))
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

    def fill(self, text: str, top: int = 5) -> list[list[Prediction]]:
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
        return self.sampling.replace(**sampling)

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
