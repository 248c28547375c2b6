"""Models that embed texts as vectors."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from jaxtyping import Float
from torch import Tensor

from archetype import evaluation, generate
from archetype.api.language_model import LanguageModel
from archetype.convert.sentence_transformers.files import SentenceSettings, read_settings
from archetype.convert.sentence_transformers.head import read_head
from archetype.convert.sentence_transformers.weights import open_head
from archetype.data.example_counts import ExampleCounts
from archetype.data.records import read_records
from archetype.data.retrieval import read_retrieval
from archetype.data.text_pairs import SCORED_PAIR, wrong_score
from archetype.errors import SpecError
from archetype.evaluation import RECALL_AT, RetrievalScore, SimilarityScore
from archetype.generate import Pooling
from archetype.models.decoder.module import Decoder
from archetype.models.encoder.module import Encoder

log = logging.getLogger(__name__)


class TextEmbedder(LanguageModel):
    """Base class of models whose token vectors can be pooled into a vector for the text."""

    model: Encoder | Decoder

    def embed(
        self,
        texts: str | Sequence[str | list[int]],
        pooling: Pooling | None = None,
        normalized: bool | None = None,
        prompt: str | None = None,
    ) -> Float[Tensor, "B D"]:
        """Embed texts as vectors, (B, D).

        Args:
            texts: a text or several texts; each may also be a list of its token ids.
            pooling: "mean" or "max" over a text's tokens, the "first" token through the pooler, or the "last" token
                (default: the model's sentence embedding head, which gives the same vectors as sentence-transformers;
                without this head, "mean" for an encoder and "last" for a decoder).
            normalized: scale vectors to length 1 (default: as the sentence embedding head does, or else true).
            prompt: name of the prompt to put before each text (default: the model's default prompt).

        Raises:
            ArchetypeError: a text is empty or too long, or the pooling or prompt is unknown.
        """
        vectors, counts = self._embed(texts, pooling, normalized, prompt)
        _warn_of(counts)
        return vectors

    def _embed(
        self,
        texts: str | Sequence[str | list[int]],
        pooling: Pooling | None = None,
        normalized: bool | None = None,
        prompt: str | None = None,
    ) -> tuple[Float[Tensor, "B D"], ExampleCounts]:
        ids, counts = self._embedding_tokens(texts, pooling, prompt)
        return generate.embed(self.model, ids, pooling, normalized, None if pooling else self._sentence_head()), counts

    def embedding_tokens(
        self, texts: str | Sequence[str | list[int]], pooling: Pooling | None = None, prompt: str | None = None
    ) -> list[list[int]]:
        """Return the token ids that `embed` reads: prompt and text, truncated as by sentence-transformers.

        Takes the same arguments as `embed`. Texts given as token ids stay unchanged.
        """
        ids, counts = self._embedding_tokens(texts, pooling, prompt)
        _warn_of(counts)
        return ids

    def _embedding_tokens(
        self, texts: str | Sequence[str | list[int]], pooling: Pooling | None, prompt: str | None
    ) -> tuple[list[list[int]], ExampleCounts]:
        if pooling is not None and prompt is not None:
            raise SpecError("prompt", "cannot be combined with pooling", "remove one of them")
        # prompts and truncation belong to the head, which an explicit pooling bypasses
        settings = None if pooling is not None else self.sentence_settings
        if settings is None and prompt is not None:
            raise SpecError("prompt", "the model has no sentence embedding head, and so no prompts", "remove it")
        return generate.embedding_tokens(self.model, self._tokenizer(), texts, settings, prompt)

    @property
    def sentence_settings(self) -> SentenceSettings | None:
        """Prompts and truncation length for embedding; None for a model without a sentence embedding head."""
        has_head = self.spec.head.embeds or read_head(self.sentence_files) is not None
        return read_settings(self.sentence_files) if has_head else None

    def _sentence_head(self) -> Any:
        # the folder may describe such a head although the model's head is a classifier
        if self.model.sentence_head is None and (head := read_head(self.sentence_files)) is not None:
            return open_head(self.model, head, self.sentence_files)
        return self.model.sentence_head

    def evaluate_retrieval(self, path: str | Path, recall_at: Sequence[int] = RECALL_AT) -> RetrievalScore:
        """Rank documents for each query by cosine similarity of embeddings, and compute retrieval metrics.

        Queries and documents are embedded with the model's query and document prompts.

        Args:
            path: JSON lines, CSV or TSV with fields anchor, positive and optionally negative, where all positives and
                negatives are documents; or a folder in BEIR's format, with corpus.jsonl, queries.jsonl and qrels.
            recall_at: values of k for recall@k.

        Raises:
            ArchetypeError: the data are invalid.
        """
        data = read_retrieval(Path(path))
        settings = self.sentence_settings or SentenceSettings()
        # normalized vectors, so that the dot products of `retrieval_score` are cosine similarities
        queries, num_cut = self._embed(data.queries, normalized=True, prompt=settings.query_prompt)
        documents, num_cut_too = self._embed(data.documents, normalized=True, prompt=settings.document_prompt)
        score = evaluation.retrieval_score(queries, documents, data.relevant, recall_at)
        return replace(score, examples=num_cut + num_cut_too)

    def evaluate_similarity(self, file: str | Path) -> SimilarityScore:
        """Compare cosine similarities of text pairs with human scores.

        Args:
            file: JSON lines, CSV or TSV with fields text1, text2 and score.

        Raises:
            ArchetypeError: the data are invalid.
        """
        records = read_records(Path(file), SCORED_PAIR, fault=wrong_score)
        (a, num_cut), (b, num_cut_too) = (
            self._embed([record[field] for record in records]) for field in ("text1", "text2")
        )
        scores = [float(record["score"]) for record in records]
        score = evaluation.similarity_score(evaluation.cosines_of_pairs(a, b), scores)
        return replace(score, examples=num_cut + num_cut_too)


def _warn_of(counts: ExampleCounts) -> None:
    for line in counts.lines():
        log.warning("%s", line)
