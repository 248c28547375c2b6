"""What objectives on running text share: windows of a tokenized text, the last part of which is held out."""

from abc import abstractmethod

import numpy as np

from archetype.data.batches import Batches, Tokens, windows
from archetype.data.corpus import Corpus, corpus
from archetype.training.datasets import TextData
from archetype.training.objectives.base import Batch, Objective, ObjectiveInputs


class TextObjective(Objective):
    """Windows of a text.

    Args:
        corpus: the tokens.
        batch_size: windows of a batch, B.
        sequence_length: tokens of a window, T; one more is read, to be predicted.
        seed: of the order of windows and of what is drawn for each batch.
    """

    def __init__(self, corpus: Corpus, batch_size: int, sequence_length: int, seed: int) -> None:
        self.corpus, self.batch_size, self.seed = corpus, batch_size, seed
        self.fingerprint = corpus.fingerprint
        self.description = f"{len(corpus.training):,} tokens of text"
        self.batches = Batches(corpus.training, batch_size, sequence_length, seed)
        self.validation_windows = windows(corpus.validation, sequence_length)
        self.batch_shape = batch_size, sequence_length
        self.num_validation_batches = -(-len(self.validation_windows) // batch_size)

    def batch(self, step: int) -> Batch:
        """The examples of a step."""
        return self.examples(self.batches.batch(step), step)

    def validation_batch(self, index: int) -> Batch:
        """Whole windows of the held-out text, in order."""
        first = index * self.batch_size
        return self.examples(self.validation_windows[first : first + self.batch_size], -1 - index)

    @abstractmethod
    def examples(self, windows: Tokens, step: int) -> Batch:
        """The tensors of a batch.

        Args:
            windows: (B, T + 1).
            step: what is drawn at random is a function of it and of the seed; below 0 for held-out batches.
        """

    def generator(self, step: int) -> np.random.Generator:
        """The random numbers of a step."""
        key = np.array([self.seed + 1, step % 2**64], dtype=np.uint64)  # a list of such numbers would become floats
        return np.random.Generator(np.random.Philox(key=key))


def corpus_of(inputs: ObjectiveInputs) -> Corpus:
    """The text of the inputs as tokens."""
    assert isinstance(inputs.data, TextData)
    return corpus(inputs.texts["text"], inputs.text_tokenizer, inputs.data.validation_fraction)
