"""Text generation: settings, sampling, the engine, beam search, scoring, and the outputs of encoders."""

from archetype.generate.beam import Translation, beam_search, translate, translations
from archetype.generate.class_report import ClassReport, ValueReport
from archetype.generate.encoder import (
    Pooling,
    Prediction,
    classify_pictures,
    classify_texts,
    embed,
    embedding_tokens,
    fill,
)
from archetype.generate.engine import Engine
from archetype.generate.examples import evaluate_images, evaluate_texts, evaluate_tokens
from archetype.generate.generation_config import generation_config, read_generation_config
from archetype.generate.reader import make_deterministic
from archetype.generate.request import Event, Logprobs, Request
from archetype.generate.retrieval import (
    RECALL_AT,
    RetrievalScore,
    SimilarityScore,
    cosines_of_pairs,
    retrieval_score,
    similarity_score,
)
from archetype.generate.sample import Sampler, sample
from archetype.generate.score import Score, score
from archetype.generate.spans import MAX_TOKENS, Answer, answer
from archetype.generate.stats import Stats
from archetype.generate.step import DecodeStep, prefill
from archetype.generate.tasks import TaskScores, evaluate_tasks
from archetype.generate.token_classes import TokenClass, classify_tokens
from archetype.generate.translation_score import TranslationScore, translation_score
from archetype.settings.generation import Beam, Sampling

__all__ = [
    "MAX_TOKENS", "RECALL_AT", "Answer", "Beam", "ClassReport", "DecodeStep", "Engine", "Event", "Logprobs", "Pooling",
    "Prediction", "Request", "RetrievalScore", "Sampler", "Sampling", "Score", "SimilarityScore", "Stats", "TaskScores",
    "TokenClass", "Translation", "TranslationScore", "ValueReport", "answer", "beam_search", "classify_pictures",
    "classify_texts", "classify_tokens", "cosines_of_pairs", "embed", "embedding_tokens", "evaluate_images",
    "evaluate_tasks", "evaluate_texts", "evaluate_tokens", "fill", "generation_config", "make_deterministic", "prefill",
    "read_generation_config", "retrieval_score", "sample", "score", "similarity_score", "translate",
    "translation_score", "translations",
]  # fmt: skip
