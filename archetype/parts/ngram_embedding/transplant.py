"""Transplants of embeddings of n-grams."""

from typing import ClassVar

from archetype.nn.transplant import Transplant
from archetype.parts.ngram_embedding.spec import NgramEmbedding
from archetype.spec.registry import provides


@provides("transplant", NgramEmbedding)
class NgramEmbeddingTransplant(Transplant[NgramEmbedding]):
    """Wider rows begin with projections of zero; other tables have rows of other n-grams."""

    layouts: ClassVar = {"table": "M P", "projections": "R D P"}
    fields: ClassVar = {"M": "total_rows", "P": "row_width", "R": "num_tables"}
    writes: ClassVar = ("projections",)
