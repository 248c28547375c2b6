"""DeepSeek-V4 in GGUF: a window and pooled keys, four residual streams, and experts by token id in the first layers."""

from dataclasses import dataclass
from typing import Any

from archetype.convert.gguf import names
from archetype.convert.gguf.keys import DecoderTable, FileKeys, Keys, Layer, unsupported, written_sizes
from archetype.convert.gguf.rope import read_scaling, written_scaling
from archetype.convert.gguf.streams import MIXED, read_streams, written_streams
from archetype.families.deepseek_v4 import NEAR, deepseek_v4
from archetype.families.keys import expect_kind
from archetype.families.rules import weight_rules
from archetype.models.decoder.spec import Decoder
from archetype.models.spec import ModelSpec
from archetype.parts.compressed_attention.spec import CompressedAttention, PooledIndex
from archetype.parts.experts.spec import MixtureOfExperts
from archetype.parts.feedforward.spec import GatedMLP
from archetype.parts.norm.spec import RMSNorm
from archetype.parts.position.spec import Rotary, YarnScaling
from archetype.parts.router.spec import HashRouter
from archetype.spec.repeats import MAX_LAYERS

SPARSE, RATES = 4, (0, 4, 128)  # constants of llama.cpp: positions of pooled keys
SQRT_SOFTPLUS = 4  # llama.cpp's number for the affinities of experts
EPS = "attention.layer_norm_rms_epsilon"


@dataclass(frozen=True)
class DeepSeek4(DecoderTable):
    """Keys of deepseek4, read and written."""

    def read(self, config: Any) -> Decoder:
        keys: FileKeys = config
        num_layers = keys.size("block_count", most=MAX_LAYERS)
        rates = keys.get("attention.compress_ratios")
        if not isinstance(rates, list) or len(rates) < num_layers or SPARSE not in rates or set(rates) - set(RATES):
            raise keys.error("attention.compress_ratios", f"{rates!r:.80} is not supported", "fix the file")
        down, head_dim = Layer(keys, 0).shape("ffn_down_exps.weight"), keys.size("attention.key_length")
        rotary_dim, limits = keys.size("rope.dimension_count"), keys.get("swiglu_clamp_exp")
        if not isinstance(limits, list) or len({*limits[:num_layers]}) != 1:
            raise keys.error(
                "swiglu_clamp_exp", f"{limits!r:.80} differs between layers", "this model is not supported"
            )
        for name, value in {
            "attention.head_count_kv": 1,
            "attention.value_length": head_dim,
            "swiglu_clamp_shexp": limits,
            "expert_shared_count": 1,
            "expert_weights_norm": True,
            "expert_gating_func": SQRT_SOFTPLUS,
        }.items():
            keys.expect(name, value, "another form of DeepSeek-V4")
        keys.used |= {"embedding_length_out", "expert_feed_forward_length", "feed_forward_length"}
        theta = keys.positive("attention.compress_rope_freq_base")
        scaling = read_scaling(keys, theta, rotary_dim)
        if isinstance(scaling, YarnScaling):
            scaling = scaling.replace(attention_factor=1.0)
        eps = keys.positive(EPS)
        model = deepseek_v4(
            rates=tuple(rates[:num_layers]),
            num_heads=keys.size("attention.head_count"),
            groups=keys.size("attention.output_group_count"),
            group_rank=keys.size("attention.output_lora_rank"),
            query_rank=keys.size("attention.q_lora_rank"),
            num_experts=keys.size("expert_count"),
            experts_per_token=keys.size("expert_used_count"),
            expert_d_ff=down[-1] if down else 1,
            limit=limits[0],
            router_scale=keys.positive("expert_weights_scale"),
            num_hashed=keys.count("hash_layer_count", 0),
            head_dim=head_dim,
            rotary_dim=rotary_dim,
            window=keys.size("attention.sliding_window"),
            top_k=keys.size("attention.indexer.top_k"),
            index_heads=keys.size("attention.indexer.head_count"),
            index_dim=keys.size("attention.indexer.key_length"),
            near=NEAR.replace(theta=keys.positive("rope.freq_base", 1e4)),
            far=Rotary(theta=theta, interleaved=True, scaling=scaling),
            eps=eps,
            **keys.sizes(),
        )
        return model.replace(residual=read_streams(keys, eps))

    def write(self, model: ModelSpec) -> Keys:
        decoder = expect_kind(Decoder, model, "kind")
        mixers = [expect_kind(CompressedAttention, block.mixer, "layers[*].mixer") for block in decoder.layers]
        parts = [expect_kind(MixtureOfExperts, block.feedforward, "layers[*].feedforward") for block in decoder.layers]
        rates = [0 if mixer.pooling is None else mixer.pooling.rate for mixer in mixers]
        index = next((mixer.index for mixer in mixers if mixer.index is not None), None)
        if not isinstance(index, PooledIndex) or set(rates) - set(RATES):
            raise unsupported("layers[*].mixer.pooling", f"pooled keys of other than {SPARSE} and 128 positions")
        first, part = mixers[0], parts[0]
        far = next(mixer.position for mixer in mixers if mixer.pooling is not None)
        near = next((mixer.position for mixer in mixers if mixer.pooling is None), NEAR)
        scaling = far.scaling
        if isinstance(scaling, YarnScaling) and scaling.attention_factor == 1.0:
            scaling = scaling.replace(attention_factor=None)
        limit = expect_kind(GatedMLP, part.expert, "layers[*].feedforward.expert").limit or 0.0
        return {
            **written_sizes(decoder),
            "embedding_length_out": MIXED * decoder.d_model,
            EPS: expect_kind(RMSNorm, decoder.final_norm, "final_norm").eps,
            "attention.head_count": first.num_heads,
            "attention.head_count_kv": 1,
            "attention.key_length": first.head_dim,
            "attention.value_length": first.head_dim,
            "attention.q_lora_rank": first.query_rank,
            "attention.output_group_count": first.groups,
            "attention.output_lora_rank": first.group_rank,
            "attention.sliding_window": first.window,
            "attention.compress_ratios": rates,
            "attention.compress_rope_freq_base": far.theta,
            "attention.indexer.head_count": index.num_heads,
            "attention.indexer.key_length": index.head_dim,
            "attention.indexer.top_k": index.top_k,
            "rope.dimension_count": first.rotated,
            "rope.freq_base": near.theta,
            **written_scaling(scaling),
            "expert_count": part.num_experts,
            "expert_used_count": part.experts_per_token,
            "expert_feed_forward_length": part.expert.width(decoder.d_model),
            "expert_shared_count": 1,
            "expert_weights_scale": part.router.scale,
            "expert_weights_norm": True,
            "expert_gating_func": SQRT_SOFTPLUS,
            "swiglu_clamp_exp": [limit] * len(mixers),
            "swiglu_clamp_shexp": [limit] * len(mixers),
            "hash_layer_count": sum(isinstance(part.router, HashRouter) for part in parts),
            **written_streams(decoder),
        }


RULES = weight_rules(
    "\n".join((names.OUTER, names.PRE, names.EXPERTS, names.STREAMS))
    + """
    blk.{i}.attn_sinks.weight                  = blocks.{i}.mixer.sinks
    blk.{i}.attn_q_{a,a_norm,b}                  blocks.{i}.mixer.{q_down,q_norm,q_up}
    blk.{i}.attn_{kv,kv_a_norm}                  blocks.{i}.mixer.{kv,kv_norm}
    blk.{i}.attn_output_{a,b}                    blocks.{i}.mixer.{o_down,o_up}
    blk.{i}.attn_compressor_{kv,gate,norm}       blocks.{i}.mixer.pool.{kv,gate,norm}
    blk.{i}.attn_compressor_ape.weight         = blocks.{i}.mixer.pool.offsets
    blk.{i}.indexer.{attn_q_b,proj}              blocks.{i}.mixer.index.{q,weights}
    blk.{i}.indexer_compressor_{kv,gate,norm}    blocks.{i}.mixer.index.pool.{kv,gate,norm}
    blk.{i}.indexer_compressor_ape.weight      = blocks.{i}.mixer.index.pool.offsets
    blk.{i}.ffn_gate_inp                         blocks.{i}.feedforward.router.projection
    blk.{i}.ffn_gate_tid2eid.weight            = blocks.{i}.feedforward.router.table
"""
)
