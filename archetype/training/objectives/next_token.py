"""Causal language modelling: each position's next token."""

from typing import Literal

import torch
from torch import Tensor

from archetype import spec as specs
from archetype.data.batches import Tokens
from archetype.data.corpus import Corpus
from archetype.spec.part import part
from archetype.training.datasets import Data, TextData
from archetype.training.objectives.base import Batch, ObjectiveConfig, ObjectiveInputs
from archetype.training.objectives.text import TextObjective, corpus_of


@part
class NextToken(ObjectiveConfig):
    """Cross-entropy of each position's next token."""

    kind: Literal["next_token"] = "next_token"

    def suits(self, spec: specs.ModelSpec, data: Data) -> bool:
        """A model that writes text, and text."""
        return isinstance(spec, specs.CausalSpec) and isinstance(data, TextData)

    def build(self, inputs: ObjectiveInputs) -> "NextTokenObjective":
        """The examples and the loss."""
        return NextTokenObjective(corpus_of(inputs), inputs.batch_size, inputs.sequence_length, inputs.seed)


class NextTokenObjective(TextObjective):
    """Windows of text, (B, T + 1), of which all tokens but the first are predicted."""

    def __init__(self, corpus: Corpus, batch_size: int, sequence_length: int, seed: int) -> None:
        super().__init__(corpus, batch_size, sequence_length, seed)
        self.bytes_per_unit = corpus.validation_bytes / len(corpus.validation)

    def examples(self, windows: Tokens, step: int) -> Batch:
        """The windows themselves."""
        return (torch.from_numpy(windows).long(),)

    def inputs_and_targets(self, batch: Batch) -> tuple[dict[str, Tensor], Tensor]:
        """The first T of T + 1 tokens, and the last T."""
        (tokens,) = batch
        return {"tokens": tokens[:, :-1]}, tokens[:, 1:]
