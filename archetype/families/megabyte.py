"""MegaByte (Yu 2023): a large model over patches, and a small model over the bytes of each patch."""

from functools import partial
from typing import Any, NamedTuple

from archetype.families.family import TINY, Family, presets
from archetype.families.standard_block import standard_block
from archetype.models.block.spec import PreNorm
from archetype.models.initialization_spec import GPT2Initialization
from archetype.models.megabyte.spec import MegaByte
from archetype.models.stack.spec import SizedStack
from archetype.parts.norm.spec import LayerNorm
from archetype.spec.repeats import repeat


class Side(NamedTuple):
    """Sizes of the global or the local model."""

    num_layers: int
    d_model: int
    num_heads: int


def megabyte(*, global_model: Side, local_model: Side, std: float = 0.02, **sizes: Any) -> MegaByte:
    """Build a MegaByte from two decoders of GPT-2's design, with ReLU (appendix A.1)."""
    return MegaByte(
        global_model=_stack(global_model),
        local_model=_stack(local_model),
        initialization=GPT2Initialization(std=std),
        **({"patch_size": 8, "vocab_size": 256, "context_length": 8192} | sizes),
    )


def _stack(side: Side) -> SizedStack:
    norm = LayerNorm()
    block = standard_block(
        wiring=PreNorm(norm=norm), num_heads=side.num_heads, d_ff=4 * side.d_model, activation="relu"
    )
    return SizedStack(d_model=side.d_model, layers=repeat(side.num_layers, block), final_norm=norm)


FAMILY = Family("megabyte", {
    **presets("Yu 2023, tables 14, 15 and 17, whose names the layers alone do not add up to; appendix A.1",
        partial(megabyte, std=0.006), {
        "megabyte-758m-262m": dict(global_model=Side(14, 2048, 32), local_model=Side(18, 1024, 16)),
        "megabyte-1.3b-350m": dict(global_model=Side(24, 2048, 32), local_model=Side(24, 1024, 16)),
    }),
    **presets(TINY, megabyte, {
        "megabyte-tiny": dict(global_model=Side(2, 64, 4), local_model=Side(2, 64, 4), patch_size=4,
            context_length=128),
    }),
})
