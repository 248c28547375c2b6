"""Small models with parts that no published preset has, such as selected blocks of keys and dynamic tanh."""

from functools import partial
from typing import Any

from archetype.families.diffusion import llada
from archetype.families.family import Family, tiny
from archetype.families.llama import llama
from archetype.families.standard_block import changed
from archetype.models.block.spec import PreNorm
from archetype.models.decoder.spec import Decoder
from archetype.models.encoder.spec import Encoder
from archetype.parts.attention.spec import Attention, AttentionConvolutions
from archetype.parts.block_index.spec import BlockIndex
from archetype.parts.feedforward.spec import NetworkConvolutions
from archetype.parts.native_sparse_attention.spec import BlockCompression, BlockSelection, NativeSparseAttention
from archetype.parts.ngram.spec import NgramMemory
from archetype.parts.norm.spec import DynamicTanh, NoNorm, RMSNorm
from archetype.parts.pattern.spec import BlockCausal
from archetype.parts.pool_index.spec import PoolIndex
from archetype.parts.position.spec import Rotary
from archetype.parts.streams.spec import GatedStreams
from archetype.parts.together.spec import FeedForwardsTogether
from archetype.roles.norm import VectorNorm


def canon(**design: Any) -> Decoder:
    """Build a Llama with convolutions at the four places of canon layers (Allen-Zhu 2025); arguments as for `llama`."""
    return changed(
        llama(**design),
        mixer=lambda mixer: mixer.replace(convolutions=AttentionConvolutions()),
        feedforward=lambda part: part.replace(convolutions=NetworkConvolutions()),
    )


def with_norm(norm: VectorNorm, **design: Any) -> Decoder:
    """Build a Llama with another norm in each place. `design` takes the arguments of `llama`."""
    return changed(llama(**design), wiring=lambda _: PreNorm(norm=norm)).replace(final_norm=norm)


def native_sparse(*, mixer: NativeSparseAttention, **design: Any) -> Decoder:
    """Build a Llama with native sparse attention (Yuan 2025). `design` takes the arguments of `llama`."""
    return changed(llama(num_heads=mixer.num_heads, **design), mixer=lambda _: mixer)


def chosen_blocks(*, block: int, top_blocks: int, index_dim: int, **design: Any) -> Decoder:
    """Build a Llama whose key heads attend to chosen blocks of keys (MiniMax M3). `design` takes those of `llama`."""
    model = llama(**design)

    def indexed(mixer: Any) -> Attention:
        heads = mixer.sizes(model.d_model).num_kv_heads
        index = BlockIndex(block=block, top_blocks=top_blocks, num_heads=heads, head_dim=index_dim, position=Rotary())
        return mixer.replace(qk_norm=RMSNorm(eps=1e-6), index=index)

    return changed(model, mixer=indexed)


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
    pattern = BlockCausal(size=block)
    return changed(llada(**design), mixer=lambda mixer: mixer.replace(pattern=pattern))


SMALL: dict[str, Any] = {"num_layers": 2, "num_heads": 4, "d_ff": 172}
MOBA = BlockIndex(
    block=8, top_blocks=4, num_heads=4, head_dim=16, pooling="mean", norm=NoNorm(), loss_weight=0.0,
    own_projections=False,
)  # fmt: skip
POOLS = PoolIndex(pool=4, top_pools=8, num_heads=4, head_dim=16, position=Rotary())
NSA = NativeSparseAttention(
    num_heads=4, num_kv_heads=2, head_dim=16, window=16, compression=BlockCompression(block=8, stride=4, hidden=32),
    selection=BlockSelection(block=8, top_blocks=4),
)  # fmt: skip
FAMILY = Family("small_designs", {
    **tiny(chosen_blocks, {
        "block-index-tiny": SMALL | dict(num_kv_heads=2, block=8, top_blocks=4, index_dim=16),
    }),
    **tiny(native_sparse, {"nsa-tiny": dict(num_layers=2, d_ff=172, mixer=NSA)}),
    **tiny(llama, {
        "moba-tiny": SMALL | dict(num_kv_heads=2, attention={"index": MOBA}),
        "pool-index-tiny": SMALL | dict(num_kv_heads=2, attention={"index": POOLS}),
        "softpick-tiny": SMALL | dict(attention={"softmax": "softpick"}),
    }),
    **tiny(partial(with_norm, DynamicTanh()), {"dynamic-tanh-tiny": SMALL}),  # Zhu 2025
    **tiny(partial(with_norm, NoNorm()), {"gated-streams-tiny": SMALL | dict(residual=GatedStreams())}),
    **tiny(canon, {"canon-tiny": SMALL}),
    **tiny(ngram_memories, {"engram-tiny": SMALL | dict(rows=256, row_width=16, hashes=2)}),
    **tiny(causal_blocks, {"block-diffusion-tiny": SMALL | dict(block=16, vocab_size=257)}),
})  # fmt: skip
