"""Infer latent attention of an unregistered family from names and shapes of its tensors."""

from archetype.parts.attention.infer import HEAD_DIM, PREFIX, num_heads
from archetype.parts.attention.infer import NAMES as ATTENTION_NAMES
from archetype.parts.latent_attention.spec import DirectQuery, LatentAttention, LowRankQuery, Query
from archetype.parts.lightning_index.spec import LightningIndex
from archetype.parts.position.frequencies import yarn_score_scale
from archetype.parts.position.spec import Rotary
from archetype.roles.checkpoint import CheckpointMixer, MixerReader, NameTable
from archetype.spec.registry import provides

NAMES: NameTable = (
    (rf"{PREFIX}q_a_proj", "q_down"),
    (rf"{PREFIX}q_a_layernorm", "q_norm"),
    (rf"{PREFIX}q_b_proj", "q_up"),
    (rf"{PREFIX}kv_a_proj_with_mqa", "kv_down"),
    (rf"{PREFIX}kv_a_layernorm", "kv_norm"),
    (rf"{PREFIX}kv_b_proj", "kv_up"),
    (rf"{PREFIX}indexer\.wq_b", "index.q"),
    (rf"{PREFIX}indexer\.wk", "index.k"),
    (rf"{PREFIX}indexer\.k_norm", "index.k_norm"),
    (rf"{PREFIX}indexer\.weights_proj", "index.weights"),
    *ATTENTION_NAMES,
)
TOP_K = ("index_topk",)
INDEXED = ("indexed_attention", "deepseek_sparse_attention")  # kinds of layers with an index, in `layer_types`


def read(tensors: CheckpointMixer) -> LatentAttention:
    """Read all sizes except the number of heads from the projections."""
    # rows: kv_down C + R, kv_up H (P + Q); columns: o H Q
    heads = num_heads(tensors)
    latent_rank = tensors.sides("kv_up.weight")[1]
    rope_dim = tensors.sides("kv_down.weight")[0] - latent_rank
    if (stated := tensors.size(HEAD_DIM)) not in (None, rope_dim) and not tensors.quirks.head_dim_replaced:
        raise tensors.missing(f"latent attention that rotates {rope_dim} features, where a key says {stated}")
    v_dim = tensors.sides("o.weight")[1] // heads
    nope_dim = tensors.sides("kv_up.weight")[0] // heads - v_dim
    if min(rope_dim, v_dim, nope_dim) < 1:
        raise tensors.missing(f"latent attention with {heads} heads and the shapes of its tensors")
    tensors.settle("latent_order", ("nope_rope",), "no file says which features of a head rotate")
    query: Query = DirectQuery()
    if "q_down.weight" in tensors.shapes:
        query = LowRankQuery(rank=tensors.sides("q_down.weight")[0])
    position = tensors.rotary(rope_dim)
    assert isinstance(position, Rotary)
    return LatentAttention(
        num_heads=heads,
        query=query,
        kv_lora_rank=latent_rank,
        qk_nope_head_dim=nope_dim,
        qk_rope_head_dim=rope_dim,
        v_head_dim=v_dim,
        position=position,
        bias="o.bias" in tensors.shapes,
        scale=yarn_score_scale(nope_dim + rope_dim, position.scaling),
        index=_index(tensors, position, rope_dim),
    )


def _index(tensors: CheckpointMixer, position: Rotary, rope_dim: int) -> LightningIndex | None:
    # DeepSeek-V3.2; its first `rope_dim` features rotate by the angles of the attention, possibly in other pairs
    if tensors.entry("indexer_types") == "shared":
        raise tensors.missing("an index that layers share")
    if not any(param.startswith("index.") for param in tensors.shapes):
        return None
    if (kind := tensors.entry("layer_types")) not in (None, *INDEXED):
        raise tensors.missing(f"an index in a layer of the kind {kind!r}")
    if (top_k := tensors.size(TOP_K)) is None:
        raise tensors.missing(f"the number of keys that the index selects, under the key {TOP_K[0]}")
    num_heads, head_dim = tensors.sides("index.weights.weight")[0], tensors.sides("index.k.weight")[0]
    tensors.shape("index.q.weight")
    for name, size in (("index_n_heads", num_heads), ("index_head_dim", head_dim)):
        if tensors.size((name,)) not in (None, size):
            raise tensors.missing(f"an index with another {name} than the {size} of its tensors")
    if tensors.shape("index.k_norm.weight") != tensors.shape("index.k_norm.bias"):
        raise tensors.missing("an index without LayerNorm of its keys")
    why = "no file says which features of the index rotate together"
    interleaved = tensors.settle("index_interleaved", (False, True), why)
    return LightningIndex(
        top_k=top_k,
        num_heads=num_heads,
        head_dim=head_dim,
        position=position.replace(dim=None if rope_dim == head_dim else rope_dim, interleaved=interleaved),
    )


SIGN = rf"{PREFIX}kv_a_proj_with_mqa\.weight"
provides("infer", LatentAttention)(MixerReader(NAMES, read, sign=(SIGN, 2), stands_alone=False))
