"""Drawing of embeddings of n-grams."""

from archetype.parts.ngram_embedding.spec import NgramEmbedding
from archetype.roles.drawing import Cell, Inside, inside_of


@inside_of(NgramEmbedding)
def ngram_embedding(part: NgramEmbedding, modules: frozenset[str]) -> Inside:
    tables = f"{part.num_tables} tables by 2 to {part.n} tokens"
    return Inside((Cell("table", 0, 0, (), 2, tables), Cell("projections", 0, 1, ("table",), 2)), "projections")
