"""Models that generate text: decoders and encoder-decoders."""

from collections.abc import Iterator
from typing import Literal, Self, Unpack, overload

import torch

from archetype import generate
from archetype.api.language_model import LanguageModel
from archetype.generate import Engine
from archetype.models.decoder.module import Decoder
from archetype.models.encoder_decoder.module import EncoderDecoder
from archetype.models.megabyte.module import MegaByte
from archetype.models.ngram.module import NGram
from archetype.settings.generation import Sampling, SamplingFields

MAX_BATCH = 32  # prompts decoded in one batch
PREFIX_BYTES = 2**28  # prefix cache for prompts with a common beginning
Draft = LanguageModel | Literal["self"]  # draft model, or "self" for the model's multi-token prediction layers


class TextGenerator(LanguageModel):
    """Base class of models that generate text. Without a tokenizer, prompts and results are token ids."""

    model: Decoder | NGram | MegaByte | EncoderDecoder

    @overload
    def generate(
        self,
        prompt: str,
        *,
        draft: Draft | None = None,
        lookup: bool = False,
        **sampling: Unpack[SamplingFields],
    ) -> str: ...

    @overload
    def generate(
        self,
        prompt: list[str],
        *,
        draft: Draft | None = None,
        lookup: bool = False,
        **sampling: Unpack[SamplingFields],
    ) -> list[str]: ...

    def generate(
        self,
        prompt: str | list[str],
        *,
        draft: Draft | None = None,
        lookup: bool = False,
        **sampling: Unpack[SamplingFields],
    ) -> str | list[str]:
        """Continue a prompt, or several as one batch. An encoder-decoder generates the target of each source.

        Args:
            prompt: a text, or a list of texts.
            draft: draft model with the same vocabulary, for speculative decoding, which does not change the output; or
                "self", to draft by multi-token prediction.
            lookup: draft by prompt lookup instead, for outputs that repeat the prompt in part.
            sampling: fields of `Sampling`, such as max_new_tokens=200 or temperature=0.8.

        Returns:
            The continuation without the prompt, or a list of continuations.

        Raises:
            ArchetypeError: a setting is out of range, or a prompt is too long.
        """
        prompts = [prompt] if isinstance(prompt, str) else prompt
        continuations = [""] * len(prompts)
        for index, piece in self.stream_all(prompts, draft=draft, lookup=lookup, **sampling):
            continuations[index] += piece
        return continuations[0] if isinstance(prompt, str) else continuations

    def stream(
        self,
        prompt: str,
        *,
        draft: Draft | None = None,
        lookup: bool = False,
        **sampling: Unpack[SamplingFields],
    ) -> Iterator[str]:
        """Stream the continuation of a prompt as texts of whole characters. Arguments are those of `generate`."""
        return self.engine(1, draft, lookup).submit(prompt, **sampling).pieces()

    def stream_all(
        self,
        prompts: list[str],
        *,
        draft: Draft | None = None,
        lookup: bool = False,
        **sampling: Unpack[SamplingFields],
    ) -> Iterator[tuple[int, str]]:
        """Stream the continuations of several prompts as pairs (index of the prompt, new text).

        Takes the same arguments as `generate`.
        """
        engine = self.engine(len(prompts), draft, lookup)
        several = len(prompts) > 1  # messages then number the prompts
        requests = [engine.submit(text, id=n if several else None, **sampling) for n, text in enumerate(prompts, 1)]
        # events of all requests come interleaved
        index = {request: n for n, request in enumerate(requests)}
        return ((index[event.request], event.text) for event in engine.events() if event.text)

    def engine(self, num_prompts: int = 1, draft: Draft | None = None, lookup: bool = False) -> Engine:
        """Return a generation engine for `num_prompts` prompts. If there are several, their common prefixes are cached.

        Raises:
            SpecError: the model does not support speculative decoding with this draft.
        """
        # a single prompt has no other to share a prefix with
        prefix_bytes = PREFIX_BYTES if num_prompts > 1 else 0
        return Engine(self, min(max(num_prompts, 1), MAX_BATCH), prefix_bytes, draft=draft, lookup=lookup)

    def settings(self, **sampling: Unpack[SamplingFields]) -> Sampling:
        """Return the default sampling settings with some fields replaced."""
        return self.sampling.replace(**sampling)

    def use_state_dtype(self, dtype: str | torch.dtype) -> Self:
        """Keep keys and values in this type while generating, as `load(..., state_dtype=dtype)` does. Return self.

        Raises:
            SpecError: the type is not supported, or no layer of the model keeps keys.
        """
        generate.use_state_dtype(self.model, dtype)
        return self

    def make_deterministic(self) -> Self:
        """Make logits independent of the batch, bit for bit, as `load(..., deterministic=True)` does. Return self.

        Raises:
            SpecError: the model's kernels depend on the batch.
        """
        generate.make_deterministic(self.model)
        return self
