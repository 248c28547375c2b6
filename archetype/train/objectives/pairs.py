"""Learning from pairs of texts: a target, given its source."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn

from archetype.data.pairs import PairBatches, Pairs, Rows
from archetype.train.objective import IGNORED, Batch, LossOutput, Task, scored
from archetype.train.recipe import SequenceToSequence


class PairsTask(Task):
    """Each token of the target, given the source and the tokens before."""

    def __init__(
        self, training: Pairs, validation: Pairs, batch_size: int, seed: int, objective: SequenceToSequence
    ) -> None:
        self.training, self.validation = training, validation
        self.batches = PairBatches(training, batch_size, seed)
        self.objective = objective
        self.fingerprint = f"{training.fingerprint}{validation.fingerprint}"

    @property
    def size(self) -> str:
        """How much there is to learn from, in words."""
        return f"{len(self.training):,} pairs of texts"

    def batch(self, step: int) -> Batch:
        """Sources and targets with the num_tokens of each."""
        return _tensors(*self.batches.batch(step))

    def held_out(self) -> Iterator[Batch]:
        """All pairs that are held out."""
        places = np.arange(len(self.validation))
        for start in range(0, len(places), self.batches.batch_size):
            yield _tensors(*self.validation.rows(places[start : start + self.batches.batch_size]))

    def held_out_batches(self) -> int:
        """How many batches `held_out` gives."""
        return -(-len(self.validation) // self.batches.batch_size)

    def outcome(self, model: nn.Module, batch: Batch) -> LossOutput:
        """The loss of every token after the first."""
        source, source_num_tokens, target, num_tokens = batch
        losses: list[Tensor] = []
        given, wanted = target[:, :-1], target[:, 1:]
        logits = model.teach(source, given, source_num_tokens, num_tokens - 1, losses)  # type: ignore[operator]
        steps = torch.arange(wanted.shape[1], device=wanted.device)
        wanted = wanted.masked_fill(steps >= (num_tokens - 1)[:, None], IGNORED)
        return scored(logits, wanted, self.objective.smoothing if model.training else 0.0, losses)


def _tensors(source: Rows, target: Rows) -> Batch:
    return (
        torch.from_numpy(source.tokens).long(),
        torch.from_numpy(source.num_tokens),
        torch.from_numpy(target.tokens).long(),
        torch.from_numpy(target.num_tokens),
    )
