"""MiniMax M3 in GGUF: an index of blocks in the layers with experts, and one gated network in all layers."""

from typing import Any

from archetype.convert.gguf.finish import with_index
from archetype.convert.gguf.keys import FileKeys, Keys, unsupported
from archetype.families.keys import expect_kind
from archetype.families.standard_block import changed
from archetype.parts.activation.spec import Swish
from archetype.parts.attention.spec import Attention
from archetype.parts.block_index.spec import BlockIndex
from archetype.parts.experts.spec import MixtureOfExperts

NETWORK: dict[str, Any] = {"limit": 7.0, "unit_offset": True, "activation": Swish(beta=1.702)}  # as in gpt-oss
PREFIX = "attention.indexer"
INDEX = """
    blk.{i}.indexer.{q,k}_proj     blocks.{i}.mixer.index.{q,k}
    blk.{i}.indexer.{q,k}_norm     blocks.{i}.mixer.index.{q,k}_norm
"""


def with_blocks(keys: FileKeys, model: Any) -> Any:
    """An index where its tensors are, and bounded gates in all networks."""
    index = BlockIndex(
        block=keys.size(f"{PREFIX}.block_size"),
        top_blocks=keys.size(f"{PREFIX}.top_k"),
        num_heads=keys.size(f"{PREFIX}.head_count"),
        head_dim=keys.size(f"{PREFIX}.key_length"),
        local_blocks=keys.size(f"{PREFIX}.local_blocks"),
        norm=model.final_norm,
    )

    def network(part: Any) -> Any:
        if not isinstance(part, MixtureOfExperts):
            return part.replace(**NETWORK)
        return part if part.shared is None else part.replace(shared=part.shared.replace(**NETWORK))

    return changed(with_index(keys, model, index), feedforward=network)


def index_keys(model: Any) -> Keys:
    mixers = [expect_kind(Attention, block.mixer, "layers[*].mixer") for block in model.layers]
    index = next((mixer.index for mixer in mixers if mixer.index is not None), None)
    if not isinstance(index, BlockIndex):
        raise unsupported("layers[*].mixer.index", "attention to all keys in minimax-m3")
    key_heads = mixers[0].sizes(model.d_model).num_kv_heads
    if index.num_heads != key_heads:
        raise unsupported("layers[*].mixer.index.num_heads", f"{index.num_heads} with {key_heads} key heads")
    return {
        f"{PREFIX}.head_count": index.num_heads,
        f"{PREFIX}.key_length": index.head_dim,
        f"{PREFIX}.top_k": index.top_blocks,
        f"{PREFIX}.block_size": index.block,
        f"{PREFIX}.local_blocks": index.local_blocks,
    }
