"""Infer latent attention of an unregistered family from names and shapes of its tensors."""

from archetype.parts.attention.infer import HEAD_DIM, PREFIX, num_heads
from archetype.parts.attention.infer import NAMES as ATTENTION_NAMES
from archetype.parts.latent_attention.spec import DirectQuery, LatentAttention, LowRankQuery
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
    *ATTENTION_NAMES,
)


def read(tensors: CheckpointMixer) -> LatentAttention:
    """Read all sizes except the number of heads from the projections."""
    # rows: kv_down C + R, kv_up H (P + Q); columns: o H Q
    heads = num_heads(tensors)
    latent_rank = tensors.sides("kv_up.weight")[1]
    rope_dim = tensors.sides("kv_down.weight")[0] - latent_rank
    if (stated := tensors.size(HEAD_DIM)) not in (None, rope_dim):
        raise tensors.missing(f"latent attention that rotates {rope_dim} features, where a key says {stated}")
    v_dim = tensors.sides("o.weight")[1] // heads
    nope_dim = tensors.sides("kv_up.weight")[0] // heads - v_dim
    if min(rope_dim, v_dim, nope_dim) < 1:
        raise tensors.missing(f"latent attention with {heads} heads and the shapes of its tensors")
    tensors.settle("latent_order", ("nope_rope",), "no file says which features of a head rotate")
    query = LowRankQuery(rank=tensors.sides("q_down.weight")[0]) if "q_down.weight" in tensors.shapes else DirectQuery()
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
    )


SIGN = rf"{PREFIX}kv_a_proj_with_mqa\.weight"
provides("infer", LatentAttention)(MixerReader(NAMES, read, sign=(SIGN, 2), stands_alone=False))
