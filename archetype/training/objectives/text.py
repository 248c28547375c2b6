"""Base of objectives on running text, in windows of tokenized training and validation text."""

from abc import abstractmethod

import numpy as np

from archetype.data.batches import Tokens
from archetype.data.corpus import Corpus
from archetype.data.packing import Documents
from archetype.errors import SpecError
from archetype.training.datasets import RunningText
from archetype.training.objectives.base import Batch, Objective, ObjectiveInputs


class TextObjective(Objective):
    """Base of objectives on windows of text.

    Args:
        batch_size: windows per batch, B.
        sequence_length: tokens per window, T; another token is read as the last target.
        seed: seed of the order of windows and of the random numbers in each batch.
    """

    def __init__(self, corpus: Corpus | Documents, batch_size: int, sequence_length: int, seed: int) -> None:
        self.corpus, self.batch_size, self.seed = corpus, batch_size, seed
        self.fingerprint, self.description = corpus.fingerprint, corpus.description
        self.batches = corpus.batches(batch_size, sequence_length, seed)
        self.validation_windows = corpus.validation_windows(sequence_length)
        self.batch_shape = batch_size, sequence_length
        self.num_validation_batches = -(-len(self.validation_windows) // batch_size)
        self.steps_per_epoch = self.batches.per_epoch

    def batch(self, step: int) -> Batch:
        return self.examples(self.batches.batch(step), step)

    def validation_batch(self, index: int) -> Batch:
        first = index * self.batch_size
        # -1 - index: a key that no training step uses
        return self.examples(self.validation_windows[first : first + self.batch_size], -1 - index)

    @abstractmethod
    def examples(self, windows: Tokens, step: int) -> Batch:
        """Turn windows of text into the tensors of a batch.

        Args:
            windows: token ids, (B, T + 1).
            step: seed of the random numbers, together with the run's seed; negative for validation batches.
        """

    def generator(self, step: int) -> np.random.Generator:
        key = np.array([self.seed + 1, step % 2**64], dtype=np.uint64)  # a list of such numbers would become floats
        return np.random.Generator(np.random.Philox(key=key))


def corpus_of(inputs: ObjectiveInputs, separates_documents: bool = False) -> Corpus | Documents:
    """Tokenize the running text in the inputs.

    Raises:
        SpecError: the data need attention within documents, which the objective does not support.
    """
    assert isinstance(inputs.data, RunningText)
    corpus = inputs.data.tokenized(inputs.texts, inputs.text_tokenizer)
    if isinstance(corpus, Documents) and corpus.separate and not separates_documents:
        cause = "false needs the objective next_token and a decoder"
        raise SpecError("data.cross_document_attention", cause, "remove it")
    return corpus
