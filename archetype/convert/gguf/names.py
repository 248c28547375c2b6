"""GGUF's names of tensors for ours, by part. This module imports no torch."""

from collections.abc import Callable
from typing import Any

from archetype.convert.gguf import deepseek2, kimi_k3
from archetype.families.keys import expect_kind
from archetype.families.rules import Rule, rule, weight_rules
from archetype.models.spec import ModelSpec
from archetype.parts.attention.spec import Attention
from archetype.parts.gated_delta_net.spec import GatedDeltaNet

OUTER = """
    token_embd                       embedding.token
    position_embd                    embedding.position
    token_embd_norm                  embedding.norm
    output_norm                      final_norm
    output                           lm_head
"""
# the norms of a layer
PRE = """
    blk.{i}.attn_norm                blocks.{i}.mixer_norm
    blk.{i}.ffn_norm                 blocks.{i}.feedforward_norm
"""
OUTPUTS = """
    blk.{i}.post_attention_norm      blocks.{i}.mixer_norm
    blk.{i}.post_ffw_norm            blocks.{i}.feedforward_norm
"""
SANDWICH = (
    PRE
    + """
    blk.{i}.post_attention_norm      blocks.{i}.mixer_post_norm
    blk.{i}.post_ffw_norm            blocks.{i}.feedforward_post_norm
"""
)
OF_ENCODERS = """
    token_types                      embedding.token_type
    blk.{i}.attn_output_norm         blocks.{i}.mixer_norm
    blk.{i}.layer_output_norm        blocks.{i}.feedforward_norm
    cls                              pooler
"""
# by wiring
NORMS = {
    "pre": PRE,
    "post": OF_ENCODERS,
    "output": OUTPUTS,
    "sandwich": SANDWICH,
    "parallel": "blk.{i}.attn_norm   blocks.{i}.mixer_norm",
    "parallel key": PRE,
    "parallel tensor": PRE,
}
# one norm of a layer's only content
SINGLE = """
    blk.{i}.attn_norm                blocks.{i}.mixer_norm
    blk.{i}.attn_norm                blocks.{i}.feedforward_norm
"""
ATTENTION = """
    blk.{i}.attn_{q,k,v,output}      blocks.{i}.mixer.{q,k,v,o}
    blk.{i}.attn_{q,k}_norm          blocks.{i}.mixer.{q,k}_norm
    blk.{i}.attn_sinks.weight      = blocks.{i}.mixer.sinks
    blk.{i}.attn_gate                blocks.{i}.mixer.gate
"""
FUSED = """
    blk.{i}.attn_qkv                 blocks.{i}.mixer.{q,k,v}
    blk.{i}.attn_output              blocks.{i}.mixer.o
    blk.{i}.attn_{q,k}_norm          blocks.{i}.mixer.{q,k}_norm
"""
NETWORK = """
    blk.{i}.ffn_{gate,up,down}       blocks.{i}.feedforward.{gate,up,down}
"""
FUSED_NETWORK = """
    blk.{i}.ffn_up                   blocks.{i}.feedforward.{gate,up}
    blk.{i}.ffn_down                 blocks.{i}.feedforward.down
"""
EXPERTS = (
    NETWORK
    + """
    blk.{i}.ffn_gate_inp             blocks.{i}.feedforward.router
    blk.{i}.exp_probs_b.bias                 = blocks.{i}.feedforward.correction
    blk.{i}.ffn_{gate,up,down}_exps.weight   = blocks.{i}.feedforward.experts.{gate,up,down}
    blk.{i}.ffn_{gate,up,down}_exps.bias     = blocks.{i}.feedforward.experts.{gate_bias,up_bias,down_bias}
    blk.{i}.ffn_{gate,up,down}_shexp         blocks.{i}.feedforward.shared.{gate,up,down}
    blk.{i}.ffn_gate_inp_shexp               blocks.{i}.feedforward.shared_gate
    blk.{i}.ffn_latent_{down,up}             blocks.{i}.feedforward.latent_{down,up}
"""
)
SCAN = """
    blk.{i}.ssm_{a,d}              = blocks.{i}.mixer.{A_log,D}
    blk.{i}.ssm_conv1d               blocks.{i}.mixer.conv
    blk.{i}.ssm_{in,x,dt,out}        blocks.{i}.mixer.{in,x,dt,out}_proj
    blk.{i}.ssm_{dt,b,c}_norm        blocks.{i}.mixer.{dt,b,c}_norm
"""
SCAN_2 = """
    blk.{i}.ssm_{a,d}              = blocks.{i}.mixer.{A_log,D}
    blk.{i}.ssm_conv1d               blocks.{i}.mixer.conv
    blk.{i}.ssm_{in,out}             blocks.{i}.mixer.{in,out}_proj
    blk.{i}.ssm_dt.bias            = blocks.{i}.mixer.dt_bias
    blk.{i}.ssm_norm                 blocks.{i}.mixer.norm
"""
SUB_NORMS = """
    blk.{i}.attn_sub_norm            blocks.{i}.mixer.heads_norm
    blk.{i}.ffn_sub_norm             blocks.{i}.feedforward.hidden_norm
"""
GROK_NORMS = """
    blk.{i}.attn_norm                blocks.{i}.mixer_norm
    blk.{i}.attn_output_norm         blocks.{i}.mixer_post_norm
    blk.{i}.ffn_norm                 blocks.{i}.feedforward_norm
    blk.{i}.layer_output_norm        blocks.{i}.feedforward_post_norm
"""
# numbers that are keys of the file
SLOPES_OF_XIELU = "xielu.{alpha_p,alpha_n,beta,eps}.{i} = blocks.{i}.feedforward.activation.{alpha_p,alpha_n,beta,eps}"
STREAMS = """
    output_hc_fn.weight                        = residual_exit.weight
    output_hc_base.weight                      = residual_exit.bias
    output_hc_scale.weight                     = residual_exit.scale
    blk.{i}.hc_{attn,ffn}_fn.weight            = blocks.{i}.{mixer,feedforward}_residual.weights.weight
    blk.{i}.hc_{attn,ffn}_base.weight          = blocks.{i}.{mixer,feedforward}_residual.weights.bias
    blk.{i}.hc_{attn,ffn}_scale.weight         = blocks.{i}.{mixer,feedforward}_residual.weights.scale
"""
# norms of outputs that are stored without the ending of weights
BARE = """
    blk.{i}.post_attention_norm    = blocks.{i}.mixer_post_norm.weight
    blk.{i}.post_ffw_norm          = blocks.{i}.feedforward_post_norm.weight
"""
# attention, then a state space
BESIDE = ATTENTION.replace("mixer.", "mixer.parts.0.") + SCAN_2.replace("mixer.", "mixer.parts.1.")
CONVOLUTION = """
    blk.{i}.shortconv.conv               blocks.{i}.mixer.conv
    blk.{i}.shortconv.{in,out}_proj      blocks.{i}.mixer.{in,out}_proj
"""
GATED = """
    blk.{i}.attn_{k,v,output}        blocks.{i}.mixer.{k,v,o}
    blk.{i}.attn_{q,k}_norm          blocks.{i}.mixer.{q,k}_norm
"""
DELTA = """
    blk.{i}.attn_qkv                 blocks.{i}.mixer.{q,k,v}
    blk.{i}.attn_gate                blocks.{i}.mixer.gate
    blk.{i}.ssm_a                  = blocks.{i}.mixer.A_log
    blk.{i}.ssm_dt.bias            = blocks.{i}.mixer.dt_bias
    blk.{i}.ssm_conv1d               blocks.{i}.mixer.conv
    blk.{i}.ssm_norm                 blocks.{i}.mixer.norm
    blk.{i}.ssm_out                  blocks.{i}.mixer.o
"""
CHANNELS = """
    blk.{i}.attn_{q,k,v,output}      blocks.{i}.mixer.{q,k,v,o}
    blk.{i}.ssm_f_{a,b}              blocks.{i}.mixer.{a_down,a_up}
    blk.{i}.ssm_g_{a,b}              blocks.{i}.mixer.{gate_down,gate_up}
    blk.{i}.ssm_{f,g}_a              blocks.{i}.mixer.{a,gate}
    blk.{i}.ssm_beta                 blocks.{i}.mixer.b
    blk.{i}.ssm_a                  = blocks.{i}.mixer.A_log
    blk.{i}.ssm_dt.bias            = blocks.{i}.mixer.dt_bias
    blk.{i}.ssm_norm                 blocks.{i}.mixer.norm
"""
# LFM2 names its last norm after the embedding
LFM_OUTER = """
    token_embd                       embedding.token
    token_embd_norm                  final_norm
    output                           lm_head
"""
APART_RATES = "blk.{i}.ssm_{beta,alpha}   blocks.{i}.mixer.{b,a}"


def falcon_rules(model: Any) -> tuple[Rule, ...]:
    # two norms: that of the feed-forward part comes first
    shared = getattr(model.layers[0].wiring, "shared_norm", True)
    one = "blk.{i}.attn_norm   blocks.{i}.mixer_norm"
    two = "blk.{i}.attn_norm{_2,}   blocks.{i}.{mixer,feedforward}_norm"
    return weight_rules("\n".join((OUTER, one if shared else two, FUSED, NETWORK)))


def delta_rules(rates: str) -> Callable[[ModelSpec], tuple[Rule, ...]]:
    # attention has each head's query and gate in one tensor; delta networks have queries, keys and values in one
    def rules(model: Any) -> tuple[Rule, ...]:
        rows = list(weight_rules("\n".join((OUTER, PRE.replace("ffn_norm", "post_attention_norm"), EXPERTS))))
        for index, block in enumerate(model.layers):
            is_delta = isinstance(mixer := block.mixer, GatedDeltaNet)
            heads = mixer.key_heads if is_delta else expect_kind(Attention, mixer, f"layers[{index}].mixer").num_heads
            table, joined = (DELTA, rates) if is_delta else (GATED, "blk.{i}.attn_q  blocks.{i}.mixer.{q,gate}")
            rows += weight_rules(table.replace("{i}", str(index)))
            rows += weight_rules(joined.replace("{i}", str(index)), heads=heads)
        return tuple(rows)

    return rules


def kimi_rules(model: Any, further: str = "", experts: str = EXPERTS, channels: str = CHANNELS) -> tuple[Rule, ...]:
    # the convolution over queries, keys and values is three tensors
    rows = list(weight_rules("\n".join((OUTER, PRE, experts, further))))
    for index, block in enumerate(model.layers):
        mixer = block.mixer
        table = channels if isinstance(mixer, GatedDeltaNet) else deepseek2.ATTENTION
        rows += weight_rules(table.replace("{i}", str(index)))
        if isinstance(mixer, GatedDeltaNet):
            size = mixer.num_heads * mixer.head_dim
            rows += [
                rule(
                    f"blk.{index}.ssm_conv1d_{name}.weight",
                    f"blocks.{index}.mixer.conv.weight",
                    rows=(start, start + size),
                )
                for name, start in zip("qkv", (0, size, 2 * size), strict=True)
            ]
    return tuple(rows)


def k3_rules(model: Any) -> tuple[Rule, ...]:
    experts, channels = EXPERTS.replace("ffn_latent", "ffn_routed"), CHANNELS.replace("ssm_{f,g}_a", "ssm_{f_a,g}")
    return kimi_rules(model, kimi_k3.NORM, experts, channels) + kimi_k3.score_rules(model)
