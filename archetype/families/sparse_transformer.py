"""The Sparse Transformer (Child 2019): GPT-2 with attention to about sqrt(n) of n tokens."""

from typing import Any

from archetype.families.family import Family, tiny
from archetype.families.gpt2 import gpt2
from archetype.models.decoder.spec import Decoder
from archetype.parts.pattern.spec import Fixed, Strided


def sparse_transformer(*, pattern: Strided | Fixed, **design: Any) -> Decoder:
    """Build a decoder whose heads attend to both parts of a pattern (section 5.2, merged heads)."""
    return gpt2(patterns=(pattern,), tied=False, **design)


FAMILY = Family("sparse_transformer", tiny(sparse_transformer, {
    "sparse-strided-tiny": dict(num_layers=2, num_heads=4, pattern=Strided(stride=8)),
    "sparse-fixed-tiny": dict(num_layers=2, num_heads=4, pattern=Fixed(stride=16, num_summary=4)),
}))
