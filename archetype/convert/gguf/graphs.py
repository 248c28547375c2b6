"""Table of llama.cpp's architectures: a row each, with the model types that it computes. Imports no torch.

Names of keys and tensors are those in llama.cpp's src/llama-arch.cpp. What the rows say about norms, wiring,
activations and positions is in its src/models, which has a file for each architecture.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from archetype.convert.gguf import changes, deepseek2
from archetype.convert.gguf.changes import Change
from archetype.convert.gguf.decoders import without_windows
from archetype.convert.gguf.graph import Graph, Windows
from archetype.convert.gguf.keys import Gguf
from archetype.convert.gguf.mixers import DELTA_NET, MAMBA, MAMBA_2, MAMBA_2_LIMITED, SHORT
from archetype.convert.gguf.plain import plain
from archetype.convert.gguf.routing import Routing
from archetype.families.rules import Rule, weight_rules
from archetype.models.spec import ModelSpec
from archetype.parts.activation.spec import GELU, GELUTanh, ReLU2, Swish
from archetype.parts.attention.spec import OutputGate
from archetype.parts.embedding.spec import Embedding
from archetype.parts.gated_delta_net.spec import GatedDeltaNet
from archetype.parts.norm.spec import LayerNorm, RMSNorm
from archetype.parts.position.spec import Learned

OUTER = """
    token_embd                       embedding.token
    position_embd                    embedding.position
    token_embd_norm                  embedding.norm
    output_norm                      final_norm
    output                           lm_head
"""
# the norms of a layer, by wiring
PRE = """
    blk.{i}.attn_norm                blocks.{i}.mixer_norm
    blk.{i}.ffn_norm                 blocks.{i}.feedforward_norm
"""
PRE_POST_ATTENTION = PRE.replace("ffn_norm", "post_attention_norm")  # the second norm has another name
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


Rules = tuple[Rule, ...] | Callable[[ModelSpec], tuple[Rule, ...]]


# LFM2 names its last norm after the embedding
LFM_OUTER = """
    token_embd                       embedding.token
    token_embd_norm                  final_norm
    output                           lm_head
"""


def _row(
    name: str,
    graph: Graph,
    *tables: str,
    rules: Rules | None = None,
    changed: tuple[Change, ...] = (),
    **further: Any,
) -> Gguf:
    settings = {"computed": plain} | further
    graph = replace(graph, whole=changes.PAIRED[0] in changed)
    return Gguf(name, graph, rules or weight_rules("\n".join((OUTER, *tables))), changed, **settings)


def _short(model: Any) -> ModelSpec:
    # llama.cpp has no windows here
    short: ModelSpec = plain(without_windows(model))
    return short


def _falcon_rules(model: Any) -> tuple[Rule, ...]:
    # two norms: that of the feed-forward part comes first
    shared = getattr(model.layers[0].wiring, "shared_norm", True)
    one = "blk.{i}.attn_norm   blocks.{i}.mixer_norm"
    two = "blk.{i}.attn_norm{_2,}   blocks.{i}.{mixer,feedforward}_norm"
    return weight_rules("\n".join((OUTER, one if shared else two, FUSED, NETWORK)))


def _delta_rules(rates: str) -> Callable[[ModelSpec], tuple[Rule, ...]]:
    # attention has each head's query and gate in one tensor; delta networks have queries, keys and values in one
    def rules(model: Any) -> tuple[Rule, ...]:
        rows = list(weight_rules("\n".join((OUTER, PRE_POST_ATTENTION, EXPERTS))))
        for index, block in enumerate(model.layers):
            mixer, is_delta = block.mixer, isinstance(block.mixer, GatedDeltaNet)
            heads = getattr(mixer, "key_heads", mixer.num_heads)
            table, joined = (DELTA, rates) if is_delta else (GATED, "blk.{i}.attn_q  blocks.{i}.mixer.{q,gate}")
            rows += weight_rules(table.replace("{i}", str(index)))
            rows += weight_rules(joined.replace("{i}", str(index)), heads=heads)
        return tuple(rows)

    return rules


PAIRED = changes.PAIRED
LAYER_NORM, NO_BIAS = LayerNorm(), LayerNorm(bias=False)
SWIGLU_OAI = {"limit": 7.0, "unit_offset": True, "activation": Swish(beta=1.702)}
PERIODS: dict[str, Callable[[int, bool, bool], bool]] = {
    "all but every fourth": lambda layer, local, windows: (layer + 1) % 4 != 0,
    "with windows": lambda layer, local, windows: local,
    "with windows, or all": lambda layer, local, windows: local or not windows,
    "none": lambda layer, local, windows: False,
}
SCALES = ("embedding", "residual", "attention")
GRANITE = Graph(scales=SCALES, logits="divide", output_bias="any", mlp_bias="any")
GRANITE_MOE = Routing(shared="expert_shared_feed_forward_length", has_shared="any")
COHERE = Graph(norm=NO_BIAS, wiring="parallel", interleaved=True, head="tied", logits="multiply")
ERNIE = Graph(interleaved=True, output_bias="no")
GLM_4_MOE = Routing(
    "key", usual="sigmoid", renormalize=None, scaled=True, shared="expert_shared_count", correction="all", dense="first"
)
DOTS = Routing("key", renormalize=None, scaled=True, shared="expert_shared_count", correction="any", dense="first")
STATES = (changes.RATES, changes.KERNEL)
STATES_2 = (changes.RATES_OF_HEADS, changes.GAINS_OF_HEADS, changes.GROUPED_NORM, changes.KERNEL)

NEMOTRON_H: dict[str, Any] = {
    "activation": ReLU2(),
    "gated": False,
    "output_bias": "any",
    "mlp_bias": "any",
    "mixers": (MAMBA_2_LIMITED,),
    "apart": True,
    "both_eps": True,
    "rotates": PERIODS["none"],
}
QWEN_DELTA: dict[str, Any] = {
    "norm": RMSNorm(unit_offset=True),
    "second_norm": "post_attention_norm",
    "qk_norm": "head",
    "gate": OutputGate(),
    "mixers": (DELTA_NET,),
    "marked": False,
}
APART_RATES = "blk.{i}.ssm_{beta,alpha}   blocks.{i}.mixer.{b,a}"

# model type -> architecture
ROWS: dict[str, Gguf] = {
    "olmo": _row(
        "olmo",
        Graph(norm=LayerNorm(weight=False, bias=False), clip=True),
        ATTENTION,
        NETWORK,
        changed=PAIRED,
    ),
    "olmo2": _row(
        "olmo2",
        Graph(wiring="output", qk_norm="all", head="own", windows=Windows(4)),
        OUTPUTS,
        ATTENTION,
        NETWORK,
    ),
    "olmoe": _row(
        "olmoe",
        Graph(qk_norm="all", grouped=False, head="own", routing=Routing(renormalize=False)),
        PRE,
        ATTENTION,
        EXPERTS,
    ),
    "qwen2_moe": _row(
        "qwen2moe",
        Graph(
            head="own", routing=Routing(renormalize=False, shared_gate=True, shared="expert_shared_feed_forward_length")
        ),
        PRE,
        ATTENTION,
        EXPERTS,
        changed=(changes.GATE_VECTOR,),
    ),
    "stablelm": _row("stablelm", Graph(norm=LAYER_NORM, wiring="parallel tensor", head="own"), PRE, ATTENTION, NETWORK),
    # llama.cpp only has the tanh approximation of GELU, which its converter uses for these types' exact GELU
    "gpt_neox": _row(
        "gptneox",
        Graph(
            norm=LAYER_NORM,
            wiring="parallel key",
            activation=GELU(),
            gated=False,
            output_bias="all",
            mlp_bias="all",
            qkv_bias="all",
            head="own",
        ),
        PRE,
        FUSED,
        NETWORK,
    ),
    "falcon": _row(
        "falcon",
        Graph(
            norm=LAYER_NORM, wiring="parallel", second_norm="attn_norm_2", activation=GELU(), gated=False, qkv_bias="no"
        ),
        rules=_falcon_rules,
    ),
    "phi": _row(
        "phi2",
        Graph(
            norm=LAYER_NORM,
            wiring="parallel",
            activation=GELUTanh(),
            gated=False,
            output_bias="all",
            mlp_bias="all",
            head="own",
            head_bias=True,
        ),
        "blk.{i}.attn_norm   blocks.{i}.mixer_norm",
        ATTENTION,
        NETWORK,
    ),
    "phi3": _row("phi3", Graph(), PRE, FUSED, FUSED_NETWORK, computed=_short),
    "gpt_bigcode": _row(
        "starcoder",
        Graph(
            norm=LAYER_NORM,
            activation=GELUTanh(),
            gated=False,
            qkv_bias="all",
            output_bias="all",
            mlp_bias="all",
            embedding=Embedding(position=Learned()),
            rotates=PERIODS["none"],
        ),
        PRE,
        FUSED,
        NETWORK,
    ),
    "starcoder2": _row(
        "starcoder2",
        Graph(norm=LAYER_NORM, activation=GELUTanh(), gated=False, output_bias="all", mlp_bias="all"),
        PRE,
        ATTENTION,
        NETWORK,
        computed=_short,
    ),
    "nemotron": _row(
        "nemotron",
        Graph(
            norm=LayerNorm(unit_offset=True),
            activation=ReLU2(),
            gated=False,
            output_bias="any",
            mlp_bias="any",
            head="own",
        ),
        PRE,
        ATTENTION,
        NETWORK,
        changed=(changes.AROUND_ONE,),
    ),
    "cohere": _row("command-r", COHERE, "blk.{i}.attn_norm   blocks.{i}.mixer_norm", ATTENTION, NETWORK),
    "cohere2": _row(
        "cohere2",
        Graph(
            norm=NO_BIAS,
            wiring="parallel",
            interleaved=True,
            head="tied",
            logits="multiply",
            windows=Windows(4, required=True),
            rotates=PERIODS["with windows"],
        ),
        "blk.{i}.attn_norm   blocks.{i}.mixer_norm",
        ATTENTION,
        NETWORK,
    ),
    "smollm3": _row(
        "smollm3",
        Graph(rotates=PERIODS["all but every fourth"]),
        PRE,
        ATTENTION,
        NETWORK,
        changed=PAIRED,
    ),
    "arcee": _row("arcee", Graph(activation=ReLU2(), gated=False), PRE, ATTENTION, NETWORK, changed=PAIRED),
    "seed_oss": _row("seed_oss", Graph(second_norm="post_attention_norm"), PRE_POST_ATTENTION, ATTENTION, NETWORK),
    "ernie4_5": _row("ernie4_5", Graph(interleaved=True), PRE, ATTENTION, NETWORK),
    "exaone": _row("exaone", Graph(), PRE, ATTENTION, NETWORK),
    "exaone4": _row(
        "exaone4",
        Graph(wiring="output", qk_norm="head", windows=Windows(4, layers=64), rotates=PERIODS["with windows, or all"]),
        OUTPUTS,
        ATTENTION,
        NETWORK,
    ),
    "exaone_moe": _row(
        "exaone-moe",
        Graph(
            qk_norm="head",
            head="own",
            windows=Windows(4, required=True),
            rotates=PERIODS["with windows"],
            routing=Routing(
                "key",
                renormalize=None,
                scaled=True,
                correction="any",
                shared="expert_shared_feed_forward_length",
                dense="first",
            ),
        ),
        PRE,
        ATTENTION,
        EXPERTS,
    ),
    "glm": _row("chatglm", Graph(interleaved=True), PRE, ATTENTION, FUSED_NETWORK),
    "glm4": _row("glm4", Graph(wiring="sandwich", interleaved=True), SANDWICH, ATTENTION, FUSED_NETWORK),
    "glm4_moe": _row(
        "glm4moe",
        Graph(qk_norm="head", has_qk_norm="any", second_norm="post_attention_norm", routing=GLM_4_MOE),
        PRE_POST_ATTENTION,
        ATTENTION,
        EXPERTS,
    ),
    "granite": _row("granite", GRANITE, PRE, ATTENTION, NETWORK, changed=PAIRED),
    "granitemoe": _row(
        "granitemoe",
        Graph(scales=SCALES, logits="divide", output_bias="any", routing=GRANITE_MOE),
        PRE,
        ATTENTION,
        EXPERTS,
        changed=PAIRED,
    ),
    "granitemoehybrid": _row(
        "granitehybrid",
        Graph(
            scales=SCALES,
            logits="divide",
            output_bias="any",
            mlp_bias="any",
            routing=GRANITE_MOE,
            mixers=(MAMBA_2,),
            unrotated=True,
        ),
        PRE,
        ATTENTION,
        EXPERTS,
        SCAN_2,
        changed=(*PAIRED, *STATES_2),
    ),
    "dots1": _row("dots1", Graph(qk_norm="head", grouped=False, head="own", routing=DOTS), PRE, ATTENTION, EXPERTS),
    "hunyuan_v1_dense": _row("hunyuan-dense", Graph(qk_norm="late"), PRE, ATTENTION, NETWORK),
    "hunyuan_v1_moe": _row(
        "hunyuan-moe",
        Graph(qk_norm="late", routing=Routing(shared="expert_shared_feed_forward_length")),
        PRE,
        ATTENTION,
        EXPERTS,
    ),
    "gpt_oss": _row(
        "gpt-oss",
        Graph(
            second_norm="post_attention_norm",
            sinks=True,
            windows=Windows(2, required=True),
            output_bias="all",
            head="own",
            truncate=False,
            routing=Routing(biases=True, expert=SWIGLU_OAI),
        ),
        PRE_POST_ATTENTION,
        ATTENTION,
        EXPERTS,
    ),
    "minimax_m2": _row(
        "minimax-m2",
        Graph(qk_norm="all", head="own", routing=Routing("key", correction="all")),
        PRE,
        ATTENTION,
        EXPERTS,
    ),
    "mellum": _row(
        "mellum", Graph(qk_norm="head", head="own", windows=Windows(4), routing=Routing()), PRE, ATTENTION, EXPERTS
    ),
    "afmoe": _row(
        "afmoe",
        Graph(
            wiring="sandwich",
            qk_norm="head",
            gate=OutputGate(),
            root=True,
            windows=Windows(4, required=True),
            rotates=PERIODS["all but every fourth"],
            routing=Routing(
                "key",
                usual="sigmoid",
                renormalize=None,
                scaled=True,
                has_shared="any",
                correction="all",
                shared="expert_shared_count",
                dense="first",
            ),
        ),
        SANDWICH,
        ATTENTION,
        EXPERTS,
    ),
    "jais2": _row(
        "jais2",
        Graph(norm=LAYER_NORM, activation=ReLU2(), gated=False, output_bias="all", mlp_bias="all"),
        PRE,
        ATTENTION,
        NETWORK,
    ),
    "mamba": _row("mamba", Graph(mixers=(MAMBA,), apart=True), SINGLE, SCAN, changed=STATES),
    "mamba2": _row(
        "mamba2",
        Graph(mixers=(MAMBA_2,), apart=True),
        SINGLE,
        SCAN_2,
        changed=STATES_2,
    ),
    "jamba": _row(
        "jamba",
        Graph(mixers=(MAMBA,), rotates=PERIODS["none"], routing=Routing(renormalize=False, dense="any")),
        PRE,
        ATTENTION,
        EXPERTS,
        SCAN,
        changed=STATES,
    ),
    "lfm2": _row(
        "lfm2",
        Graph(qk_norm="head", mixers=(SHORT,)),
        rules=weight_rules("\n".join((LFM_OUTER, PRE, ATTENTION, NETWORK, CONVOLUTION))),
        changed=(changes.SHORT_KERNEL,),
    ),
    "lfm2_moe": _row(
        "lfm2moe",
        Graph(qk_norm="head", mixers=(SHORT,), routing=Routing("key", correction="all", dense="first")),
        rules=weight_rules("\n".join((LFM_OUTER, PRE, ATTENTION, EXPERTS, CONVOLUTION))),
        changed=(changes.SHORT_KERNEL,),
    ),
    "nemotron_h": _row("nemotron_h", Graph(**NEMOTRON_H), SINGLE, ATTENTION, NETWORK, SCAN_2, changed=STATES_2),
    "nemotron_h_moe": _row(
        "nemotron_h_moe",
        Graph(
            **NEMOTRON_H,
            routing=Routing(
                "sigmoid",
                renormalize=None,
                scaled=True,
                correction="all",
                latent=True,
                shared="expert_shared_feed_forward_length",
                dense="any",
            ),
        ),
        SINGLE,
        ATTENTION,
        EXPERTS,
        SCAN_2,
        changed=STATES_2,
    ),
    "qwen3_next": _row(
        "qwen3next",
        Graph(
            **QWEN_DELTA,
            routing=Routing(
                shared="expert_shared_feed_forward_length", has_shared="any", shared_gate=True, dense="any"
            ),
        ),
        rules=_delta_rules("blk.{i}.ssm_ba   blocks.{i}.mixer.{b,a}"),
        changed=(changes.AROUND_ONE_BUT_GATED, changes.RATES, changes.KERNEL, changes.GATE_VECTOR),
    ),
    "qwen3_5_text": _row(
        "qwen35",
        Graph(**QWEN_DELTA, sections=True),
        rules=_delta_rules(APART_RATES),
        changed=(changes.AROUND_ONE_BUT_GATED, *changes.TILED),
    ),
    "qwen3_5_moe_text": _row(
        "qwen35moe",
        Graph(
            **QWEN_DELTA, sections=True, routing=Routing(shared="expert_shared_feed_forward_length", shared_gate=True)
        ),
        rules=_delta_rules(APART_RATES),
        changed=(changes.AROUND_ONE_BUT_GATED, *changes.TILED, changes.GATE_VECTOR),
    ),
    "ernie4_5_moe": _row(
        "ernie4_5-moe",
        Graph(
            interleaved=True,
            routing=Routing(
                shared="expert_shared_feed_forward_length", has_shared="any", correction="any", dense="every"
            ),
        ),
        PRE,
        ATTENTION,
        EXPERTS,
    ),
    "granite_swa": _row(
        "granite_swa",
        Graph(
            scales=SCALES,
            logits="divide",
            output_bias="any",
            mlp_bias="any",
            sinks=True,
            windows=Windows(0, required=True),
        ),
        PRE,
        ATTENTION,
        NETWORK,
        changed=PAIRED,
    ),
    "hy_v3": _row(
        "hy_v3",
        Graph(
            qk_norm="head",
            output_bias="any",
            routing=Routing(
                "key",
                usual="sigmoid",
                renormalize=None,
                scaled=True,
                correction="any",
                shared="expert_shared_feed_forward_length",
                dense="any",
            ),
        ),
        PRE,
        ATTENTION,
        EXPERTS.replace("exp_probs_b.bias", "exp_probs_b"),
    ),
    "laguna": _row(
        "laguna",
        Graph(
            qk_norm="head",
            gate=OutputGate(per="head", activation="softplus"),
            windows=Windows(4, full_first=True),
            routing=Routing(
                "key",
                usual="sigmoid",
                renormalize=None,
                scaled=True,
                correction="all",
                shared="expert_shared_feed_forward_length",
                dense="first",
            ),
        ),
        PRE,
        ATTENTION,
        EXPERTS,
    ),
    "minicpm": _row(
        "minicpm",
        Graph(scales=SCALES[:2], logits="divide", output_bias="any", mlp_bias="any"),
        PRE,
        ATTENTION,
        NETWORK,
        changed=PAIRED,
    ),
    "deepseek_v2": _row(
        "deepseek2",
        Graph(
            mixers=(deepseek2.LATENT,),
            routing=Routing(
                "key", renormalize=None, scaled=True, correction="any", shared="expert_shared_count", dense="first"
            ),
        ),
        PRE,
        deepseek2.ATTENTION,
        EXPERTS,
        changed=(changes.LATENTS,),
        check=deepseek2.check,
    ),
}
# Encoders. llama.cpp only has the tanh approximation of GELU.
ROWS |= {
    "modernbert": _row(
        "modern-bert",
        Graph(encodes=True, norm=NO_BIAS, activation=GELU(), qkv_bias="no", windows=Windows(3, full_first=True)),
        PRE,
        FUSED,
        FUSED_NETWORK,
        changed=(changes.NO_POOLER,),
    ),
    "eurobert": _row("eurobert", Graph(encodes=True), PRE, ATTENTION, NETWORK),
    "nomic_bert": _row(
        "nomic-bert",
        Graph(encodes=True, norm=LAYER_NORM, wiring="post", output_bias="any"),
        OF_ENCODERS,
        FUSED,
        NETWORK,
        changed=(changes.NO_POOLER,),
    ),
}
# further model types that these architectures compute
ROWS |= {
    name: ROWS[other]
    for other, names in {
        "olmo2": ("olmo3",),
        "granitemoe": ("granitemoeshared",),
        "qwen3_5_text": ("qwen3_5",),
        "qwen3_5_moe_text": ("qwen3_5_moe",),
        "glm4_moe": ("solar_open",),
        "mamba": ("falcon_mamba",),
        "granitemoehybrid": ("bamba",),
        "deepseek_v2": ("deepseek_v3", "glm4_moe_lite", "youtu", "sarvam_mla"),
    }.items()
    for name in names
}
