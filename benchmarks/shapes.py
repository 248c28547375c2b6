"""The sizes that benchmarks use, of models of Llama's form."""

from archetype.families.llama import llama
from archetype.spec import Decoder

SHAPES = {
    "15M": {"vocab_size": 4096, "d_model": 384, "d_ff": 1024, "num_layers": 6, "num_heads": 6},
    "110M": {"vocab_size": 32_000, "d_model": 768, "d_ff": 2048, "num_layers": 12, "num_heads": 12, "num_kv_heads": 4},
}


def shape(name: str) -> Decoder:
    """The specification of a shape."""
    return llama(name=name, context_length=2048, tied=True, **SHAPES[name])  # type: ignore[arg-type]
