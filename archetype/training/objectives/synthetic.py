"""Objective of synthetic tasks, with a loss on the answers only."""

import hashlib
import json
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from archetype.errors import SpecError
from archetype.models.spec import ModelSpec
from archetype.spec.kinds import part
from archetype.training.datasets import Data
from archetype.training.objectives.base import (
    IGNORED,
    Batch,
    Objective,
    ObjectiveConfig,
    ObjectiveInputs,
    split_batch,
)
from archetype.training.synthetic import Rows, SyntheticData


@part
class SyntheticTask(ObjectiveConfig):
    """Cross-entropy of the answers of a synthetic task."""

    kind: Literal["synthetic_task"] = "synthetic_task"

    def suits(self, spec: ModelSpec, data: Data) -> bool:
        if not isinstance(data, SyntheticData):
            return False
        return spec.writes_target if data.reads_source else spec.continues_text

    def build(self, inputs: ObjectiveInputs) -> "SyntheticObjective":
        assert isinstance(inputs.data, SyntheticData)
        for field, needed in (("vocab_size", inputs.data.num_ids), ("context_length", inputs.data.row_length)):
            size = getattr(inputs.spec, field)
            if size < needed:
                raise SpecError(field, f"{size} is too small for data of kind {inputs.data.kind}", f"use {needed}")
        return SyntheticObjective(inputs.data, inputs.batch_size, inputs.seed)


class SyntheticObjective(Objective):
    def __init__(self, data: SyntheticData, batch_size: int, seed: int) -> None:
        self.data, self.seed = data, seed
        self.description = f"generated examples of {data.kind}"
        self.fingerprint = hashlib.sha256(json.dumps(data.dump(full=True), sort_keys=True).encode()).hexdigest()
        self.batch_shape = batch_size, data.row_length
        self.held_out = list(split_batch(_tensors(data.held_out()), batch_size))
        self.num_validation_batches = len(self.held_out)

    def batch(self, step: int) -> Batch:
        # Philox, a counter-based generator: the examples of a step need no earlier steps
        key = np.array([self.seed + 1, step], dtype=np.uint64)
        assert self.batch_shape is not None
        return _tensors(self.data.rows(np.random.Generator(np.random.Philox(key=key)), self.batch_shape[0]))

    def validation_batch(self, index: int) -> Batch:
        return self.held_out[index]

    def inputs_and_targets(self, batch: Batch) -> tuple[dict[str, Tensor], Tensor]:
        """Return the tokens, and the source of an encoder-decoder, as inputs, and the answers as targets."""
        tokens, targets, *source = batch
        if not source:
            return {"tokens": tokens}, targets
        lengths = (targets != IGNORED).sum(1)  # with a source, all tokens but padding are answers
        return {"source": source[0], "source_num_tokens": source[1], "target": tokens, "num_tokens": lengths}, targets


def _tensors(rows: Rows) -> Batch:
    targets = np.where(rows.is_target, rows.tokens[:, 1:], IGNORED)
    arrays = (rows.tokens[:, :-1].copy(), targets, rows.source, rows.source_lengths)
    return tuple(torch.from_numpy(array) for array in arrays if array is not None)
