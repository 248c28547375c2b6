"""DeepSeek-V2 in GGUF: latent attention as llama.cpp computes it, on the latents themselves."""

from archetype.convert.gguf.decoders import NETWORK, NORMS, OUTER, SPARSE
from archetype.convert.gguf.keys import Keys, unsupported
from archetype.families.keys import expect_kind
from archetype.families.rules import weight_rules
from archetype.models.decoder.spec import Decoder
from archetype.parts.experts.spec import MixtureOfExperts
from archetype.parts.feedforward.spec import GatedMLP, NoFeedForward
from archetype.parts.latent_attention.spec import LatentAttention, LowRankQuery
from archetype.parts.norm.spec import RMSNorm
from archetype.parts.position.spec import NoScaling, RotaryScaling, YarnScaling

# Numbers of layers, and of tokens, by which llama.cpp tells the models whose queries go through no narrow vector.
LITE, OTHER_LITE = (26, 27), (48, 128_256)
SOFTMAX = 1  # of its functions from logits to affinities


def keys(decoder: Decoder) -> Keys:
    """Latent attention counts as one head of keys and values, which is as wide as what is remembered."""
    mixer = expect_kind(LatentAttention, decoder.layers[0].mixer, "layers[0].mixer")
    norm = expect_kind(RMSNorm, decoder.final_norm, "final_norm")
    inner = expect_kind(RMSNorm, mixer.norm, "layers[0].mixer.norm")
    if inner.eps != norm.eps:
        raise unsupported("layers[*].mixer.norm.eps", f"{inner.eps} beside {norm.eps} of the other norms")
    if mixer.bias:
        raise unsupported("layers[*].mixer.bias", "biases in deepseek2")
    lite = decoder.num_layers in LITE or (decoder.num_layers, decoder.vocab_size) == OTHER_LITE
    if isinstance(mixer.query, LowRankQuery) and lite:
        cause = f"queries through a narrow vector in deepseek2 of {decoder.num_layers} layers"
        raise unsupported("layers[*].mixer.query", cause)
    rank, rope = mixer.kv_lora_rank, mixer.qk_rope_head_dim
    return {
        "attention.head_count": mixer.num_heads,
        "attention.head_count_kv": 1,
        "attention.key_length": rank + rope,
        "attention.value_length": rank,
        "attention.key_length_mla": mixer.head_dim,
        "attention.value_length_mla": mixer.v_head_dim,
        "attention.kv_lora_rank": rank,
        "attention.q_lora_rank": mixer.query.rank if isinstance(mixer.query, LowRankQuery) else 0,
        "attention.layer_norm_rms_epsilon": norm.eps,
        "rope.dimension_count": rope,
        "rope.freq_base": mixer.position.theta,
        **_scaling(mixer.position.scaling),
        **_experts(decoder),
    }


def _experts(decoder: Decoder) -> Keys:
    plain = [block.feedforward for block in decoder.layers if isinstance(block.feedforward, GatedMLP)]
    place = "layers[-1].feedforward"
    experts = expect_kind(MixtureOfExperts, decoder.layers[-1].feedforward, place)
    shared = expect_kind(GatedMLP, experts.shared or NoFeedForward(), f"{place}.shared")
    width = experts.expert.width(decoder.d_model)
    if shared.bias:
        raise unsupported("layers[*].feedforward.bias", "biases in deepseek2")
    if experts.groups is not None and experts.groups.groups_per_token < experts.groups.num_groups:
        # llama.cpp has the groups of DeepSeek-V3, which it compares by the sum of each one's best two experts
        raise unsupported(f"{place}.groups", "groups of experts that are chosen by the best of each")
    return {
        "leading_dense_block_count": len(plain),
        "feed_forward_length": plain[0].width(decoder.d_model) if plain else width,
        "expert_count": experts.num_experts,
        "expert_used_count": experts.experts_per_token,
        "expert_feed_forward_length": width,
        "expert_shared_count": shared.width(decoder.d_model) // width,
        "expert_weights_scale": experts.router.scale,
        "expert_weights_norm": experts.router.renormalize,
        "expert_gating_func": SOFTMAX,
    }


def _scaling(scaling: RotaryScaling) -> Keys:
    """YaRN with DeepSeek's two factors, of which llama.cpp knows one: the rotations keep their length."""
    place = "layers[*].mixer.position.scaling"
    match scaling:
        case NoScaling():
            return {}
        case YarnScaling(mscale=float(mscale), mscale_all_dim=float(every)) if mscale == every:
            if scaling.attention_factor is not None:
                raise unsupported(f"{place}.attention_factor", "it in deepseek2")
            if not scaling.truncate:
                raise unsupported(f"{place}.truncate", "a ramp that begins between two pairs")
            return {
                "rope.scaling.type": "yarn",
                "rope.scaling.factor": scaling.factor,
                "rope.scaling.original_context_length": scaling.original_context_length,
                "rope.scaling.yarn_beta_fast": scaling.beta_fast,
                "rope.scaling.yarn_beta_slow": scaling.beta_slow,
                # a tenth, which its reader takes back (TAG_DEEPSEEK2_YARN_LOG_MUL_FIX in its sources)
                "rope.scaling.yarn_log_multiplier": 0.1 * every,
            }
        case YarnScaling():
            raise unsupported(f"{place}.mscale", "yarn in deepseek2 unless mscale and mscale_all_dim are the same")
        case _:
            raise unsupported(place, f"{scaling.kind} scaling in deepseek2")


RULES = weight_rules(f"""{OUTER}{NORMS}{NETWORK}{SPARSE}
    blk.{{i}}.attn_{{q,output}}                  blocks.{{i}}.mixer.{{q,o}}
    blk.{{i}}.attn_q_{{a,a_norm,b}}              blocks.{{i}}.mixer.{{q_down,q_norm,q_up}}
    blk.{{i}}.attn_kv_{{a_mqa,a_norm,b}}         blocks.{{i}}.mixer.{{kv_down,kv_norm,kv_up}}
    blk.{{i}}.ffn_{{gate,up,down}}_shexp         blocks.{{i}}.feedforward.shared.{{gate,up,down}}
""")
