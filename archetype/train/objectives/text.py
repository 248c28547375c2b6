"""Learning from a text: the next token, hidden tokens, or spans that were cut out."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn

from archetype.data.batches import Batches, Tokens, windows
from archetype.data.corpus import Corpus
from archetype.errors import DataError
from archetype.train.objective import IGNORED, Batch, LossOutput, Task, scored
from archetype.train.recipe import MaskedToken, SpanCorruption


class TextTask(Task):
    """Windows of a text; the last part is held out."""

    def __init__(self, corpus: Corpus, batch_size: int, length: int, seed: int) -> None:
        self.corpus = corpus
        self.fingerprint = corpus.fingerprint
        self.batch_size, self.length, self.seed = batch_size, length, seed
        self.batches = Batches(corpus.training, batch_size, length, seed)
        self.rows = windows(corpus.validation, length)

    @property
    def size(self) -> str:
        """How much there is to learn from, in words."""
        return f"{len(self.corpus.training):,} tokens of text"

    def batch(self, step: int) -> Batch:
        """The windows of a step."""
        return self.made(self.batches.batch(step), step)

    def held_out(self) -> Iterator[Batch]:
        """Whole windows of the held-out text, in order."""
        for index in range(self.held_out_batches()):
            yield self.made(self.rows[index * self.batch_size : (index + 1) * self.batch_size], -1 - index)

    def held_out_batches(self) -> int:
        """How many batches `held_out` gives."""
        return -(-len(self.rows) // self.batch_size)

    def made(self, rows: Tokens, step: int) -> Batch:
        """What a model is given of windows, (B, T + 1); what is random about it follows from the seed and the step."""
        return (torch.from_numpy(rows).long(),)

    def drawing(self, step: int) -> np.random.Generator:
        """The random numbers of a step; held-out batches have steps below 0."""
        key = np.array([self.seed + 1, step % 2**64], dtype=np.uint64)  # a list of such numbers would become floats
        return np.random.Generator(np.random.Philox(key=key))


class NextTokenTask(TextTask):
    """Each position's next token."""

    def __init__(self, corpus: Corpus, batch_size: int, length: int, seed: int) -> None:
        super().__init__(corpus, batch_size, length, seed)
        self.bytes_per_unit = corpus.validation_bytes / len(corpus.validation)

    def outcome(self, model: nn.Module, batch: Batch) -> LossOutput:
        """The loss of the last T of T + 1 tokens."""
        (tokens,) = batch
        losses: list[Tensor] = []
        return scored(model(tokens[:, :-1], losses=losses), tokens[:, 1:], losses=losses)


class MaskedTokenTask(TextTask):
    """Tokens that were hidden: `mask` stands in their place, or any of the `vocab_size` ids of the tokenizer."""

    def __init__(
        self,
        corpus: Corpus,
        batch_size: int,
        length: int,
        seed: int,
        objective: MaskedToken,
        mask: int,
        vocab_size: int,
    ) -> None:
        super().__init__(corpus, batch_size, length, seed)
        self.objective, self.mask, self.vocab_size = objective, mask, vocab_size

    def made(self, rows: Tokens, step: int) -> Batch:
        """(B, T) with tokens hidden, and (B, T) with what they were; all others are ignored."""
        drawing, tokens = self.drawing(step), rows[:, :-1]
        order = drawing.random(tokens.shape).argsort(axis=1)
        chosen = order < max(1, round(self.objective.share * tokens.shape[1]))
        fate = drawing.random(tokens.shape)
        seen = np.where(chosen & (fate < 0.8), self.mask, tokens)
        seen = np.where(chosen & (fate >= 0.9), drawing.integers(self.vocab_size, size=tokens.shape), seen)
        targets = np.where(chosen, tokens, IGNORED)
        return torch.from_numpy(seen).long(), torch.from_numpy(targets).long()

    def outcome(self, model: nn.Module, batch: Batch) -> LossOutput:
        """The loss of what was hidden."""
        seen, targets = batch
        losses: list[Tensor] = []
        return scored(model(seen, losses=losses), targets, losses=losses)


class SpanCorruptionTask(TextTask):
    """Spans that were cut out of a text.

    `first` is the sentinel of the first span; those of later spans count down from it. The target is each sentinel with
    its span, and one more sentinel at the end.
    """

    def __init__(
        self, corpus: Corpus, batch_size: int, length: int, seed: int, objective: SpanCorruption, first: int
    ) -> None:
        super().__init__(corpus, batch_size, length, seed)
        self.objective, self.first = objective, first
        if min(length, self.rows.shape[1] - 1) < 2:
            raise DataError("text", "a window of one token has no span to cut out", "give a longer text and length")

    def made(self, rows: Tokens, step: int) -> Batch:
        """Sources (B, S) and targets (B, T + 1): all rows have the same number of spans and of tokens in them."""
        drawing = self.drawing(step)
        pairs = [self._cut(row[:-1], drawing) for row in rows]
        source, target = (np.stack(side) for side in zip(*pairs, strict=True))
        return torch.from_numpy(source).long(), torch.from_numpy(target).long()

    def _cut(self, tokens: Tokens, drawing: np.random.Generator) -> tuple[Tokens, Tokens]:
        cut, spans = corrupted(len(tokens), self.objective)
        lengths = _split(cut, spans, drawing)
        gaps = _split(len(tokens) - cut, spans, drawing)
        source: list[Tokens] = []
        target: list[Tokens] = []
        place = 0
        for index, (gap, length) in enumerate(zip(gaps, lengths, strict=True)):
            sentinel = np.array([self.first - index], dtype=tokens.dtype)
            source += [tokens[place : place + gap], sentinel]
            target += [sentinel, tokens[place + gap : place + gap + length]]
            place += gap + length
        target.append(np.array([self.first - spans], dtype=tokens.dtype))
        return np.concatenate(source), np.concatenate(target)

    def outcome(self, model: nn.Module, batch: Batch) -> LossOutput:
        """The loss of the target's tokens; its first sentinel is given."""
        source, target = batch
        losses: list[Tensor] = []
        logits = model.teach(source, target[:, :-1], losses=losses)  # type: ignore[operator]
        return scored(logits, target[:, 1:], losses=losses)


def corrupted(length: int, objective: SpanCorruption) -> tuple[int, int]:
    """How many of `length` tokens are cut out, and in how many spans."""
    cut = min(max(1, round(length * objective.share)), length - 1)
    return cut, min(max(1, round(cut / objective.mean_span)), cut, length - cut)


def _split(total: int, parts: int, drawing: np.random.Generator) -> list[int]:
    """`total` as a sum of `parts` whole numbers of at least 1, all such sums alike."""
    cuts = np.sort(drawing.choice(total - 1, parts - 1, replace=False)) + 1 if parts > 1 else np.array([], dtype=int)
    return [int(size) for size in np.diff(np.concatenate(([0], cuts, [total])))]
