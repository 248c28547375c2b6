"""Span corruption, the objective of T5."""

from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field
from torch import Tensor

from archetype.data.batches import Tokens
from archetype.data.corpus import Corpus
from archetype.data.packing import Documents
from archetype.errors import DataError
from archetype.models.spec import ModelSpec
from archetype.spec.kinds import part
from archetype.tokenizers import Tokenizer
from archetype.training.datasets import Data, RunningText
from archetype.training.objectives.base import Batch, ObjectiveConfig, ObjectiveInputs
from archetype.training.objectives.text import TextObjective, corpus_of


@part
class SpanCorruption(ObjectiveConfig):
    """Cross-entropy of the spans that were cut out of a text (Raffel 2019, section 3.1.4).

    Attributes:
        noise_density: fraction of tokens that are cut out.
        mean_span_length: mean number of tokens per span.
    """

    kind: Literal["span_corruption"] = "span_corruption"
    noise_density: Annotated[float, Field(gt=0, lt=1)] = 0.15
    mean_span_length: Annotated[float, Field(ge=1, le=1000)] = 3.0

    def suits(self, spec: ModelSpec, data: Data) -> bool:
        return spec.writes_target and isinstance(data, RunningText)

    def num_noise_tokens_and_spans(self, sequence_length: int) -> tuple[int, int]:
        """Return the number of tokens cut out of a row, and the number of spans."""
        cut = min(max(1, round(sequence_length * self.noise_density)), sequence_length - 1)
        # each span follows a gap of at least one token
        return cut, min(max(1, round(cut / self.mean_span_length)), cut, sequence_length - cut)

    def num_ids(self, tokenizer: Tokenizer, sequence_length: int) -> int:
        """Return the tokenizer's vocabulary size plus one sentinel per span and a final sentinel."""
        return tokenizer.vocab_size + self.num_noise_tokens_and_spans(sequence_length)[1] + 1

    def build(self, inputs: ObjectiveInputs) -> "SpanCorruptionObjective":
        vocab_size: int = getattr(inputs.spec, "vocab_size")  # noqa: B009
        sizes = (inputs.batch_size, inputs.sequence_length, inputs.seed)
        # sentinels are the last ids of the vocabulary, counting down, as in T5
        return SpanCorruptionObjective(corpus_of(inputs), *sizes, self, vocab_size - 1)


class SpanCorruptionObjective(TextObjective):
    def __init__(
        self,
        corpus: Corpus | Documents,
        batch_size: int,
        sequence_length: int,
        seed: int,
        config: SpanCorruption,
        first_sentinel: int,
    ) -> None:
        super().__init__(corpus, batch_size, sequence_length, seed)
        # ids of later sentinels count down from the first
        self.config, self.first_sentinel = config, first_sentinel
        if min(sequence_length, self.validation_windows.shape[1] - 1) < 2:
            cause = "a window of one token has no span to cut out"
            raise DataError("text", cause, "use a longer text or sequence_length")

    def examples(self, windows: Tokens, step: int) -> Batch:
        """Return sources (B, S) and targets (B, T + 1). All rows have the same number of spans and of removed tokens.

        A target consists of a sentinel and the removed tokens for each span, and a final sentinel.
        """
        generator = self.generator(step)
        corrupted = [self._cut_spans(window[:-1], generator) for window in windows]
        source, target = (np.stack(side) for side in zip(*corrupted, strict=True))
        return torch.from_numpy(source).long(), torch.from_numpy(target).long()

    def _cut_spans(self, tokens: Tokens, generator: np.random.Generator) -> tuple[Tokens, Tokens]:
        num_cut, num_spans = self.config.num_noise_tokens_and_spans(len(tokens))
        spans = _random_partition(num_cut, num_spans, generator)
        gaps = _random_partition(len(tokens) - num_cut, num_spans, generator)
        # one per span and a final one, (num_spans + 1,)
        sentinels = np.arange(self.first_sentinel, self.first_sentinel - num_spans - 1, -1, dtype=tokens.dtype)
        # gap, span, gap, span, ...
        pieces = np.split(tokens, np.cumsum(np.stack((gaps, spans), axis=1).ravel())[:-1])
        source = [part for n in range(num_spans) for part in (pieces[2 * n], sentinels[n : n + 1])]
        target = [part for n in range(num_spans) for part in (sentinels[n : n + 1], pieces[2 * n + 1])]
        return np.concatenate(source), np.concatenate([*target, sentinels[-1:]])

    def inputs_and_targets(self, batch: Batch) -> tuple[dict[str, Tensor], Tensor]:
        """Return sources and targets without the last token as inputs, and targets without the first token."""
        source, target = batch
        return {"source": source, "target": target[:, :-1]}, target[:, 1:]


def _random_partition(total: int, parts: int, generator: np.random.Generator) -> npt.NDArray[np.int64]:
    """Split `total` uniformly at random into `parts` integers of at least 1, (parts,)."""
    cuts = np.sort(generator.choice(total - 1, parts - 1, replace=False)) + 1 if parts > 1 else np.array([], dtype=int)
    return np.diff(np.concatenate(([0], cuts, [total])))
