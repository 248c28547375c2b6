"""N-gram models with embeddings (Bengio 2003), including the bigram model."""

from typing import Any

from archetype.families.family import Family, tiny
from archetype.models.initialization_spec import XavierInitialization
from archetype.models.ngram.spec import NGram
from archetype.parts.head.spec import LanguageModelHead


def ngram(**sizes: Any) -> NGram:
    """Build a feed-forward model over the last `n` tokens, without Bengio's optional direct connections."""
    return NGram(head=LanguageModelHead(bias=True), initialization=XavierInitialization(), **sizes)


FAMILY = Family("ngram", tiny(ngram, {"bigram-tiny": dict(n=1, hidden=(64,)), "ngram-tiny": dict(n=5, hidden=(128,))}))
