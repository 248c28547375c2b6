"""Train embeddings whose cosine similarity follows human scores of text pairs."""

from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import cosine_similarity, mse_loss

from archetype.spec.base import Positive
from archetype.spec.kinds import part
from archetype.training.chunked_loss import indices_where
from archetype.training.datasets import Data
from archetype.training.examples import Records, ScoredPairs
from archetype.training.objectives.base import Batch, Counts, ObjectiveInputs
from archetype.training.objectives.text_vectors import Examples, TextVectorConfig, TextVectorObjective


@part
class TextSimilarity(TextVectorConfig):
    """Rank the cosines of pairs like their scores (CoSENT, Huang 2024), or predict each score (Reimers 2019).

    CoSENT is log(1 + sum exp(scale (cos_i - cos_j))) over all pairs i, j of a batch in which j has the higher score.

    Attributes:
        loss: cosent, or cosine for the mean squared error, which needs scores between -1 and 1.
        scale: inverse temperature of CoSENT.
    """

    kind: Literal["text_similarity"] = "text_similarity"
    loss: Literal["cosent", "cosine"] = "cosent"
    scale: Positive = 20.0

    def takes(self, data: Data) -> bool:
        return isinstance(data, ScoredPairs)

    def build(self, inputs: ObjectiveInputs) -> "TextSimilarityObjective":
        return TextSimilarityObjective(inputs, self)


class TextSimilarityObjective(TextVectorObjective):
    def __init__(self, inputs: ObjectiveInputs, config: TextSimilarity) -> None:
        assert isinstance(inputs.data, ScoredPairs)
        self.config = config
        self.compares_rows = config.loss == "cosent"
        self.loss_name = "CoSENT" if config.loss == "cosent" else "mean squared error"
        super().__init__(inputs, *map(_examples, inputs.data.split(inputs.texts)))

    def target_counts(self, batch: Batch) -> Counts:
        # rows, and the pairs of rows with different scores that CoSENT compares
        return len(batch[0]), int(_is_lower(batch[-1]).sum())

    def loss_of_vectors(
        self, vectors: list[Float[Tensor, "B D_s"]], labels: Batch, counts: Counts
    ) -> tuple[Tensor, int | None]:
        """Return CoSENT or the mean squared error of the batch, and None, since no prediction is right or wrong."""
        cosine = cosine_similarity(vectors[0], vectors[1])
        if self.config.loss == "cosine":
            return mse_loss(cosine, labels[0].to(cosine)), None
        scaled, is_lower = self.config.scale * cosine, _is_lower(labels[0])
        # not masked with -inf: a sum over all B * B pairs would round differently
        selected = indices_where(is_lower.flatten(), counts[1] if counts else int(is_lower.sum()))
        differences = (scaled[:, None] - scaled[None, :]).flatten().index_select(0, selected)
        return torch.cat([scaled.new_zeros(1), differences]).logsumexp(0), None  # exp(0) is the 1 of log(1 + sum)


def _is_lower(scores: Tensor) -> Bool[Tensor, "B B"]:
    scores = scores.float()  # rounded alike on the host (counts pairs) and on the device (selects them)
    return scores[:, None] < scores[None, :]


def _examples(records: Records) -> Examples:
    columns = [[record[field] for record in records] for field in ("text1", "text2")]
    return Examples(columns, [float(record["score"]) for record in records])
