"""Inference of an index of attention from the names and shapes of its tensors."""

from archetype.parts.block_index.spec import BlockIndex
from archetype.parts.lightning_index.spec import LightningIndex
from archetype.parts.norm.spec import LayerNorm
from archetype.parts.pool_index.spec import PoolIndex
from archetype.parts.position.spec import Rotary
from archetype.roles.checkpoint import CheckpointMixer
from archetype.roles.position import MixerPosition

BLOCK_SPARSE = "minimax_m3_sparse"  # in `layer_types`: layers with an index of blocks
BLOCK_KEYS = {  # field -> key, and its name in the older `sparse_attention_config`
    "num_heads": ("index_n_heads", "sparse_num_index_heads"),
    "head_dim": ("index_head_dim", "sparse_index_dim"),
    "block": ("index_block_size", "sparse_block_size"),
    "top_blocks": ("index_topk_blocks", "sparse_topk_blocks"),
    "local_blocks": ("index_local_blocks", "sparse_local_block"),
}
POOL_KEYS = {  # field of the index of pools -> key (Qwen4-Exp)
    "num_heads": "indexer_n_heads",
    "head_dim": "indexer_head_dim",
    "pool": "indexer_compress_ratio",
}
BUDGET = "indexer_budget"  # keys of all selected pools


def read_index(
    tensors: CheckpointMixer, position: MixerPosition, head_dim: int
) -> BlockIndex | PoolIndex | LightningIndex | None:
    """Infer the index of a layer that has tensors or keys of one."""
    if "index.weights.weight" in tensors.shapes:
        return _key_index(tensors, position, head_dim)
    if "index.qk.weight" in tensors.shapes:
        return _pool_index(tensors, position, head_dim)
    # MiniMax M3: the first features of the index rotate by the angles of the attention
    kind, has_tensors = tensors.entry("layer_types"), any(param.startswith("index.") for param in tensors.shapes)
    if kind == BLOCK_SPARSE:
        tensors.shape("index.k.weight")  # missing
    elif not has_tensors:
        return None
    elif kind is not None:
        raise tensors.missing(f"an index in a layer of type {kind!r}")
    section, sizes = tensors.config.section("sparse_attention_config"), dict[str, int]()
    for field, (key, older) in BLOCK_KEYS.items():
        is_older = section is not None and section.get(older) is not None
        size = section.size(older) if section is not None and is_older else tensors.size((key,))
        if size is None:
            raise tensors.missing(
                f"an index of blocks whose size is unknown (keys {', '.join(dict(BLOCK_KEYS.values()))})"
            )
        sizes[field] = size
    shapes = {name: tensors.sides(f"index.{name}.weight")[0] for name in "qk"}
    if shapes != {"q": sizes["num_heads"] * sizes["head_dim"], "k": sizes["head_dim"]}:
        raise tensors.missing("an index whose tensors do not fit its keys")
    norms = [tensors.shape(f"index.{name}_norm.weight") for name in "qk"]
    if norms != [(sizes["head_dim"],)] * 2 or "index.k_norm.bias" in tensors.shapes:
        raise tensors.missing("an index without RMSNorm on its queries and keys")
    rotary = _index_rotary(tensors, position, head_dim, sizes["head_dim"])
    return BlockIndex(**sizes, position=rotary, norm=tensors.norm(bias=False))


def _pool_index(tensors: CheckpointMixer, position: MixerPosition, head_dim: int) -> PoolIndex:
    # Qwen4-Exp: the first features of queries and pooled keys rotate by the angles of the attention
    sizes = {field: tensors.size((key,)) for field, key in (*POOL_KEYS.items(), ("budget", BUDGET))}
    if tensors.size(("indexer_kv_heads",)) not in (None, 1):
        raise tensors.missing("an index of pools with several key heads")
    if None in sizes.values():
        names = ", ".join((*POOL_KEYS.values(), BUDGET))
        raise tensors.missing(f"an index of pools whose size is unknown (keys {names})")
    known = {field: size for field, size in sizes.items() if size is not None}
    width, budget = known["head_dim"], known.pop("budget")
    rows = (known["num_heads"] + 1) * width
    norms = {tensors.shape(f"index.{name}_norm.weight") for name in "qk"}
    if tensors.sides("index.qk.weight")[0] != rows or norms != {(width,)} or budget % known["pool"]:
        raise tensors.missing("an index of pools whose tensors do not fit its keys")
    tensors.settle("fused_order", ("qkv",), "no file states the order of the index's queries and keys")
    return PoolIndex(
        **known,
        top_pools=budget // known["pool"],
        position=_index_rotary(tensors, position, head_dim, width),
        norm=tensors.norm(bias=False),
    )


def _index_rotary(tensors: CheckpointMixer, position: MixerPosition, head_dim: int, width: int) -> Rotary | None:
    if not isinstance(position, Rotary):
        return None
    rotary_dim = position.dim or head_dim
    if rotary_dim > width:
        raise tensors.missing(f"an index that rotates {rotary_dim} of {width} features")
    return position.replace(dim=None if rotary_dim == width else rotary_dim)


def _key_index(tensors: CheckpointMixer, position: MixerPosition, head_dim: int) -> LightningIndex:
    # Naive N0.5: heads whose first features rotate by the angles of the attention, with one key, and weights
    top_k, *stated = (tensors.size((f"index_{name}",)) for name in ("top_k", "n_heads", "head_dim"))
    num_heads, width = (tensors.sides(f"index.{name}.weight")[0] for name in ("weights", "k"))
    norms = {tensors.shape(f"index.k_norm.{kind}") for kind in ("weight", "bias")}
    if tensors.sides("index.q.weight")[0] != num_heads * width or norms != {(width,)} or stated != [num_heads, width]:
        raise tensors.missing("an index whose tensors do not fit its keys")
    if top_k is None:
        raise tensors.missing("an index whose size is unknown (key index_top_k)")
    rounded = tensors.config.get("indexer_activation_dtype")
    if rounded not in (None, "bf16"):
        tensors.assume("index", "exact", f"its class rounds the index's queries and keys to {rounded}")
    rotary = _index_rotary(tensors, position, head_dim, width)
    return LightningIndex(top_k=top_k, num_heads=num_heads, head_dim=width, position=rotary, norm=LayerNorm(eps=1e-5))
