"""The base of objectives on running text: windows of a tokenized text, the last part of which is held out."""

from abc import abstractmethod

import numpy as np

from archetype.data.batches import Tokens
from archetype.data.corpus import Corpus
from archetype.data.packing import Documents
from archetype.errors import SpecError
from archetype.training.datasets import RunningText
from archetype.training.objectives.base import Batch, Objective, ObjectiveInputs


class TextObjective(Objective):
    """Windows of a text.

    Args:
        corpus: the tokens.
        batch_size: windows of a batch, B.
        sequence_length: tokens of a window, T; one more is read, to be predicted.
        seed: of the order of windows and of what is drawn for each batch.
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


def corpus_of(inputs: ObjectiveInputs, separates_documents: bool = False) -> Corpus | Documents:
    """The text of the inputs as tokens.

    Args:
        inputs: of the objective.
        separates_documents: whether the objective knows what documents are.

    Raises:
        SpecError: it does not, and the data ask for it.
    """
    assert isinstance(inputs.data, RunningText)
    corpus = inputs.data.tokenized(inputs.texts, inputs.text_tokenizer)
    if isinstance(corpus, Documents) and corpus.separate and not separates_documents:
        cause = "false is for the next token of a decoder alone"
        raise SpecError("data.cross_document_attention", cause, "leave it out")
    return corpus
