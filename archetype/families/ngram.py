"""N-gram models with embeddings (Bengio 2003); with one token of the past, the bigram model."""

from archetype import spec
from archetype.families.family import Family, tiny


def ngram(
    *,
    name: str = "",
    n: int,
    d_model: int,
    hidden: tuple[int, ...],
    vocab_size: int,
    context_length: int,
    activation: spec.Activation = "tanh",
) -> spec.NGram:
    """A feed-forward model of the `n` newest tokens, without the direct connections that Bengio also tried."""
    return spec.NGram(
        name=name,
        vocab_size=vocab_size,
        context_length=context_length,
        n=n,
        d_model=d_model,
        hidden=hidden,
        activation=activation,
        head=spec.LanguageModelHead(bias=True),
        initialization=spec.XavierInitialization(),
    )


FAMILY = Family("ngram", tiny(ngram, {"bigram-tiny": dict(n=1, hidden=(64,)), "ngram-tiny": dict(n=5, hidden=(128,))}))
