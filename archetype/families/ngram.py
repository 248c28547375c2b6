"""N-gram models with embeddings (Bengio 2003), including the bigram model."""

from archetype.families.family import Family, tiny
from archetype.models.initialization_spec import XavierInitialization
from archetype.models.ngram.spec import NGram
from archetype.parts.head.spec import LanguageModelHead
from archetype.roles.activation import Activation


def ngram(
    *,
    name: str = "",
    n: int,
    d_model: int,
    hidden: tuple[int, ...],
    vocab_size: int,
    context_length: int,
    activation: Activation | str = "tanh",
) -> NGram:
    """Build a feed-forward model over the last `n` tokens, without Bengio's optional direct connections."""
    return NGram(
        name=name,
        vocab_size=vocab_size,
        context_length=context_length,
        n=n,
        d_model=d_model,
        hidden=hidden,
        activation=activation,
        head=LanguageModelHead(bias=True),
        initialization=XavierInitialization(),
    )


FAMILY = Family("ngram", tiny(ngram, {"bigram-tiny": dict(n=1, hidden=(64,)), "ngram-tiny": dict(n=5, hidden=(128,))}))
