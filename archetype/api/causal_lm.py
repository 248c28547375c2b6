"""Models that generate text from left to right."""

from collections.abc import Iterator
from typing import Unpack

from archetype import evaluation
from archetype.api.text_embedder import TextEmbedder
from archetype.api.text_generator import TextGenerator
from archetype.errors import DataError
from archetype.evaluation import Score, TaskScores
from archetype.models.decoder.module import Decoder
from archetype.models.megabyte.module import MegaByte
from archetype.models.ngram.module import NGram
from archetype.settings.generation import SamplingFields
from archetype.tokenizers.chat_template import Message


class CausalLM(TextGenerator):
    """Model that generates text from left to right."""

    model: Decoder | NGram | MegaByte
    _purpose = "generate or score texts"

    def chat(self, messages: list[Message], **sampling: Unpack[SamplingFields]) -> str:
        """Generate the next answer in a conversation.

        Args:
            messages: dicts with the keys role (system, user or assistant) and content.
            sampling: fields of `Sampling`.

        Raises:
            DataError: the model has no chat template, or the template refuses these messages.
        """
        return "".join(self.stream_chat(messages, **sampling))

    def stream_chat(self, messages: list[Message], **sampling: Unpack[SamplingFields]) -> Iterator[str]:
        """Stream the next answer in a conversation. Arguments and errors are those of `chat`."""
        # continues=False: the answer follows the template's header, not a word, so no space is put in between
        return self.engine(1).submit(self.encode_chat(messages), continues=False, **sampling).pieces()

    def encode_chat(self, messages: list[Message]) -> list[int]:
        """Return the token ids of a conversation up to the model's next answer. Errors are those of `chat`."""
        tokenizer = self._tokenizer()
        if self.template is None:
            cause = "the model has no chat template (a base model, not trained to chat)"
            raise DataError("chat template", cause, "generate without chat")
        # the template writes special tokens as text
        return tokenizer.encode_with_special_tokens(self.template.render(messages))

    def score(self, text: str, stride: int | None = None, length: int | None = None) -> Score:
        """Compute the loss per token, perplexity, bits per byte and accuracy on a text of any length.

        Args:
            stride: tokens between the starts of two windows (default: half of `length`).
            length: tokens per window (default: the model's context, or less for a large vocabulary).
        """
        return evaluation.score(self.model, self._tokenizer(), text, stride, length)

    def evaluate_tasks(self, tasks: list[str], num_fewshot: int | None = None, limit: int | None = None) -> TaskScores:
        """Evaluate on tasks of EleutherAI's lm-eval harness.

        Args:
            tasks: task names, YAML files, or folders of YAML files.
            num_fewshot: examples before each question (default: the task's).
            limit: questions per task (default: all).

        Raises:
            ArchetypeError: lm-eval is not installed, or a task does not exist.
        """
        self._tokenizer()  # refused before lm-eval is imported
        return evaluation.evaluate_tasks(self, tasks, num_fewshot, limit)


class DecoderLM(CausalLM, TextEmbedder):
    """Decoder with a language model head, which can also embed texts."""

    model: Decoder
    _purpose = "generate, score or embed texts"
