"""Evaluation of embeddings: retrieval metrics, and correlation of cosine similarities with human scores."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from archetype.data.example_counts import ALL_WHOLE, ExampleCounts
from archetype.evaluation.class_report import correlation, rank_correlation
from archetype.table import Table

DEPTH = 10  # cutoff of MRR@10 and nDCG@10
RECALL_AT = (1, 10, 100)
QUERIES_AT_ONCE = 256  # limits the (queries, documents) matrix of similarities


@dataclass(frozen=True)
class RetrievalScore:
    """Retrieval metrics, averaged over the queries.

    Attributes:
        recall: recall@k for each k: fraction of the relevant documents that are among the k nearest.
        mrr: reciprocal rank of the first relevant document; 0 if that rank is above 10.
        ndcg: discounted cumulative gain of the 10 nearest documents, relative to the ideal order (Järvelin 2002).
        examples: number of truncated queries and documents.
    """

    recall: dict[int, float]
    mrr: float
    ndcg: float
    num_queries: int
    num_documents: int
    examples: ExampleCounts = ALL_WHOLE

    def record(self) -> dict[str, Any]:
        recall = {f"recall@{k}": share for k, share in self.recall.items()}
        counts = {"num_queries": self.num_queries, "num_documents": self.num_documents}
        metrics = recall | {f"mrr@{DEPTH}": self.mrr, f"ndcg@{DEPTH}": self.ndcg}
        return metrics | counts | {"examples": asdict(self.examples)}

    def __str__(self) -> str:
        *names, _, _, _ = self.record()
        row = [f"{self.num_queries:,}", f"{self.num_documents:,}", *(f"{self.record()[name]:.4f}" for name in names)]
        shown = (name.replace("mrr", "MRR").replace("ndcg", "nDCG") for name in names)
        table = Table(("queries", "documents", *shown), [row], text_columns=0)
        return "\n\n".join([str(table), *self.examples.lines()])


@dataclass(frozen=True)
class SimilarityScore:
    """Correlation of text pair similarities with human scores.

    Attributes:
        spearman: rank correlation, with mean ranks for ties; None if either side is constant.
        pearson: linear correlation; None if either side is constant.
        examples: number of truncated texts.
    """

    spearman: float | None
    pearson: float | None
    num_pairs: int
    examples: ExampleCounts = ALL_WHOLE

    def record(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        correlations = ["" if value is None else f"{value:.4f}" for value in (self.spearman, self.pearson)]
        table = Table(("pairs", "Spearman", "Pearson"), [[f"{self.num_pairs:,}", *correlations]], text_columns=0)
        return "\n\n".join([str(table), *self.examples.lines()])


def retrieval_score(
    queries: Float[Tensor, "queries D_s"],
    documents: Float[Tensor, "documents D_s"],
    relevant: Sequence[Mapping[int, float]],
    recall_at: Sequence[int] = RECALL_AT,
) -> RetrievalScore:
    """Rank all documents for each query by dot product. Ties keep the order of the documents.

    Args:
        relevant: {document index: relevance} for each query.
        recall_at: values of k for recall@k.
    """
    depth = min(max(DEPTH, *recall_at), len(documents))
    recalls, reciprocals, gains = dict.fromkeys(recall_at, 0.0), 0.0, 0.0
    for start in range(0, len(queries), QUERIES_AT_ONCE):
        batch = queries[start : start + QUERIES_AT_ONCE]
        ranking = nearest(batch, documents, depth).tolist()  # (batch, depth) document indices
        for order, answers in zip(ranking, relevant[start : start + QUERIES_AT_ONCE], strict=True):
            for k in recalls:
                recalls[k] += len(answers.keys() & set(order[:k])) / len(answers)
            hits = [rank for rank, document in enumerate(order[:DEPTH], start=1) if document in answers]
            reciprocals += 1 / hits[0] if hits else 0.0
            # the best possible order, to which the gain is relative
            ideal = sorted(answers.values(), reverse=True)
            gains += _gain([answers.get(document, 0.0) for document in order]) / _gain(ideal)
    count = len(queries)
    means = {k: total / count for k, total in recalls.items()}
    return RetrievalScore(means, reciprocals / count, gains / count, count, len(documents))


def nearest(
    queries: Float[Tensor, "queries D_s"], documents: Float[Tensor, "documents D_s"], depth: int
) -> Int[Tensor, "queries depth"]:
    """Return the indices of the documents with the largest dot products for each query, in descending order."""
    return (queries @ documents.T).sort(dim=1, descending=True, stable=True).indices[:, :depth]


def similarity_score(similarities: Sequence[float], scores: Sequence[float]) -> SimilarityScore:
    return SimilarityScore(rank_correlation(scores, similarities), correlation(scores, similarities), len(scores))


def cosines_of_pairs(a: Float[Tensor, "pairs D_s"], b: Float[Tensor, "pairs D_s"]) -> list[float]:
    return torch.nn.functional.cosine_similarity(a, b).tolist()


def _gain(relevances: Sequence[float]) -> float:
    # discounted cumulative gain
    return sum(value / math.log2(rank + 1) for rank, value in enumerate(relevances[:DEPTH], start=1))
