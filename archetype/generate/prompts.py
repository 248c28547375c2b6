"""Tokenization of prompts, with the special tokens at their start and end."""

from archetype.data.pairs import end_of_text
from archetype.errors import DataError, SpecError
from archetype.models.build import GenerativeModel
from archetype.tokenizers import Tokenizer
from archetype.tokenizers.tokenizer import check_utf8


class PromptEncoder:
    """Tokenizer of prompts, or of sources and target prefixes, that checks whether the model can read them.

    Args:
        tokenizer: None if prompts are token ids.
        start: the token that a target starts with (None: the end token).
    """

    def __init__(self, model: GenerativeModel, tokenizer: Tokenizer | None, start: int | None) -> None:
        self._tokenizer, self._start = tokenizer, start
        self._vocab_size, self._context_length = model.spec.vocab_size, model.spec.context_length
        self._has_source = model.spec.reads_source
        self._input_vocab_size = model.spec.input_vocab_size

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer.

        Raises:
            DataError: the model has no tokenizer, so prompts must be token ids.
        """
        if self._tokenizer is None:
            raise DataError(
                "tokenizer", "the model's folder has no tokenizer", "add its tokenizer.json or tokenizer.model"
            )
        return self._tokenizer

    def encode(self, prompt: str | list[int], place: str = "prompt") -> list[int]:
        """Tokenize a prompt, with the special tokens that the tokenizer's files add. An empty prompt becomes bos.

        A source ends with the end token.

        Args:
            prompt: text, or token ids, which are only checked.
            place: name of the prompt in error messages.

        Raises:
            ArchetypeError: the prompt is empty or longer than the context, or contains ids outside the vocabulary.
        """
        if isinstance(prompt, list):
            ids = prompt
        else:
            ids = self._with_eos(prompt) if self._has_source else self.tokenizer.encode_prompt(prompt)
        if not ids:  # an empty text, and no bos token
            raise SpecError(place, "is empty, and the tokenizer has no start token", "provide some text")
        self._check(ids, self._input_vocab_size, place)
        return list(ids)

    def target(self, target: str | list[int]) -> list[int]:
        """Return the tokens of a target before the first generated token; empty for models without a source.

        Raises:
            ArchetypeError: the target is longer than the context, or contains ids outside the vocabulary.
        """
        if not self._has_source:
            if target:
                raise SpecError("target", "needs an encoder-decoder", "remove it")
            return []
        ids = target if isinstance(target, list) else self.tokenizer.encode_target(target) if target else []
        start = end_of_text(self.tokenizer) if self._start is None else self._start
        self._check([start, *ids, start], self._vocab_size, "target")  # leave room for the end token
        return [start, *ids]

    def _check(self, ids: list[int], vocab_size: int, place: str) -> None:
        if len(ids) > self._context_length:
            cause = f"has {len(ids)} tokens, but the model's context is {self._context_length}"
            raise SpecError(place, cause, "shorten it")
        if not 0 <= min(ids) <= max(ids) < vocab_size:
            cause = f"contains a token id outside the vocabulary of {vocab_size}"
            raise SpecError(place, cause, "is it the model's own tokenizer?")

    def _with_eos(self, text: str) -> list[int]:
        return [*self.tokenizer.encode(check_utf8(text)), end_of_text(self.tokenizer)]
