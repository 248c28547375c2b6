"""Table of llama.cpp's architectures: a row each, with the model types that it computes. Imports no torch.

Names of keys and tensors are those in llama.cpp's src/llama-arch.cpp. What the rows say about norms, wiring,
activations and positions is in its src/models, which has a file for each architecture.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from archetype.convert.gguf import (
    changes,
    deepseek2,
    deepseek4,
    dots3,
    finish,
    gemma4,
    hrm,
    kimi_k3,
    latents,
    minimax_01,
    minimax_m3,
    mixers,
    names,
    qwen4exp,
    rwkv7,
    streams,
)
from archetype.convert.gguf.changes import AnyChange
from archetype.convert.gguf.graph import Graph, Windows
from archetype.convert.gguf.keys import Gguf, Layer
from archetype.convert.gguf.plain import plain, with_one_epsilon, without_windows
from archetype.convert.gguf.routing import Routing
from archetype.families.rules import Rule, weight_rules
from archetype.models.spec import ModelSpec
from archetype.parts.activation.spec import GELU, XIELU, GELUTanh, ReLU2, SiLU, SiTU
from archetype.parts.attention.spec import OutputGate
from archetype.parts.embedding.spec import Embedding
from archetype.parts.norm.spec import LayerNorm, RMSNorm
from archetype.parts.position.spec import Learned

PLAIN, OF_FILES = Graph(), ("check", "computed", "numbers", "constants")
Rules = tuple[Rule, ...] | Callable[[ModelSpec], tuple[Rule, ...]]


def row(
    name: str,
    *tensors: str,
    of: Graph = PLAIN,
    outer: str = names.OUTER,
    norms: str = "",
    attention: str = names.ATTENTION,
    network: str = names.EXPERTS,
    rules: Rules | None = None,
    changed: tuple[AnyChange, ...] = (),
    **facts: Any,
) -> Gguf:
    # a graph with different facts, and settings of its file; only unusual tensor names are given,
    # and rules for tensors that a model lacks are dropped
    settings = {"computed": plain} | {key: facts.pop(key) for key in OF_FILES if key in facts}
    graph = replace(of, **facts)
    norms = norms or names.NORMS[graph.wiring].replace("ffn_norm", graph.second_norm)
    graph = replace(graph, whole=changes.PAIRED[0] in changed)
    rules = rules or weight_rules("\n".join((outer, norms, attention, network, *tensors)))
    return Gguf(name, graph, rules, changed, **settings)


# experts and latent attention as in DeepSeek
def _latent(name: str, mixer: mixers.OtherMixer, check: Callable[[ModelSpec], None], **facts: Any) -> Gguf:
    table, changed, facts = deepseek2.ATTENTION, (latents.LATENTS,), {"routing": SHARED} | facts
    return row(name, attention=table, changed=changed, check=check, mixers=(mixer,), **facts)


# short convolutions
def _lfm(name: str, **facts: Any) -> Gguf:
    shared: dict[str, Any] = {"outer": names.LFM_OUTER, "changed": (changes.SHORT_KERNEL,)}
    return row(name, names.CONVOLUTION, qk_norm="head", mixers=(mixers.SHORT,), **shared, **facts)


PAIRED = changes.PAIRED
LAYER_NORM, NO_BIAS = LayerNorm(), LayerNorm(bias=False)
SWIGLU_OAI = minimax_m3.NETWORK
PERIODS: dict[str, Callable[[Layer, bool, bool], bool]] = {
    "all but every fourth": lambda layer, local, windows: (layer.index + 1) % 4 != 0,
    "with windows": lambda layer, local, windows: local,
    "with windows, or dense": lambda layer, local, windows: local or not layer.has("ffn_gate_inp.weight"),
    "32 layers": lambda layer, local, windows: layer.keys.size("block_count") == 32,
    "with windows, or all": lambda layer, local, windows: local or not windows,
    "none": lambda layer, local, windows: False,
}
SCALES = ("embedding", "residual", "attention")
OF_GPT2 = Graph(norm=LAYER_NORM, gated=False, output_bias="all", mlp_bias="all")
OF_BERT = Graph(encodes=True, norm=LAYER_NORM, wiring="post", activation=GELU())
# biases wherever the tensors show them
BIASED = Graph(output_bias="any", mlp_bias="any")
BIASED_BERT = replace(OF_BERT, gated=False, output_bias="any", mlp_bias="any")
GRANITE = replace(BIASED, scales=SCALES, logits="divide")
GRANITE_MOE = Routing(shared="expert_shared_feed_forward_length", has_shared="any")
COHERE = Graph(norm=NO_BIAS, wiring="parallel", interleaved=True, logits="multiply")
GLM_4_MOE = Routing(
    "key", usual="sigmoid", renormalize=None, scaled=True, shared="expert_shared_count", correction="all", dense="first"
)
SHARED = Routing("key", renormalize=None, scaled=True, correction="any", shared="expert_shared_count", dense="first")
CORRECTED_SIGMOID = Routing(
    "key", usual="sigmoid", renormalize=None, scaled=True, correction="any",
    shared="expert_shared_feed_forward_length", dense="any",
)  # fmt: skip
STATES = (changes.RATES, changes.KERNEL)
STATES_2 = (changes.RATES_OF_HEADS, changes.GAINS_OF_HEADS, changes.GROUPED_NORM, changes.KERNEL)

NEMOTRON_H = replace(
    BIASED,
    activation=ReLU2(),
    gated=False,
    mixers=(mixers.MAMBA_2_LIMITED,),
    apart=True,
    both_eps=True,
    rotates=PERIODS["none"],
)
QWEN_DELTA = Graph(
    norm=RMSNorm(unit_offset=True),
    second_norm="post_attention_norm",
    qk_norm="head",
    gate=OutputGate(),
    mixers=(mixers.DELTA_NET,),
    marked=False,
)

SHARED_GATED = Routing(shared="expert_shared_feed_forward_length", shared_gate=True)


# with positions in three parts
def _delta(name: str, **facts: Any) -> Gguf:
    changed = (changes.AROUND_ONE_BUT_GATED, *changes.TILED, changes.GATE_VECTOR)
    return row(name, of=QWEN_DELTA, sections=True, rules=names.delta_rules(names.APART_RATES), changed=changed, **facts)


# model type -> architecture
ROWS: dict[str, Gguf] = {
    "olmo": row("olmo", norm=LayerNorm(weight=False, bias=False), clip=True, changed=PAIRED),
    "olmo2": row("olmo2", wiring="output", qk_norm="all", windows=Windows(4, scaled=False, has_base=False)),
    "olmoe": row("olmoe", qk_norm="all", grouped=False, routing=Routing(renormalize=False)),
    "qwen2_moe": row(
        "qwen2moe",
        routing=Routing(renormalize=False, shared_gate=True, shared="expert_shared_feed_forward_length"),
        changed=(changes.GATE_VECTOR,),
    ),
    "stablelm": row("stablelm", norm=LAYER_NORM, wiring="parallel tensor"),
    # llama.cpp only has the tanh approximation of GELU, which its converter uses for these types' exact GELU
    "gpt_neox": row(
        "gptneox", of=OF_GPT2, wiring="parallel key", activation=GELU(), qkv_bias="all", attention=names.FUSED
    ),
    "falcon": row(
        "falcon",
        norm=LAYER_NORM,
        wiring="parallel",
        second_norm="attn_norm_2",
        activation=GELU(),
        gated=False,
        qkv_bias="no",
        rules=names.falcon_rules,
    ),
    "phi": row("phi2", of=OF_GPT2, wiring="parallel", activation=GELUTanh(), head_bias=True),
    "phi3": row("phi3", attention=names.FUSED, network=names.FUSED_NETWORK, computed=without_windows),
    "gpt_bigcode": row(
        "starcoder",
        of=OF_GPT2,
        activation=GELUTanh(),
        qkv_bias="all",
        embedding=Embedding(position=Learned()),
        rotates=PERIODS["none"],
        attention=names.FUSED,
    ),
    "starcoder2": row("starcoder2", of=OF_GPT2, activation=GELUTanh(), computed=without_windows),
    "nemotron": row(
        "nemotron",
        of=BIASED,
        norm=LayerNorm(unit_offset=True),
        activation=ReLU2(),
        gated=False,
        changed=(changes.AROUND_ONE,),
    ),
    "cohere": row("command-r", of=COHERE),
    "cohere2": row("cohere2", of=COHERE, windows=Windows(4, has_base=False), rotates=PERIODS["with windows"]),
    "smollm3": row("smollm3", rotates=PERIODS["all but every fourth"], changed=PAIRED),
    "arcee": row("arcee", activation=ReLU2(), gated=False, changed=PAIRED),
    "seed_oss": row("seed_oss", second_norm="post_attention_norm"),
    "ernie4_5": row("ernie4_5", interleaved=True),
    "exaone": row("exaone"),
    "exaone4": row(
        "exaone4",
        wiring="output",
        qk_norm="head",
        windows=Windows(4, layers=64, size=4096, has_base=False),
        rotates=PERIODS["with windows, or all"],
    ),
    "exaone_moe": row(
        "exaone-moe",
        qk_norm="head",
        windows=Windows(4, has_base=False),
        rotates=PERIODS["with windows"],
        routing=replace(SHARED, shared="expert_shared_feed_forward_length"),
    ),
    "glm": row("chatglm", interleaved=True, network=names.FUSED_NETWORK),
    "glm4": row("glm4", wiring="sandwich", interleaved=True, network=names.FUSED_NETWORK),
    "glm4_moe": row("glm4moe", qk_norm="head", has_qk_norm="any", second_norm="post_attention_norm", routing=GLM_4_MOE),
    "granite": row("granite", of=GRANITE, unrotated=True, changed=PAIRED),
    "granitemoe": row("granitemoe", of=GRANITE, routing=GRANITE_MOE, mlp_bias="no", changed=PAIRED),
    "granitemoehybrid": row(
        "granitehybrid",
        names.SCAN_2,
        of=GRANITE,
        routing=GRANITE_MOE,
        mixers=(mixers.MAMBA_2,),
        unrotated=True,
        changed=(*PAIRED, *STATES_2),
    ),
    "dots3_note_text": row(
        "dots3note",
        mixers=(dots3.DOTS,),
        routing=replace(SHARED, correction="all"),
        attention=deepseek2.ATTENTION + "blk.{i}.attn_k_norm   blocks.{i}.mixer.k_norm",
        changed=(latents.LATENTS, *latents.SCALES, *latents.INDEX_IN_HALVES),
        computed=dots3.computed,
    ),
    "dots1": row("dots1", qk_norm="head", grouped=False, routing=SHARED),
    "hunyuan_v1_dense": row("hunyuan-dense", qk_norm="late"),
    "hunyuan_v1_moe": row("hunyuan-moe", qk_norm="late", routing=Routing(shared="expert_shared_feed_forward_length")),
    "gpt_oss": row(
        "gpt-oss",
        second_norm="post_attention_norm",
        sinks="all",
        windows=Windows(2),
        output_bias="all",
        truncate=False,
        routing=Routing(biases=True, expert=SWIGLU_OAI),
    ),
    "minimax_m3_vl_text": row(
        "minimax-m3",
        minimax_m3.INDEX,
        norm=RMSNorm(unit_offset=True),
        qk_norm="head",
        routing=replace(SHARED, correction="all", expert=SWIGLU_OAI),
        finish=minimax_m3.with_blocks,
        further=minimax_m3.index_keys,
        changed=(changes.AROUND_ONE,),
    ),
    "minimax_m2": row("minimax-m2", qk_norm="all", routing=Routing("key", correction="all")),
    "mellum": row("mellum", qk_norm="head", windows=Windows(4, has_base=False), routing=Routing()),
    "afmoe": row(
        "afmoe",
        wiring="sandwich",
        qk_norm="head",
        gate=OutputGate(),
        root=True,
        windows=Windows(4),
        rotates=PERIODS["all but every fourth"],
        routing=replace(GLM_4_MOE, has_shared="any"),
    ),
    "apertus": row(
        "apertus",
        names.SLOPES_OF_XIELU,
        activation=XIELU(),
        gated=False,
        qk_norm="head",
        output_bias="any",
        numbers={"xielu.alpha_p": (1,), "xielu.alpha_n": (1,), "xielu.beta": (), "xielu.eps": ()},
    ),
    "jais2": row("jais2", of=OF_GPT2, activation=ReLU2()),
    "mamba": row("mamba", names.SCAN, mixers=(mixers.MAMBA,), apart=True, norms=names.SINGLE, changed=STATES),
    "mamba2": row("mamba2", names.SCAN_2, mixers=(mixers.MAMBA_2,), apart=True, norms=names.SINGLE, changed=STATES_2),
    "jamba": row(
        "jamba",
        names.SCAN,
        mixers=(mixers.MAMBA,),
        rotates=PERIODS["none"],
        routing=Routing(renormalize=False, dense="any"),
        changed=STATES,
    ),
    "lfm2": _lfm("lfm2"),
    "lfm2_moe": _lfm("lfm2moe", routing=Routing("key", correction="all", dense="first")),
    "nemotron_h": row("nemotron_h", names.SCAN_2, of=NEMOTRON_H, norms=names.SINGLE, changed=STATES_2),
    "nemotron_h_moe": row(
        "nemotron_h_moe",
        names.SCAN_2,
        of=NEMOTRON_H,
        routing=Routing(
            "sigmoid",
            renormalize=None,
            scaled=True,
            correction="all",
            latent=True,
            shared="expert_shared_feed_forward_length",
            dense="any",
        ),
        norms=names.SINGLE,
        changed=STATES_2,
    ),
    "qwen3_next": row(
        "qwen3next",
        of=QWEN_DELTA,
        routing=Routing(shared="expert_shared_feed_forward_length", has_shared="any", shared_gate=True, dense="any"),
        rules=names.delta_rules("blk.{i}.ssm_ba   blocks.{i}.mixer.{b,a}"),
        changed=(changes.AROUND_ONE_BUT_GATED, changes.RATES, changes.KERNEL, changes.GATE_VECTOR),
    ),
    "qwen3_5_text": _delta("qwen35"),
    "qwen3_5_moe_text": _delta("qwen35moe", routing=SHARED_GATED),
    "qwen4_exp_text": row(
        "qwen4exp",
        norm=RMSNorm(unit_offset=True),
        qk_norm="head",
        gate=OutputGate(),
        mixers=(qwen4exp.DELTA_SIGMOID,),
        marked=False,
        sections=True,
        routing=SHARED_GATED,
        finish=qwen4exp.with_streams,
        further=qwen4exp.streams_keys,
        stored=qwen4exp.without_memory,
        rules=qwen4exp.rules,
        changed=(qwen4exp.AROUND_ONE, *changes.TILED, changes.GATE_VECTOR, changes.MEMORY_KERNEL),
        computed=qwen4exp.computed,
    ),
    "ernie4_5_moe": row(
        "ernie4_5-moe",
        interleaved=True,
        routing=Routing(shared="expert_shared_feed_forward_length", has_shared="any", correction="any", dense="every"),
    ),
    "granite_swa": row("granite_swa", of=GRANITE, sinks="all", windows=Windows(0, has_base=False), changed=PAIRED),
    "hy_v3": row(
        "hy_v3",
        qk_norm="head",
        routing=CORRECTED_SIGMOID,
        network=names.EXPERTS.replace("exp_probs_b.bias", "exp_probs_b"),
    ),
    "laguna": row(
        "laguna",
        qk_norm="head",
        gate=OutputGate(per="head", activation="softplus"),
        windows=Windows(4, full_first=True),
        routing=replace(CORRECTED_SIGMOID, correction="all", dense="first"),
    ),
    "minicpm": row("minicpm", of=GRANITE, scales=SCALES[:2], usual=finish.old_minicpm, changed=PAIRED),
    "deepseek_v2": _latent("deepseek2", deepseek2.LATENT, deepseek2.check, usual=deepseek2.old_glm),
}
ROWS |= {
    "internlm2": row("internlm2", changed=PAIRED),
    "hrm_text": row(
        "hrm_text",
        norm=RMSNorm(weight=False),
        gate=OutputGate(),
        scales=SCALES[:1],
        finish=hrm.in_cycles,
        further=hrm.cycles_keys,
        stored=finish.one_pass,
        rules=hrm.rules,
        constants=hrm.first_state,
    ),
    "nanbeige": row(
        "nanbeige", finish=finish.looped, further=finish.looped_keys, stored=finish.one_pass, changed=PAIRED
    ),
    "xverse": row("xverse", changed=PAIRED),
    "orion": row("orion", norm=LAYER_NORM),
    "codeshell": row("codeshell", of=OF_GPT2, activation=GELUTanh(), attention=names.FUSED),
    "PanguEmbedded": row("pangu-embedded", output_bias="all"),
    "maincoder": row("maincoder", qk_norm="late", interleaved=True),
    "spark2_5": row("spark2_5", activation=GELUTanh(), gate=OutputGate(per="head"), windows=Windows()),
    "openelm": row("openelm", qk_norm="head", qkv_bias="no", attention=names.FUSED),
    "qwen": row(
        "qwen",
        grouped=False,
        qkv_bias="all",
        finish=finish.halved_width,
        further=finish.doubled_width,
        attention=names.FUSED,
    ),
    "deepseek": row(
        "deepseek",
        routing=Routing(renormalize=False, scaled=True, shared="expert_shared_count", dense="first"),
        changed=PAIRED,
    ),
    "bailing_hybrid": row(
        "bailingmoe3",
        mixers=(mixers.LING_CHANNELS, deepseek2.GATED),
        routing=replace(SHARED, correction="all"),
        finish=finish.unlimited,
        rules=names.kimi_rules,
        changed=(latents.LATENTS, changes.POSITIVE_RATES),
    ),
    "bailing_moe": row(
        "bailingmoe", routing=Routing(renormalize=None, scaled=True, shared="expert_shared_count"), changed=PAIRED
    ),
    "sarvam_moe": row("bailingmoe2", qk_norm="head", qkv_bias="no", routing=SHARED, attention=names.FUSED),
    "dbrx": row(
        "dbrx",
        norm=NO_BIAS,
        second_norm="attn_output_norm",
        clip=True,
        qkv_bias="no",
        routing=Routing(),
        attention=names.FUSED,
    ),
    "bitnet": row("bitnet", names.SUB_NORMS, qkv_bias="no", finish=finish.bitnet),
    "cohere2_moe": row(
        "cohere2moe",
        of=COHERE,
        windows=Windows(4, full_first=True, has_base=False),
        rotates=PERIODS["with windows, or dense"],
        routing=Routing("key", usual="sigmoid", renormalize=None, scaled=True, dense="first"),
    ),
    "llama4_text": row(
        "llama4",
        interleaved=True,
        rotates=PERIODS["all but every fourth"],
        routing=Routing("sigmoid", renormalize=False, shared="alike", dense="step"),
        finish=finish.llama4,
    ),
    "ministral3": row(
        "mistral3",
        of=BIASED,
        every_yarn=True,
        finish=finish.growing,
        further=finish.growing_keys,
        changed=PAIRED,
    ),
    "grok": row(
        "grok",
        wiring="sandwich",
        activation=GELUTanh(),
        scales=("embedding",),
        logits="multiply",
        routing=Routing(),
        usual=lambda keys: finish.OLD_GROK,
        finish=finish.grok,
        further=finish.grok_keys,
        norms=names.GROK_NORMS,
        computed=lambda model: plain(finish.with_shares(model)),
    ),
    "mimo_v2_flash": row(
        "mimo2",
        qkv_bias="no",
        sinks="any",
        wide_values=True,
        windows=Windows(0, theta=10000.0, scaled=False),
        routing=Routing("sigmoid", correction="any", dense="any"),
        finish=finish.scaled_values,
        further=finish.scaled_values_keys,
    ),
    "minicpm3": row(
        "minicpm3", mixers=(deepseek2.PLAIN_HALVES,), finish=finish.minicpm3, attention=deepseek2.ATTENTION
    ),
    "hy_v4": row(
        "hy_v4",
        names.STREAMS,
        mixers=(deepseek2.HY,),
        routing=SHARED,
        finish=streams.hy4,
        further=streams.hy4_keys,
        attention=deepseek2.ATTENTION,
        changed=(latents.LATENTS, *latents.LAST_IN_PAIRS),
        computed=lambda model: plain(finish.in_pairs(model)),
    ),
    "plm": row("plm", mixers=(deepseek2.PLAIN,), activation=ReLU2(), gated=False, attention=deepseek2.ATTENTION),
    "deepseek_ocr_text": row("deepseek2-ocr", grouped=False, routing=SHARED, finish=finish.deepseek_ocr),
    "mistral4": _latent("mistral4", deepseek2.GROWING, deepseek2.check_later),
    "deepseek_v32": _latent("deepseek32", deepseek2.INDEXED, deepseek2.check_later),
    "glm_moe_dsa": _latent(
        "glm-dsa", deepseek2.SHARED_INDEX, deepseek2.check_unscaled, routing=replace(SHARED, usual="sigmoid")
    ),
    "kimi_linear": row(
        "kimi-linear",
        mixers=(mixers.CHANNEL_DELTA_NET, deepseek2.UNROTATED),
        routing=replace(SHARED, correction="all", renormalize=True),
        rules=names.kimi_rules,
        changed=(latents.LATENTS, changes.RATES_OF_HEADS),
        computed=with_one_epsilon,
    ),
    "kimi_k3": row(
        "kimi-k3",
        mixers=(mixers.K3_CHANNELS, deepseek2.UNROTATED_GATED),
        activation=SiTU(beta=1.0),
        routing=replace(SHARED, correction="all", latent=True),
        finish=kimi_k3.with_depth,
        further=kimi_k3.depth_keys,
        rules=names.k3_rules,
        changed=(latents.LATENTS, changes.RATES, kimi_k3.SCORES, kimi_k3.FIRST_SCORES),
        computed=kimi_k3.computed,
    ),
    "glm5_next_text": row(
        "glm5-next",
        mixers=(mixers.BOUNDED_CHANNELS, deepseek2.POOLED),
        routing=GLM_4_MOE,
        finish=streams.glm5,
        further=streams.glm5_keys,
        rules=partial(names.kimi_rules, further=names.STREAMS),
        changed=(latents.LATENTS, changes.RATES),
    ),
    "falcon_h1": row(
        "falcon-h1",
        names.NETWORK.replace("feedforward.", "feedforward.parts.0."),
        of=BIASED,
        mixers=(mixers.MAMBA_2,),
        together=True,
        marked=False,
        # its second norm is stored without the ending of weights
        norms=names.PRE.replace("ffn_norm   ", "ffn_norm = ").replace("feedforward_norm", "feedforward_norm.weight"),
        attention=names.BESIDE,
        changed=(*changes.FOLDED, *STATES_2),
        computed=lambda model: plain(finish.without_factors(model)),
    ),
    "baichuan": row("baichuan", rotates=PERIODS["32 layers"], finish=finish.baichuan, changed=PAIRED),
    "jais": row(
        "jais",
        of=OF_GPT2,
        gated=True,
        qkv_bias="all",
        rotates=PERIODS["none"],
        finish=finish.jais,
        further=finish.jais_keys,
        attention=names.FUSED,
    ),
    "gpt_refact": row("refact", rotates=PERIODS["none"], finish=finish.slopes),
    "plamo": row("plamo", wiring="parallel"),
    "plamo3": row(
        "plamo3",
        wiring="sandwich",
        qk_norm="head",
        qkv_bias="no",
        wide_values=True,
        windows=Windows(8, theta=10000.0, scaled=False),
        norms=names.PRE + names.BARE,
        attention=names.FUSED,
        network=names.FUSED_NETWORK,
    ),
    "nemotron-nas": row("deci", of=BIASED, apart=True, further=finish.without_heads, changed=PAIRED),
    "maple": row(
        "maple",
        qk_norm="head",
        windows=Windows(),
        rotates=PERIODS["with windows"],
        routing=Routing(),
        finish=finish.limited,
        further=finish.limited_keys,
    ),
    "muse_glimmer_text": row(
        "muse-glimmer",
        wiring="sandwich",
        interleaved=True,
        qk_norm="head",
        gate=OutputGate(),
        windows=Windows(4, scaled=False),
        rotates=PERIODS["with windows"],
        logits="multiply",
        finish=finish.muse_glimmer,
        further=finish.capped_keys,
    ),
    "step3p5": row(
        "step35",
        qk_norm="head",
        has_qk_norm="any",
        gate=OutputGate(per="head"),
        windows=Windows(0, theta=10000.0),
        routing=CORRECTED_SIGMOID,
        finish=finish.step35,
        further=finish.step35_keys,
    ),
    "rwkv7": Gguf("rwkv7", rwkv7.Rwkv7(), rwkv7.RULES, rwkv7.CHANGES, computed=plain),
    "minimax": row(
        "minimax-01",
        mixers=(minimax_01.LIGHTNING,),
        marked=False,
        routing=Routing(),
        finish=minimax_01.with_factor,
        further=minimax_01.factor_keys,
        rules=minimax_01.rules,
    ),
    "deepseek_v4": Gguf("deepseek4", deepseek4.DeepSeek4(), deepseek4.RULES, computed=plain),
    "gemma4_text": Gguf("gemma4", gemma4.Gemma4(), gemma4.rules, computed=plain),
    # the parts that read text; positions in three parts are equal for text
    "qwen2_vl_text": row("qwen2vl", sections=True),
    "qwen3_vl_text": row("qwen3vl", qk_norm="head", sections=True),
    "qwen3_vl_moe_text": row("qwen3vlmoe", qk_norm="head", sections=True, routing=Routing()),
    "paddleocr_vl_text": row("paddleocr", sections=True),
    "hunyuan_vl": row("hunyuan_vl", qk_norm="late", sections=True),
}
# Encoders. llama.cpp only has the tanh approximation of GELU.
ROWS |= {
    "modernbert": row(
        "modern-bert",
        encodes=True,
        norm=NO_BIAS,
        activation=GELU(),
        grouped=False,
        qkv_bias="no",
        windows=Windows(3, full_first=True, theta=10000.0, scaled=False),
        attention=names.FUSED,
        network=names.FUSED_NETWORK,
        changed=(changes.NO_POOLER,),
    ),
    "eurobert": row("eurobert", encodes=True),
    "llama_bidirec": row("llama-embed", encodes=True, changed=PAIRED),
    "llada": row("llada", encodes=True, fills_masks=True, changed=PAIRED),
    "Dream": row("dream", encodes=True, fills_masks=True),
    "llada_moe": row("llada-moe", encodes=True, fills_masks=True, qk_norm="head", routing=Routing(renormalize=False)),
    "rnd1": row("rnd1", encodes=True, fills_masks=True, qk_norm="head", routing=Routing()),
    "gemma_embedding": row(
        "gemma-embedding",
        encodes=True,
        norm=RMSNorm(unit_offset=True),
        wiring="sandwich",
        activation=GELUTanh(),
        qk_norm="head",
        root=True,
        windows=Windows(6, scaled=False),
        changed=(changes.AROUND_ONE,),
    ),
    "jina_bert_v3": row("jina-bert-v3", of=BIASED_BERT, attention=names.FUSED, changed=(changes.NO_POOLER,)),
    "jina_bert_v2": row(
        "jina-bert-v2",
        of=OF_BERT,
        output_bias="all",
        mlp_bias="all",
        rotates=PERIODS["none"],
        finish=finish.jina_bert_v2,
        changed=(changes.NO_POOLER,),
    ),
    "neobert": row(
        "neo-bert",
        encodes=True,
        interleaved=True,
        qkv_bias="no",
        outer=names.OUTER.replace("output_norm", "enc.output_norm"),
        attention=names.FUSED,
        network=names.FUSED_NETWORK,
    ),
    "nomic_bert_moe": row(
        "nomic-bert-moe",
        of=BIASED_BERT,
        routing=Routing(renormalize=False, dense="any"),
        finish=finish.periodic,
        further=finish.periodic_keys,
        attention=names.FUSED,
        changed=(changes.NO_POOLER,),
    ),
    "nomic_bert": row(
        "nomic-bert",
        of=OF_BERT,
        activation=SiLU(),
        output_bias="any",
        attention=names.FUSED,
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
