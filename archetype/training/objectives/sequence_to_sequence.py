"""Sequence-to-sequence learning: predict a target text from its source."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from archetype.data.batches import Tokens
from archetype.data.example_counts import ExampleCounts
from archetype.data.pairs import Pairs, lines_of, tokenized
from archetype.errors import SpecError
from archetype.models.spec import ModelSpec
from archetype.spec.base import Probability
from archetype.spec.kinds import part
from archetype.training.datasets import Data, PairData
from archetype.training.objectives.base import IGNORED, Batch, ObjectiveConfig, ObjectiveInputs
from archetype.training.objectives.by_length import ByLengthObjective, padded


@part
class SequenceToSequence(ObjectiveConfig):
    """Cross-entropy of each target token, given the source and the tokens before it (Sutskever 2014).

    Attributes:
        label_smoothing: probability mass spread evenly over the vocabulary (Szegedy 2015; Vaswani 2017).
    """

    kind: Literal["sequence_to_sequence"] = "sequence_to_sequence"
    label_smoothing: Probability = 0.1

    def suits(self, spec: ModelSpec, data: Data) -> bool:
        return spec.writes_target and isinstance(data, PairData)

    def build(self, inputs: ObjectiveInputs) -> "SequenceToSequenceObjective":
        assert isinstance(inputs.data, PairData)
        # pairs are left out if either side is longer
        longest = inputs.sequence_length
        sides = inputs.data.sides(inputs.texts)
        training, validation = (tokenized(*side, inputs.text_tokenizer, longest) for side in sides)
        if not len(training) or not len(validation):
            cause = f"only {len(training)} training and {len(validation)} validation pairs fit into {longest} tokens"
            raise SpecError("data", cause, "use more pairs, or a longer sequence_length")
        num_pairs = sum(len(sources) for sources, _ in sides)
        counts = ExampleCounts(
            longest,
            num_too_long=num_pairs - len(training) - len(validation),
            num_empty=len(lines_of(inputs.texts["source"])) - num_pairs,
        )
        description = counts.described(f"{len(training):,} pairs of texts")
        return SequenceToSequenceObjective(
            training, validation, description, inputs.batch_size, inputs.seed, self.label_smoothing
        )


class SequenceToSequenceObjective(ByLengthObjective):
    """Sequence-to-sequence learning on batches of text pairs."""

    def __init__(
        self, training: Pairs, validation: Pairs, description: str, batch_size: int, seed: int, label_smoothing: float
    ) -> None:
        self.training, self.validation = training, validation
        self.description, self.label_smoothing = description, label_smoothing
        self.order_by(training.sort_keys, batch_size, seed)
        self.fingerprint = f"{training.fingerprint}{validation.fingerprint}"
        sequences = (*training.sources, *training.targets, *validation.sources, *validation.targets)
        self.batch_shape = self.order.batch_size, max(map(len, sequences))

    def collate(self, examples: Sequence[tuple[Tokens, Tokens]]) -> Batch:
        """Return sources (B, S), their lengths (B,), targets (B, T) and their lengths (B,)."""
        sources, targets = zip(*examples, strict=True)
        return *padded(sources), *padded(targets)

    def inputs_and_targets(self, batch: Batch) -> tuple[dict[str, Tensor], Tensor]:
        """Return sources and targets without the last token as inputs, and targets without the first token."""
        source, source_num_tokens, target, num_tokens = batch
        inputs = {
            "source": source,
            "source_num_tokens": source_num_tokens,
            "target": target[:, :-1],
            "num_tokens": num_tokens - 1,
        }
        targets = target[:, 1:]  # (B, T - 1)
        is_padding = torch.arange(targets.shape[1], device=targets.device) >= inputs["num_tokens"][:, None]
        return inputs, targets.masked_fill(is_padding, IGNORED)
