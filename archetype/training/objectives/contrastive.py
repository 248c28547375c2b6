"""Contrastive learning of embeddings: each anchor should be closest to its positive in the batch."""

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import cross_entropy

from archetype.data.text_pairs import negatives_of
from archetype.errors import DataError
from archetype.spec.base import Flag, Positive
from archetype.spec.kinds import part
from archetype.training.datasets import Data
from archetype.training.examples import Records, TextPairs
from archetype.training.objectives.base import Batch, Counts, ObjectiveInputs
from archetype.training.objectives.text_vectors import Examples, TextVectorConfig, TextVectorObjective, cosines


@part
class Contrastive(TextVectorConfig):
    """Cross-entropy of an anchor's positive among all positives and negatives in the batch (van den Oord 2018, InfoNCE;
    sentence-transformers' MultipleNegativesRankingLoss).

    An anchor is compared only with the texts in the same micro-batch and process.

    Attributes:
        scale: inverse temperature, a factor on all similarities.
        symmetric: whether to average this loss with the cross-entropy of each positive's anchor among all anchors.
        similarity: cosine or dot product.
        anchor_prompt: text before every anchor; saved with the model as its prompt `query`.
        document_prompt: text before every positive and negative; saved as the prompt `document`.
    """

    kind: Literal["contrastive"] = "contrastive"
    scale: Positive = 20.0
    symmetric: Flag = False
    similarity: Literal["cosine", "dot"] = "cosine"
    anchor_prompt: str = ""
    document_prompt: str = ""

    @property
    def prompts(self) -> dict[str, str]:
        # names that sentence-transformers uses
        prompts = {"query": self.anchor_prompt, "document": self.document_prompt}
        return prompts if any(prompts.values()) else {}

    def takes(self, data: Data) -> bool:
        return isinstance(data, TextPairs)

    def build(self, inputs: ObjectiveInputs) -> "ContrastiveObjective":
        return ContrastiveObjective(inputs, self)


class ContrastiveObjective(TextVectorObjective):
    compares_rows = True

    def __init__(self, inputs: ObjectiveInputs, config: Contrastive) -> None:
        assert isinstance(inputs.data, TextPairs)
        self.config = config
        training, validation = inputs.data.split(inputs.texts)
        if len(counts := {len(negatives_of(record)) for record in (*training, *validation)}) > 1:
            cause = f"some rows have {min(counts)} negatives and others have {max(counts)}"
            raise DataError(inputs.data.examples[0], cause, "use the same number in every row")
        super().__init__(inputs, *(Examples(self._columns(records)) for records in (training, validation)))

    def _columns(self, records: Records) -> list[list[str]]:
        token_rows = [
            [self.config.anchor_prompt + record["anchor"]]
            + [self.config.document_prompt + text for text in (record["positive"], *negatives_of(record))]
            for record in records
        ]
        return [list(column) for column in zip(*token_rows, strict=True)]

    def loss_of_vectors(
        self, vectors: list[Float[Tensor, "B D_s"]], labels: Batch, counts: Counts
    ) -> tuple[Tensor, int | None]:
        """Return the mean loss over anchors, and the number of anchors that are most similar to their positive."""
        anchors, positives = vectors[0], vectors[1]
        right = torch.arange(len(anchors), device=anchors.device)  # document i is the positive of anchor i
        logits = self._similarities(anchors, torch.cat(vectors[1:]))  # (B, b): all positives, then all negatives
        loss = cross_entropy(logits, right)
        if self.config.symmetric:
            loss = (loss + cross_entropy(self._similarities(positives, anchors), right)) / 2
        return loss, None if loss.requires_grad else int((logits.argmax(1) == right).sum())

    def _similarities(self, a: Float[Tensor, "B D_s"], b: Float[Tensor, "b D_s"]) -> Float[Tensor, "B b"]:
        return self.config.scale * (cosines(a, b) if self.config.similarity == "cosine" else a @ b.T)
