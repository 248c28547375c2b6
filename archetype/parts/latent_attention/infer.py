"""Infer latent attention of an unregistered family from names and shapes of its tensors."""

import math

from archetype.parts.attention.infer import GATE_ACTIVATION, PREFIX, query_scale
from archetype.parts.attention.infer import NAMES as ATTENTION_NAMES
from archetype.parts.attention.infer_sizes import HEAD_DIM, num_heads
from archetype.parts.attention.spec import OutputGate
from archetype.parts.latent_attention.spec import DirectQuery, LatentAttention, LowRankQuery, Query
from archetype.parts.lightning_index.spec import LightningIndex
from archetype.parts.norm.spec import LayerNorm, NoNorm, RMSNorm
from archetype.parts.pool_index.spec import PoolIndex
from archetype.parts.position.frequencies import yarn_score_scale
from archetype.parts.position.spec import NoPosition, Rotary
from archetype.roles.checkpoint import CheckpointMixer, Joint, MixerReader, NameTable
from archetype.roles.position import MixerPosition
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
    (rf"{PREFIX}linear_gate", "gate"),
    (rf"{PREFIX}k_rope_only_layernorm", "k_norm"),
    *ATTENTION_NAMES,
)
NUMBERS: NameTable = (
    (rf"{PREFIX}(?:sinks|learnable_sink_param)", "sinks"),
    (rf"{PREFIX}indexer\.index_kpool_compress_gate", "index.pool_gate.weight"),
    (rf"{PREFIX}indexer\.index_kpool_compress_ape", "index.pool_bias"),
)
TOP_K = ("index_topk",)
SHARES = {"full": False, "F": False, "shared": True, "S": True}  # whether a layer shares an earlier layer's index
INDEXED = ("indexed_attention", "deepseek_sparse_attention")  # kinds of layers with an index, in `layer_types`


def read(tensors: CheckpointMixer) -> LatentAttention:
    """Read all sizes except the number of heads from the projections."""
    (rows, width), scales = tensors.sides("kv_down.weight"), tensors.quirks.latents_scaled
    # rows: kv_down C + R, kv_up H (P + Q); columns: o H Q
    heads = num_heads(tensors)
    latent_rank = tensors.sides("kv_up.weight")[1]
    rope_dim = rows - latent_rank
    v_dim = tensors.sides("o.weight")[1] // heads
    nope_dim = tensors.sides("kv_up.weight")[0] // heads - v_dim
    if min(v_dim, nope_dim) < 1 or rope_dim < (not tensors.quirks.unrotated):
        raise tensors.missing(f"latent attention whose tensor shapes do not fit {heads} heads")
    whole = nope_dim + rope_dim if tensors.quirks.share_is_of_head else rope_dim
    ignores = tensors.quirks.head_dim_replaced or tensors.quirks.unrotated
    if ignores:
        tensors.entry("head_dim")
    elif (stated := tensors.size(HEAD_DIM)) not in (None, whole):
        raise tensors.missing(f"latent attention with {rope_dim} rotated features (head_dim: {stated})")
    tensors.settle("latent_order", ("nope_rope",), "no file states which features of a head are rotated")
    query: Query = DirectQuery()
    joins = _joins_unnormed(tensors)
    if "q_down.weight" in tensors.shapes:
        rank = tensors.sides("q_down.weight")[0]
        query = LowRankQuery(rank=rank, scale=math.sqrt(width / rank) if scales else 1.0, joins_unnormed=joins)
    rows = tensors.sides("q_up.weight")[0] if joins else heads * (nope_dim + rope_dim + v_dim)
    if rows != heads * (nope_dim + rope_dim + v_dim):
        raise tensors.missing(f"a query projection of {rows} rows that includes the gate of {heads} heads")
    position: MixerPosition = NoPosition()
    if tensors.quirks.unrotated and not tensors.config.flag("mla_use_nope", True):
        raise tensors.missing("latent attention with rotary positions, which no model of this type has")
    if not tensors.quirks.unrotated:
        position = tensors.rotary(rope_dim, nope_dim + rope_dim)
    scale = None
    if isinstance(position, Rotary) and tensors.quirks.yarn_scales_scores:
        scale = yarn_score_scale(nope_dim + rope_dim, position.scaling)
    return LatentAttention(
        num_heads=heads,
        query=query,
        kv_lora_rank=latent_rank,
        qk_nope_head_dim=nope_dim,
        qk_rope_head_dim=rope_dim,
        v_head_dim=v_dim,
        position=position,
        norm=RMSNorm(eps=tensors.eps if tensors.quirks.latents_eps_is_shared else 1e-6),
        latent_scale=math.sqrt(width / latent_rank) if scales else 1.0,
        key_norm=RMSNorm(eps=tensors.eps) if "k_norm.weight" in tensors.shapes else NoNorm(),
        bias="o.bias" in tensors.shapes,
        scale=scale,
        sinks="sinks" in tensors.shapes,
        gate=_gate(tensors, heads, v_dim),
        gate_from="query" if joins else "input",
        query_scale=query_scale(tensors, rotates=True),
        index=_index(tensors, position, rope_dim),
        pattern=tensors.pattern(),
    )


def _joins_unnormed(tensors: CheckpointMixer) -> bool:
    # A.X K2: queries and gates, in one tensor, read the low-rank vector and the same before its norm
    if "q_down.weight" not in tensors.shapes or "q_up.weight" not in tensors.shapes:
        return False
    joins = tensors.sides("q_up.weight")[1] == 2 * tensors.sides("q_down.weight")[0]
    if joins:
        tensors.settle("doubled_query", ("query_gate_per_head",), "no file states which rows belong to the gate")
    return joins


def _gate(tensors: CheckpointMixer, heads: int, v_dim: int) -> OutputGate | None:
    if _joins_unnormed(tensors):
        return OutputGate()
    if "gate.weight" not in tensors.shapes:
        return None
    rows = tensors.sides("gate.weight")[0]
    if rows not in (heads, heads * v_dim):
        raise tensors.missing(f"a gate with {rows} rows for {heads} heads of {v_dim} features")
    activation = tensors.settle("gate_activation", ("sigmoid", "softplus"), GATE_ACTIVATION)
    return OutputGate(per="head" if rows == heads else "feature", activation=activation)


def _pool_index(tensors: CheckpointMixer) -> PoolIndex:
    # GLM-5.3-Flash, whose index has no positions
    heads, width = tensors.sides("index.weights.weight")[0], tensors.sides("index.k.weight")[0]
    top_k, pool, place = tensors.size(TOP_K), *tensors.shape("index.pool_bias")
    shapes = (tensors.sides("index.q.weight")[0], tensors.sides("index.pool_gate.weight")[0])
    norm = {tensors.shape(f"index.k_norm.{kind}") for kind in ("weight", "bias")}
    stated = [tensors.size((key,)) for key in ("index_n_heads", "index_head_dim", "index_kpool")]
    if shapes != (heads * width, width) or norm != {(width,)} or place != width or stated != [heads, width, pool]:
        raise tensors.missing("an index of pools whose tensors do not fit its keys")
    if top_k is None or top_k % pool or not tensors.config.flag("index_kpool_always_select_tail", True):
        raise tensors.missing("an index of pools that does not select whole pools and the newest keys")
    return PoolIndex(
        pool=pool,
        top_pools=top_k // pool,
        num_heads=heads,
        head_dim=width,
        norm=LayerNorm(eps=1e-6),
        norm_of="keys",
        pooling="gated",
        head_weights=True,
    )


def _index(tensors: CheckpointMixer, position: MixerPosition, rope_dim: int) -> LightningIndex | PoolIndex | None:
    # DeepSeek-V3.2; its first `rope_dim` features rotate by the angles of the attention, possibly in other pairs
    if "index.pool_bias" in tensors.shapes:
        return _pool_index(tensors)
    distance, kind = _distance(tensors), tensors.entry("layer_types")
    has_tensors = any(param.startswith("index.") for param in tensors.shapes)
    if not has_tensors and not distance and (tensors.size(TOP_K) is None or kind not in (None, *INDEXED)):
        return None
    if kind not in (None, *INDEXED):
        raise tensors.missing(f"an index in a layer of type {kind!r}")
    if distance and has_tensors:
        raise tensors.missing("an index in a layer that reuses another layer's index")
    if not isinstance(position, Rotary):
        raise tensors.missing("an index of latent attention without rotary positions")
    top_k, num_heads, head_dim = (tensors.size((key,)) for key in ("index_topk", "index_n_heads", "index_head_dim"))
    if has_tensors:
        shape = tensors.sides("index.weights.weight")[0], tensors.sides("index.k.weight")[0]
        if tensors.sides("index.q.weight")[0] != shape[0] * shape[1] or shape != (
            num_heads or shape[0],
            head_dim or shape[1],
        ):
            raise tensors.missing("an index whose tensors do not fit its keys")
        if tensors.shape("index.k_norm.weight") != tensors.shape("index.k_norm.bias"):
            raise tensors.missing("an index without LayerNorm on its keys")
        num_heads, head_dim = shape
    elif not distance:
        tensors.shape("index.q.weight")  # missing
    if top_k is None or num_heads is None or head_dim is None:
        raise tensors.missing("an index whose size is unknown (keys index_topk, index_n_heads and index_head_dim)")
    why = "no file states which features of the index are rotated together"
    interleaved = tensors.settle("index_interleaved", (False, True), why)
    return LightningIndex(
        top_k=top_k,
        num_heads=num_heads,
        head_dim=head_dim,
        position=position.replace(dim=None if rope_dim == head_dim else rope_dim, interleaved=interleaved),
        rotates="first" if rope_dim == head_dim else tensors.quirks.index_rotates,
        norm=LayerNorm(eps=tensors.eps if tensors.quirks.index_eps_is_shared else 1e-6),
        from_layer=-distance if distance else None,
    )


def _distance(tensors: CheckpointMixer) -> int:
    # distance to the earlier layer whose selection is reused; 0 for a separate selection
    distance = 0
    while _shares(tensors, tensors.number - distance):
        distance += 1
        if distance > tensors.number:
            raise tensors.missing("the missing index of an earlier layer")
    return distance


def _shares(tensors: CheckpointMixer, layer: int) -> bool:
    # GLM-5.2: every layer is named, or the layers with an own index follow a period
    config = tensors.config
    types, pattern = config.get("indexer_types"), config.get("index_topk_pattern")
    period, offset = config.get("index_topk_freq"), config.get("index_skip_topk_offset")
    if (named := pattern if types is None else types) is not None:
        if not isinstance(named, list | str) or layer >= len(named) or named[layer] not in SHARES:
            raise config.error("indexer_types", f"does not say whether layer {layer} shares an index", "fix the file")
        return SHARES[named[layer]]
    if not isinstance(period, int) or not isinstance(offset, int):
        return False
    return bool(max(layer - offset + 1, 0) % max(period, 1))


def _joint(mixer: LatentAttention, tensors: CheckpointMixer, path: str, name: str) -> Joint | None:
    return Joint(("q_up", "gate"), mixer.num_heads) if path == "q_up" and mixer.query.joins_unnormed else None


SIGN = rf"{PREFIX}kv_a_proj_with_mqa\.weight"
provides("infer", LatentAttention)(
    MixerReader(NAMES, read, sign=(SIGN, 2), parameters=NUMBERS, stands_alone=False, joint=_joint)
)
