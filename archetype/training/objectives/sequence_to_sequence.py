"""Sequence-to-sequence learning: predict a target text from its source."""

from typing import Literal

import numpy as np
import torch
from torch import Tensor

from archetype.data.example_counts import ExampleCounts
from archetype.data.pairs import PairBatches, Pairs, Rows, lines_of, tokenized
from archetype.errors import SpecError
from archetype.models.spec import ModelSpec
from archetype.spec.base import Probability
from archetype.spec.kinds import part
from archetype.training.datasets import Data, PairData
from archetype.training.objectives.base import IGNORED, Batch, Objective, ObjectiveConfig, ObjectiveInputs


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


class SequenceToSequenceObjective(Objective):
    """Sequence-to-sequence learning on batches of text pairs with similar lengths, padded at the end."""

    def __init__(
        self, training: Pairs, validation: Pairs, description: str, batch_size: int, seed: int, label_smoothing: float
    ) -> None:
        self.validation, self.description, self.label_smoothing = validation, description, label_smoothing
        self.batches = PairBatches(training, batch_size, seed)
        self.fingerprint = f"{training.fingerprint}{validation.fingerprint}"
        sequences = (*training.sources, *training.targets, *validation.sources, *validation.targets)
        self.batch_shape = self.batches.batch_size, max(map(len, sequences))
        self.num_validation_batches = -(-len(validation) // self.batches.batch_size)
        self.steps_per_epoch = self.batches.per_epoch

    def batch(self, step: int) -> Batch:
        """Return sources (B, S), their lengths (B,), targets (B, T) and their lengths (B,)."""
        return _tensors(*self.batches.batch(step))

    def validation_batch(self, index: int) -> Batch:
        indices = np.arange(len(self.validation))[index * self.batches.batch_size :][: self.batches.batch_size]
        return _tensors(*self.validation.rows(indices))

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


def _tensors(source: Rows, target: Rows) -> Batch:
    return tuple(
        tensor
        for side in (source, target)
        for tensor in (torch.from_numpy(side.tokens).long(), torch.from_numpy(side.num_tokens))
    )
