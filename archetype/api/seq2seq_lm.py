"""Encoder-decoders that generate a target from a source."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, overload

from archetype import evaluation, generate
from archetype.api.text_generator import TextGenerator
from archetype.data.pairs import read_pairs
from archetype.evaluation import TranslationScore
from archetype.generate import Translation
from archetype.generate.generation_config import never_written
from archetype.models.encoder_decoder.module import EncoderDecoder
from archetype.settings.generation import Beam, LogitsRules


class Seq2SeqLM(TextGenerator):
    """Encoder-decoder that generates a target from a source, as in translation."""

    model: EncoderDecoder
    _purpose = "translate or generate texts"

    @overload
    def translate(self, text: str, **beam: Any) -> str: ...

    @overload
    def translate(self, text: list[str], **beam: Any) -> list[str]: ...

    def translate(self, text: str | list[str], **beam: Any) -> str | list[str]:
        """Translate a source text, or several as one batch.

        Args:
            beam: fields of `Beam`, such as num_beams=5 or length_penalty=1.0.

        Raises:
            ArchetypeError: a setting is out of range, or a source is too long.
        """
        sources = [text] if isinstance(text, str) else text
        # all items but the last are steps of the search
        *_, targets = self.translations(sources, **beam)
        translated = [target.text for target in targets or ()]
        return translated[0] if isinstance(text, str) else translated

    def translations(self, sources: list[str], **beam: Any) -> Iterator[list[Translation] | None]:
        """Translate step by step. The last item has the targets. Arguments and errors are those of `translate`."""
        settings = self.beam(**beam)
        return generate.translations(self.model, self._tokenizer(), sources, settings, self.target_start)

    def evaluate(self, data: str | Path | tuple[str | Path, str | Path], **beam: Any) -> TranslationScore:
        """Translate sources and compare the results with reference targets.

        Args:
            data: two files with parallel lines of sources and targets, or a JSON lines file with both.
            beam: fields of `Beam`, such as num_beams=1.
        """
        tokenizer, settings = self._tokenizer(), self.beam(**beam)
        return evaluation.translation_score(self.model, tokenizer, *read_pairs(data), settings, self.target_start)

    def beam(self, **fields: Any) -> Beam:
        """Return the model's default beam search settings with some fields replaced.

        `max_extra_tokens` takes precedence over the limit in the model's files.
        """
        rules = {name: getattr(self.sampling, name) for name in LogitsRules.model_fields}
        rules["suppress_tokens"] = (*never_written(self.special), *self.sampling.suppress_tokens)
        if "max_extra_tokens" not in fields:
            rules["max_new_tokens"] = self.sampling.said_limit(num_prompt=1)  # the token that a target starts with
        return Beam.parse(rules | fields)
