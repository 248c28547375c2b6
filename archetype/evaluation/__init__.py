"""Evaluation: language modelling, classification, regression, translation, embeddings and the tasks of lm-eval."""

from archetype.evaluation.class_report import ClassReport, ValueReport
from archetype.evaluation.examples import evaluate_images, evaluate_texts, evaluate_tokens
from archetype.evaluation.likelihood_bound import LikelihoodBound, likelihood_bound
from archetype.evaluation.retrieval import (
    RECALL_AT,
    RetrievalScore,
    SimilarityScore,
    cosines_of_pairs,
    retrieval_score,
    similarity_score,
)
from archetype.evaluation.score import Score, score
from archetype.evaluation.tasks import TaskScores, evaluate_tasks
from archetype.evaluation.translation_score import TranslationScore, translation_score

__all__ = [
    "RECALL_AT", "ClassReport", "LikelihoodBound", "RetrievalScore", "Score", "SimilarityScore", "TaskScores",
    "TranslationScore", "ValueReport", "cosines_of_pairs", "evaluate_images", "evaluate_tasks", "evaluate_texts",
    "evaluate_tokens", "likelihood_bound", "retrieval_score", "score", "similarity_score", "translation_score",
]  # fmt: skip
