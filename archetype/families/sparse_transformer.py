"""The Sparse Transformer (Child 2019): GPT-2 with attention to about sqrt(n) tokens."""

from archetype import spec
from archetype.families.family import Family, tiny
from archetype.families.gpt2 import gpt2


def sparse_transformer(
    *,
    name: str = "",
    num_layers: int,
    d_model: int,
    num_heads: int,
    pattern: spec.Strided | spec.Fixed,
    vocab_size: int,
    context_length: int,
) -> spec.Decoder:
    """A decoder whose heads see both parts of a pattern at once (section 5.2, merged heads)."""
    return gpt2(
        name=name,
        num_layers=num_layers,
        d_model=d_model,
        num_heads=num_heads,
        vocab_size=vocab_size,
        context_length=context_length,
        patterns=(pattern,),
        tied=False,
    )


FAMILY = Family("sparse_transformer", tiny(sparse_transformer, {
    "sparse-strided-tiny": dict(num_layers=2, num_heads=4, pattern=spec.Strided(stride=8)),
    "sparse-fixed-tiny": dict(num_layers=2, num_heads=4, pattern=spec.Fixed(stride=16, num_summary=4)),
}))  # fmt: skip
