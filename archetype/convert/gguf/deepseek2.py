"""Latent attention in GGUF. llama.cpp computes it on the latents for DeepSeek-V2, V3 and later models."""

from dataclasses import replace
from functools import partial
from typing import Any, Literal

from archetype.convert.gguf.keys import INDEX_HEADS, FileKeys, Has, Keys, Layer, has, unsupported, written_fields
from archetype.convert.gguf.mixers import OtherMixer
from archetype.convert.gguf.routing import SIGMOID
from archetype.families.config import Config
from archetype.families.keys import expect_kind
from archetype.models.decoder.spec import Decoder
from archetype.models.spec import ModelSpec
from archetype.parts.attention.spec import OutputGate, QueryScale
from archetype.parts.latent_attention.spec import DirectQuery, LatentAttention, LowRankQuery
from archetype.parts.lightning_index.spec import LightningIndex
from archetype.parts.norm.spec import LayerNorm, RMSNorm
from archetype.parts.pool_index.spec import PoolIndex
from archetype.parts.position.frequencies import yarn_score_scale
from archetype.parts.position.spec import NoPosition, NoScaling, Rotary, RotaryScaling, YarnScaling

INDEX = "attention.indexer"
LIGHTNING = INDEX_HEADS | {f"{INDEX}.top_k": "top_k"}
# Layer counts, and (layers, vocabulary) pairs, by which llama.cpp recognizes models without low-rank queries.
LITE, OTHER_LITE = (26, 27), (48, 128_256)
TENTH = 0.1  # stored factor, removed again by llama.cpp's reader (TAG_DEEPSEEK2_YARN_LOG_MUL_FIX in its sources)


def check(model: ModelSpec) -> None:
    """Refuse other mixers, and queries that llama.cpp would read as those of a different model."""
    decoder = expect_kind(Decoder, model, "kind")
    mixer = expect_kind(LatentAttention, decoder.layers[0].mixer, "layers[0].mixer")
    lite = decoder.num_layers in LITE or (decoder.num_layers, decoder.vocab_size) == OTHER_LITE
    if isinstance(mixer.query, LowRankQuery) and lite:
        cause = f"low-rank queries in deepseek2 with {decoder.num_layers} layers"
        raise unsupported("layers[*].mixer.query", cause)
    expect_kind(Rotary, mixer.position, "layers[0].mixer.position")


def old_glm(keys: FileKeys) -> Keys:
    """Return the affinity of GLM 4.7 Flash's experts, which old files do not declare."""
    is_glm = keys.size("block_count") in (47, 48) and keys.size("vocab_size") == 154_880
    return {"expert_gating_func": SIGMOID} if is_glm else {}


def check_later(model: Any) -> None:
    """Refuse fields that the architectures after deepseek2 compute differently."""
    mixer = expect_kind(LatentAttention, model.layers[0].mixer, "layers[0].mixer")
    if not isinstance(mixer.query, LowRankQuery):
        raise unsupported("layers[*].mixer.query", "queries of full rank here")
    scaling = getattr(mixer.position, "scaling", NoScaling())
    if isinstance(scaling, YarnScaling) and scaling.mscale_all_dim != 1.0:
        raise unsupported("layers[*].mixer.position.scaling.mscale_all_dim", f"{scaling.mscale_all_dim} here, only 1.0")
    check(model)


def check_unscaled(model: Any) -> None:
    """Refuse what `check_later` refuses, and scaled rotary positions, which llama.cpp applies only partly in GLM-5."""
    mixer = expect_kind(LatentAttention, model.layers[0].mixer, "layers[0].mixer")
    if getattr(mixer.position, "scaling", None) != NoScaling():
        raise unsupported("layers[*].mixer.position.scaling", "scaled rotations here")
    check_later(model)


def read(
    layer: Layer,
    eps: float,
    interleaved: bool = True,
    rotates: Literal["scaled", "plain", "no"] = "scaled",
    gate: OutputGate | None = None,
    has_gate: Has = "all",
    kind: str | None = None,
) -> LatentAttention:
    # New files describe one key-value head as wide as the cached latent, and the real head widths in keys ending in
    # _mla. Old files have the real number and widths of heads. If layers differ, `kind` ends the keys of one kind.
    config, of = layer.keys, kind or ""
    rank, rope = config.size(f"attention.kv_lora_rank{of}"), layer.count("rope.dimension_count")
    config.used.add("attention.head_count_kv")
    mla = f"_mla{of}" if config.get(f"attention.key_length_mla{of}") is not None else ""
    num_heads = config.size("attention.head_count") if kind is None else layer.count("attention.head_count")
    head_dim = config.size(f"attention.key_length{mla}")
    v_head_dim = config.size(f"attention.value_length{mla}", config.size("embedding_length") // max(num_heads, 1) or 1)
    if mla:
        config.expect(f"attention.key_length{of}", rank + rope, "heads of another width")
        config.expect(f"attention.value_length{of}", rank, "heads of another width")
    if head_dim <= rope or not (rope or rotates == "no"):
        raise config.error(
            f"attention.key_length{mla}", f"{head_dim} must exceed the {rope} rotated features", "fix the file"
        )
    rotary: dict[str, Any] = {"position": NoPosition()}
    if rotates != "no":
        scaling = _read_scaling(config)
        if rotates == "plain" and scaling != NoScaling():
            raise config.error("rope.scaling.type", "scales rotations", "this model is not supported")
        theta = config.positive(f"rope.freq_base{of}", 10_000.0)
        position = Rotary(theta=theta, interleaved=interleaved, scaling=scaling)
        rotary = {"position": position, "scale": yarn_score_scale(head_dim, scaling)}
    query_rank = config.count("attention.q_lora_rank", 0)
    return LatentAttention(
        num_heads=num_heads,
        query=LowRankQuery(rank=query_rank) if query_rank else DirectQuery(),
        kv_lora_rank=rank,
        qk_rope_head_dim=rope,
        qk_nope_head_dim=head_dim - rope,
        v_head_dim=v_head_dim,
        norm=RMSNorm(eps=eps),
        gate=gate if has(has_gate, layer.has("attn_gate.weight")) else None,
        **rotary,
    )


def write(mixer: Any, decoder: Decoder, marked: bool = False) -> Keys:
    rank, rope, position = mixer.kv_lora_rank, mixer.qk_rope_head_dim, mixer.position
    # 0 marks layers with a different mixer
    heads: list[int] = [int(isinstance(block.mixer, LatentAttention)) for block in decoder.layers]
    turned = {"rope.freq_base": position.theta, **_written_scaling(position.scaling)} if not position.is_absent else {}
    return {
        "attention.head_count": mixer.num_heads,
        "attention.head_count_kv": heads if marked else 1,
        "attention.key_length": rank + rope,
        "attention.value_length": rank,
        "attention.key_length_mla": mixer.head_dim,
        "attention.value_length_mla": mixer.v_head_dim,
        "attention.kv_lora_rank": rank,
        "attention.q_lora_rank": mixer.query.rank if isinstance(mixer.query, LowRankQuery) else 0,
        "rope.dimension_count": rope,
        **turned,
    }


def _write_plain(mixer: Any, decoder: Decoder) -> Keys:
    # as many keys and values as heads, which are not absorbed
    keys = write(mixer, decoder)
    heads: Keys = {"attention.head_count_kv": mixer.num_heads}
    lengths = {f"attention.{name}_length": keys.pop(f"attention.{name}_length_mla") for name in ("key", "value")}
    return keys | heads | lengths


def read_indexed(layer: Layer, eps: float, interleaved: bool, **fields: Any) -> LatentAttention:
    mixer, keys = read(layer, eps, **fields), layer.keys
    sizes, rope_dim = keys.fields(LIGHTNING), mixer.qk_rope_head_dim
    # layers whose tensors or flags say so use the selection of the last layer that has its own
    types = keys.get(f"{INDEX}.types", [])
    if not isinstance(types, list):
        raise keys.error(f"{INDEX}.types", f"{types!r:.80} is not a list", "fix the file")
    own = [
        before
        for before in range(layer.index + 1)
        if replace(layer, index=before).has("indexer.proj.weight") and (before >= len(types) or types[before])
    ]
    if not own:
        raise keys.error(f"{INDEX}.types", f"has no entry for layer {layer.index}", "fix the file")
    dim = None if rope_dim == sizes["head_dim"] else rope_dim
    position = mixer.position.replace(dim=dim, interleaved=interleaved)
    index = LightningIndex(**sizes, position=position, from_layer=own[-1] - layer.index or None)
    return mixer.replace(index=index)


def _write_indexed(mixer: Any, decoder: Decoder, shares: bool) -> Keys:
    indices = []
    for block in decoder.layers:
        index = expect_kind(LatentAttention, block.mixer, "layers[*].mixer").index
        if not isinstance(index, LightningIndex):
            raise unsupported("layers[*].mixer.index", "latent attention without an index")
        indices.append(index)
    own = [index.from_layer is None for index in indices]
    if not shares and not all(own):
        raise unsupported("layers[*].mixer.index.from_layer", "an index of another layer here")
    return write(mixer, decoder) | written_fields(indices[0], LIGHTNING) | ({f"{INDEX}.types": own} if shares else {})


def _read_pools(layer: Layer, eps: float) -> LatentAttention:
    # GLM-5.3-Flash: a pool index and no rotary positions
    keys = layer.keys
    pool, top_k = keys.size(f"{INDEX}.kpool"), keys.size(f"{INDEX}.top_k")
    keys.expect(f"{INDEX}.kpool_select_tail", True, "queries that do not attend to the keys after the last pool")
    if top_k % pool:
        raise keys.error(f"{INDEX}.top_k", f"{top_k} is not a multiple of pools of {pool}", "fix the file")
    if not all(keys.get(f"{INDEX}.types", [])):
        raise keys.error(f"{INDEX}.types", "shares an index between layers", "this model is not supported")
    index = PoolIndex(
        pool=pool,
        top_pools=top_k // pool,
        **keys.fields(INDEX_HEADS),
        norm=LayerNorm(eps=keys.positive("attention.layer_norm_epsilon")),
        norm_of="keys",
        pooling="gated",
        head_weights=True,
    )
    return read(layer, eps, rotates="no").replace(index=index)


def _write_pools(mixer: Any, decoder: Decoder) -> Keys:
    expect_kind(LowRankQuery, mixer.query, "layers[*].mixer.query")
    index = mixer.index
    if not isinstance(index, PoolIndex):
        raise unsupported("layers[*].mixer.index", "latent attention without an index")
    norm = expect_kind(LayerNorm, index.norm, "layers[*].mixer.index.norm")
    return write(mixer, decoder, marked=True) | {
        "attention.layer_norm_epsilon": norm.eps,
        **written_fields(index, INDEX_HEADS),
        f"{INDEX}.top_k": index.top_pools * index.pool,
        f"{INDEX}.kpool": index.pool,
        f"{INDEX}.kpool_select_tail": True,
    }


def _read_growing(layer: Layer, eps: float) -> LatentAttention:
    # Mistral 4: queries grow with their position
    mixer, keys = read(layer, eps), layer.keys
    if not (beta := keys.number("attention.temperature_scale", 0.0)):
        return mixer
    return mixer.replace(query_scale=QueryScale(beta=beta, length=keys.size("attention.temperature_length")))


def _write_growing(mixer: Any, decoder: Decoder) -> Keys:
    keys = write(mixer, decoder)
    if (growth := mixer.query_scale) is None:
        return keys
    return keys | {"attention.temperature_scale": growth.beta, "attention.temperature_length": growth.length}


def _read_scaling(config: Config) -> RotaryScaling:
    config.used.add("rope.scaling.finetuned")
    match config.get("rope.scaling.type", "none"):
        case "none":
            return NoScaling()
        case "yarn":
            every = config.positive("rope.scaling.yarn_log_multiplier") / TENTH
            every = float(f"{every:.7g}")  # a float32 in the file: 0.0707 / 0.1 should give 0.707 again
            return YarnScaling(
                factor=config.positive("rope.scaling.factor"),
                original_context_length=config.size("rope.scaling.original_context_length"),
                beta_fast=config.positive("rope.scaling.yarn_beta_fast", 32.0),
                beta_slow=config.positive("rope.scaling.yarn_beta_slow", 1.0),
                mscale=every,
                mscale_all_dim=every,
            )
        case kind:
            raise config.error("rope.scaling.type", f"{kind!r} is not supported", "use 'none' or 'yarn'")


def _written_scaling(scaling: RotaryScaling) -> Keys:
    # llama.cpp has only one of DeepSeek's two factors (mscale, mscale_all_dim). If they are equal, rotation keeps the
    # length of vectors.
    field = "layers[*].mixer.position.scaling"
    match scaling:
        case NoScaling():
            return {}
        case YarnScaling(mscale=float(mscale), mscale_all_dim=float(every)) if mscale == every:
            if scaling.attention_factor is not None:
                raise unsupported(f"{field}.attention_factor", "an attention factor in deepseek2")
            if not scaling.truncate:
                raise unsupported(f"{field}.truncate", "a ramp that is not truncated to whole pairs")
            return {
                "rope.scaling.type": "yarn",
                "rope.scaling.factor": scaling.factor,
                "rope.scaling.original_context_length": scaling.original_context_length,
                "rope.scaling.yarn_beta_fast": scaling.beta_fast,
                "rope.scaling.yarn_beta_slow": scaling.beta_slow,
                "rope.scaling.yarn_log_multiplier": TENTH * every,
            }
        case YarnScaling():
            raise unsupported(f"{field}.mscale", "yarn with different mscale and mscale_all_dim in deepseek2")
        case _:
            raise unsupported(field, f"{scaling.kind} scaling in deepseek2")


def _read_hy(layer: Layer, eps: float) -> LatentAttention:
    # Hy4: a gate for each feature, sinks, and an index whose last features rotate, if the file has one
    if layer.keys.count(f"{INDEX}.top_k", 0):
        mixer = read_indexed(layer, eps, interleaved=True)
        index = mixer.index
        assert isinstance(index, LightningIndex)
        mixer = mixer.replace(index=index.replace(rotates="last", norm=LayerNorm(eps=eps)))
    else:
        mixer = read(layer, eps)
    return mixer.replace(gate=OutputGate(), sinks=True)


def _write_hy(mixer: Any, decoder: Decoder) -> Keys:
    return write(mixer, decoder) if mixer.index is None else _write_indexed(mixer, decoder, shares=True)


LATENT = OtherMixer(LatentAttention, "attn_kv_a_norm.weight", read, write)
PLAIN = replace(LATENT, write=_write_plain)
PLAIN_HALVES = replace(PLAIN, read=partial(read, interleaved=False))
# DeepSeek-V3.2, and GLM-5, in which layers may share an index
INDEXED = replace(LATENT, read=partial(read_indexed, interleaved=False), write=partial(_write_indexed, shares=False))
SHARED_INDEX = replace(LATENT, read=partial(read_indexed, interleaved=True), write=partial(_write_indexed, shares=True))
UNROTATED = replace(LATENT, read=partial(read, rotates="no"), write=partial(write, marked=True))
UNROTATED_GATED = replace(UNROTATED, read=partial(read, rotates="no", gate=OutputGate(), has_gate="any"))
# Ling 3
GATED = replace(UNROTATED, read=partial(read, rotates="plain", gate=OutputGate(per="head")))
POOLED = replace(LATENT, read=_read_pools, write=_write_pools)
HY = replace(LATENT, read=_read_hy, write=_write_hy)
GROWING = replace(LATENT, read=_read_growing, write=_write_growing)
ATTENTION = """
    blk.{i}.attn_{q,output}                  blocks.{i}.mixer.{q,o}
    blk.{i}.attn_q_{a,a_norm,b}              blocks.{i}.mixer.{q_down,q_norm,q_up}
    blk.{i}.attn_kv_{a_mqa,a_norm,b}         blocks.{i}.mixer.{kv_down,kv_norm,kv_up}
    blk.{i}.attn_gate                        blocks.{i}.mixer.gate
    blk.{i}.attn_sinks.weight              = blocks.{i}.mixer.sinks
    blk.{i}.indexer.{attn_q_b,attn_k}        blocks.{i}.mixer.index.{q,k}
    blk.{i}.indexer.{k_norm,proj}            blocks.{i}.mixer.index.{k_norm,weights}
    blk.{i}.indexer_compressor_gate          blocks.{i}.mixer.index.pool_gate
    blk.{i}.indexer_compressor_ape.weight  = blocks.{i}.mixer.index.pool_bias
"""
