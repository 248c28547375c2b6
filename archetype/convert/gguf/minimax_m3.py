"""MiniMax M3 in GGUF: an index of blocks in the layers with experts, and one gated network in all layers."""

from typing import Any

from archetype.convert.gguf.finish import with_index
from archetype.convert.gguf.keys import INDEX_HEADS, FileKeys, Keys, unsupported, written_fields
from archetype.families.keys import expect_kind
from archetype.families.standard_block import changed
from archetype.parts.activation.spec import Swish
from archetype.parts.attention.spec import Attention
from archetype.parts.block_index.spec import BlockIndex
from archetype.parts.experts.spec import MixtureOfExperts

NETWORK: dict[str, Any] = {"limit": 7.0, "unit_offset": True, "activation": Swish(beta=1.702)}  # as in gpt-oss
FIELDS = INDEX_HEADS | {
    "attention.indexer.top_k": "top_blocks",
    "attention.indexer.block_size": "block",
    "attention.indexer.local_blocks": "local_blocks",
}
INDEX = """
    blk.{i}.indexer.{q,k}_proj     blocks.{i}.mixer.index.{q,k}
    blk.{i}.indexer.{q,k}_norm     blocks.{i}.mixer.index.{q,k}_norm
"""


def with_blocks(keys: FileKeys, model: Any) -> Any:
    """An index where its tensors are, and bounded gates in all networks."""
    index = BlockIndex(**keys.fields(FIELDS), norm=model.final_norm)

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
    return written_fields(index, FIELDS)
