"""Small models with parts that no published preset has: chosen blocks of keys, n-gram tables, blocks of diffusion."""

from typing import Any

from archetype.families.diffusion import llada
from archetype.families.family import Family, tiny
from archetype.families.llama import llama
from archetype.models.decoder.spec import Decoder
from archetype.models.encoder.spec import Encoder
from archetype.parts.attention.spec import Attention
from archetype.parts.block_index.spec import BlockIndex
from archetype.parts.ngram_memory.spec import NgramMemory
from archetype.parts.norm.spec import RMSNorm
from archetype.parts.pattern.spec import BlockCausal
from archetype.parts.position.spec import Rotary
from archetype.parts.together.spec import FeedForwardsTogether


def chosen_blocks(*, block: int, top_blocks: int, index_dim: int, **design: Any) -> Decoder:
    """Build a Llama whose key heads attend to chosen blocks of keys (MiniMax M3). `design` takes those of `llama`."""
    model = llama(**design)

    def indexed(mixer: Any) -> Attention:
        heads = mixer.sizes(model.d_model).num_kv_heads
        index = BlockIndex(block=block, top_blocks=top_blocks, num_heads=heads, head_dim=index_dim, position=Rotary())
        attention: Attention = mixer.replace(qk_norm=RMSNorm(eps=1e-6), index=index)
        return attention

    return model.replace(layers=tuple(layer.replace(mixer=indexed(layer.mixer)) for layer in model.layers))


def ngram_memories(*, rows: int, row_width: int, hashes: int, **design: Any) -> Decoder:
    """Build a Llama that adds an n-gram memory to each network (Engram). `design` takes the arguments of `llama`."""
    model = llama(**design)
    memories = (
        NgramMemory(rows=rows, row_width=row_width, heads=hashes, table=layer, norm=RMSNorm(eps=1e-6))
        for layer in range(model.num_layers)
    )
    return model.replace(layers=tuple(
        layer.replace(feedforward=FeedForwardsTogether(parts=(layer.feedforward, memory)))
        for layer, memory in zip(model.layers, memories, strict=True)
    ))  # fmt: skip


def causal_blocks(*, block: int, **design: Any) -> Encoder:
    """Build a LLaDA that generates block after block (Arriola 2025). `design` takes the arguments of `llama`."""
    model = llada(**design)
    pattern = BlockCausal(size=block)
    layers = tuple(layer.replace(mixer=layer.mixer.replace(pattern=pattern)) for layer in model.layers)
    return model.replace(layers=layers)


SMALL: dict[str, Any] = {"num_layers": 2, "num_heads": 4, "d_ff": 172}
FAMILY = Family("small_designs", {
    **tiny(chosen_blocks, {
        "block-index-tiny": SMALL | dict(num_kv_heads=2, block=8, top_blocks=4, index_dim=16),
    }),
    **tiny(ngram_memories, {"engram-tiny": SMALL | dict(rows=256, row_width=16, hashes=2)}),
    **tiny(causal_blocks, {"block-diffusion-tiny": SMALL | dict(block=16, vocab_size=257)}),
})  # fmt: skip
