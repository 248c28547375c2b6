"""Causal language modeling: predict the next token at each position."""

from typing import Literal

import numpy as np
import torch
from torch import Tensor

from archetype.data.batches import Tokens
from archetype.data.corpus import Corpus
from archetype.data.packing import Documents, HeldOutRows, PackedBatches, PackedRows
from archetype.models.decoder.module import check_documents_are_separate
from archetype.models.spec import ModelSpec
from archetype.spec.kinds import part
from archetype.training.datasets import Data, RunningText
from archetype.training.objectives.base import IGNORED, Batch, ObjectiveConfig, ObjectiveInputs
from archetype.training.objectives.text import TextObjective, corpus_of


@part
class NextToken(ObjectiveConfig):
    """Cross-entropy of each position's next token."""

    kind: Literal["next_token"] = "next_token"

    def suits(self, spec: ModelSpec, data: Data) -> bool:
        return spec.continues_text and isinstance(data, RunningText)

    def build(self, inputs: ObjectiveInputs) -> "NextTokenObjective":
        corpus = corpus_of(inputs, separates_documents=True)
        sizes = (inputs.batch_size, inputs.sequence_length, inputs.seed)
        if not isinstance(corpus, Documents):
            return NextTokenObjective(corpus, *sizes)
        if corpus.separate:
            field = "data.cross_document_attention"
            check_documents_are_separate(inputs.spec, field, f"remove {field}")
        return PackedNextTokenObjective(corpus, *sizes)


class NextTokenObjective(TextObjective):
    """Next-token prediction on windows of text, (B, T + 1)."""

    def __init__(self, corpus: Corpus | Documents, batch_size: int, sequence_length: int, seed: int) -> None:
        super().__init__(corpus, batch_size, sequence_length, seed)
        self.bytes_per_unit = corpus.bytes_per_token

    def examples(self, windows: Tokens, step: int) -> Batch:
        return (torch.from_numpy(windows).long(),)

    def inputs_and_targets(self, batch: Batch) -> tuple[dict[str, Tensor], Tensor]:
        """Return the first T tokens as inputs and the last T as targets, both (B, T)."""
        (tokens,) = batch
        return {"tokens": tokens[:, :-1]}, tokens[:, 1:]


class PackedNextTokenObjective(NextTokenObjective):
    """Next-token prediction on packed documents, (B, T + 1): each token is predicted once per epoch.

    If attention stays within a document, the first token of each document is not predicted.
    """

    corpus: Documents
    batches: PackedBatches
    validation_windows: HeldOutRows

    def batch(self, step: int) -> Batch:
        """Return tokens and targets of a step, both (B, T), and document ids if attention stays within a document."""
        return self._tensors(self.batches.rows(step, self.corpus.separate))

    def validation_batch(self, index: int) -> Batch:
        first = index * self.batch_size
        return self._tensors(self.validation_windows.rows(slice(first, first + self.batch_size)))

    def _tensors(self, rows: PackedRows) -> Batch:
        targets = rows.tokens[:, 1:].astype(np.int64)
        targets[np.arange(targets.shape[1]) >= rows.num_targets[:, None]] = IGNORED  # (B, T) padding
        targets[rows.document_ids[:, 1:] != rows.document_ids[:, :-1]] = IGNORED  # all ids are 0 unless separate
        arrays = (rows.tokens[:, :-1].astype(np.int64), targets, rows.document_ids[:, :-1].copy())
        return tuple(map(torch.from_numpy, arrays[: 3 if self.corpus.separate else 2]))

    def inputs_and_targets(self, batch: Batch) -> tuple[dict[str, Tensor], Tensor]:
        tokens, targets, *ids = batch
        return {"tokens": tokens} | ({"document_ids": ids[0]} if ids else {}), targets
