"""Infer compressed attention of DeepSeek-V4 from the names and shapes of its tensors."""

from archetype.parts.attention.infer import PREFIX
from archetype.parts.compressed_attention.spec import CompressedAttention, PooledIndex, Pooling
from archetype.parts.norm.spec import RMSNorm
from archetype.parts.position.spec import Rotary
from archetype.roles.checkpoint import CheckpointMixer, MixerReader, NameTable
from archetype.spec.registry import provides

POOL = (("wkv", "kv"), ("wgate", "gate"), ("norm", "norm"))
NAMES: NameTable = (
    *((rf"{PREFIX}indexer\.compressor\.{theirs}", f"index.pool.{ours}") for theirs, ours in POOL),
    (rf"{PREFIX}indexer\.wq_b", "index.q"),
    (rf"{PREFIX}indexer\.weights_proj", "index.weights"),
    *((rf"{PREFIX}compressor\.{theirs}", f"pool.{ours}") for theirs, ours in POOL),
    (rf"{PREFIX}wq_a", "q_down"),
    (rf"{PREFIX}q_norm", "q_norm"),
    (rf"{PREFIX}wq_b", "q_up"),
    (rf"{PREFIX}wkv", "kv"),
    (rf"{PREFIX}norm", "kv_norm"),
    (rf"{PREFIX}wo_a", "o_down"),
    (rf"{PREFIX}wo_b", "o_up"),
)
NUMBERS: NameTable = (
    (rf"{PREFIX}attn_sink", "sinks"),
    (rf"{PREFIX}indexer\.compressor\.ape", "index.pool.offsets"),
    (rf"{PREFIX}compressor\.ape", "pool.offsets"),
)
POOLED = {  # whether each kind of layer has pooled keys, whose windows overlap, and an index of them
    "sliding_attention": (False, False, False),
    "compressed_sparse_attention": (True, True, True),
    "heavily_compressed_attention": (True, False, False),
}


def read(tensors: CheckpointMixer) -> CompressedAttention:
    """Read sizes from the projections; keys say how many features rotate, and the sizes of windows and groups."""
    config, kind = tensors.config, tensors.entry("layer_types")
    head_dim, rank = tensors.sides("kv.weight")[0], tensors.sides("q_down.weight")[0]
    heads, odd = divmod(tensors.sides("q_up.weight")[0], head_dim)
    groups, group_rank, rotary_dim = (config.size(key) for key in ("o_groups", "o_lora_rank", "qk_rope_head_dim"))
    stated = tensors.size(("head_dim",)), tensors.size(("num_attention_heads",))
    rows, columns = tensors.sides("o_down.weight")
    if odd or columns * groups != heads * head_dim or rows != groups * group_rank or stated != (head_dim, heads):
        raise tensors.missing(f"compressed attention whose tensor shapes do not fit {groups} groups")
    if "sinks" not in tensors.shapes:
        raise tensors.missing("compressed attention without sinks")
    pooling = _pooling(tensors, head_dim)
    index = None if pooling is None else pooling.index
    has = pooling is not None, pooling is not None and pooling.overlap, index is not None
    if kind not in POOLED or POOLED[kind] != has:
        raise tensors.missing(f"the tensors of layer {tensors.number} in a layer of type {kind!r}")
    position = tensors.position(rotary_dim)
    if not isinstance(position, Rotary):
        raise tensors.missing("compressed attention without rotary positions")
    return CompressedAttention(
        num_heads=heads,
        head_dim=head_dim,
        rotary_dim=None if rotary_dim == head_dim else rotary_dim,
        query_rank=rank,
        window=config.size("sliding_window"),
        groups=groups,
        group_rank=group_rank,
        position=position.replace(dim=None),
        norm=tensors.norm(bias=False),
        query_norm=RMSNorm(eps=tensors.eps, weight=False),
        pooling=pooling,
    )


def _pooling(tensors: CheckpointMixer, head_dim: int) -> Pooling | None:
    if "pool.offsets" not in tensors.shapes:
        return None
    rate, width = tensors.shape("pool.offsets")
    rates = tensors.config.section("compress_rates")
    stated = None if rates is None else rates.get(tensors.entry("layer_types"))
    if width not in (head_dim, 2 * head_dim) or stated not in (None, rate):
        raise tensors.missing(f"pooled keys of {rate} positions and {width} features (declared: {stated})")
    index = None
    if "index.q.weight" in tensors.shapes:
        num_heads, index_rate = tensors.sides("index.weights.weight")[0], tensors.shape("index.pool.offsets")[0]
        index_dim = tensors.sides("index.q.weight")[0] // num_heads
        said = tensors.size(("index_n_heads",)), tensors.size(("index_head_dim",))
        if said != (num_heads, index_dim) or index_rate != rate:
            raise tensors.missing("an index of pooled keys whose tensors do not fit its keys")
        index = PooledIndex(top_k=tensors.config.size("index_topk"), num_heads=num_heads, head_dim=index_dim)
    return Pooling(rate=rate, overlap=width == 2 * head_dim, index=index)


SIGN = rf"{PREFIX}wo_a\.weight"
provides("infer", CompressedAttention)(MixerReader(NAMES, read, sign=(SIGN, 2), parameters=NUMBERS, stands_alone=False))
