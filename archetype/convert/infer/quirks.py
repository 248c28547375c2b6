"""Settings that only the code of a model type fixes."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

from archetype.convert.infer import own_keys, own_names
from archetype.convert.infer.names import HASHES
from archetype.families.config import Config
from archetype.parts.activation.spec import GELUTanh, ReLU
from archetype.parts.norm.spec import L2Norm, LayerNorm, RMSNorm
from archetype.parts.position.spec import Sinusoidal
from archetype.roles.activation import Activation
from archetype.roles.checkpoint import MixerQuirks

Replacement = str | Callable[[re.Match[str]], str]


@dataclass(frozen=True)
class FamilyQuirks(MixerQuirks):
    """Settings fixed by a family's code in addition to the settings of its mixers.

    Attributes:
        positions_after_padding: positions begin at the padding token's id + 1.
        full_layers_without_rope: only layers with sliding windows have rotary positions.
        dense_layers_rotate: exception: dense layers use rotary positions if all of them have full attention.
        scaled_full_layers: `rope_scaling` only applies to layers with full attention.
        renormalize: the weights of a token's experts are normalized to sum to one.
        sigmoid: router scores are sigmoids.
        sparse_mixer: experts are selected and weighted one at a time.
        activation: activation of the feed-forward part; overrides the file.
        eps: epsilon of every norm; overrides the file.
        norm: kind of all norms, if the tensors cannot show it.
        plain_final_norm: the final norm has no unit offset, unlike `norm`.
        embedding_norm: norm without weights that follows the embedding.
        scaled_embedding: token embeddings are multiplied by sqrt(d_model).
        round_scale: the factor sqrt(d_model) is first rounded to the vectors' dtype.
        rows_of_layers: a table of per-layer vectors may lack the last token ids, which read its first row.
        added_position: computed position embeddings that are added to token vectors.
        inclusive_waves: exponents of the embeddings' frequencies go from 0 to 1 inclusive (tensor2tensor).
        asks_is_decoder: without `is_decoder: true` the class attends to later tokens, whatever its name.
        half_window: without another key, the window is half of `local_attention`.
        rope: rotary positions without a key.
        rope_when_named: positions are rotary only if `position_embedding_type` says so.
        one_rotation: the class reads no section of rotary positions for a kind of layers.
        alibi_before_scale: ALiBi is added, in bfloat16, before scores are divided by sqrt(head_dim).
        unscaled_logits: the class around the text model does not scale its logits; overrides the file.
        logits_times_scaling: `logits_scaling` multiplies the logits instead of dividing them.
        norm_first: the embedding's norm precedes the addition of position embeddings.
        clamps: networks whose gates are clamped at `swiglu_limit` (None: those of gpt-oss, if any).
        overridden: keys of `per_layer_config` that the class reads.
        reads: keys whose names the class puts together from two pieces.
        weighs_inputs: router weights multiply the inputs of experts.
        scaled_residual: the residual sum is divided by the square root of the number of its terms.
        streams_mean: the final residual streams are averaged, which needs no tensors.
        side_by_side: each layer has attention parallel to a state space.
        expert_bias_on: scores to which the expert selection bias is added.
        loops: key with the number of passes over all layers, which share weights (None: one pass).
        only: keys that the class treats differently, each with the value that makes no difference.
        asks: keys whose values the class derives if the file lacks them.
        derive: returns keys that the class computes from others.
        renames: patterns of tensor names, with their replacements.
        embedding_factors: token embeddings are multiplied by learned factors.
        idle_output: output of idle experts.
        delayed_experts: the output of experts that are parallel to a network is added one layer later.
        computed: pattern of tensors that are computed instead of being read.
        zeros: pattern of tensors that are not read and must be zero.
    """

    positions_after_padding: bool = False
    full_layers_without_rope: bool = False
    dense_layers_rotate: bool = False
    scaled_full_layers: bool = False
    renormalize: bool = False
    sigmoid: bool = False
    sparse_mixer: bool = False
    activation: Activation | None = None
    eps: float | None = None
    norm: LayerNorm | RMSNorm | L2Norm | None = None
    plain_final_norm: bool = False
    embedding_norm: bool = False
    scaled_embedding: bool = False
    round_scale: bool = False
    rows_of_layers: bool = False
    added_position: Sinusoidal | None = None
    inclusive_waves: bool = False
    asks_is_decoder: bool = False
    half_window: bool = False
    rope: bool = False
    rope_when_named: bool = False
    one_rotation: bool = False
    alibi_before_scale: bool = False
    unscaled_logits: bool = False
    logits_times_scaling: bool = False
    norm_first: bool = False
    clamps: Literal["experts", "all"] | None = None
    overridden: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    weighs_inputs: bool = False
    scaled_residual: bool = False
    side_by_side: bool = False
    streams_mean: bool = False
    expert_bias_on: Literal["affinities", "logits"] = "affinities"
    loops: str | None = None
    only: tuple[tuple[str, Any], ...] = ()
    asks: tuple[str, ...] = ()
    derive: Callable[[Config], dict[str, Any]] | None = None
    renames: tuple[tuple[str, Replacement], ...] = ()
    computed: str | None = None
    zeros: str | None = None
    delayed_experts: bool = False
    embedding_factors: bool = False
    idle_output: Literal["input", "zero"] = "input"


NEIGHBOURS = FamilyQuirks(interleaved=True)
BERT = FamilyQuirks(asks_is_decoder=True)
ROBERTA = replace(BERT, positions_after_padding=True)
GEMMA4 = FamilyQuirks(
    norm=RMSNorm(),
    scaled_embedding=True,
    round_scale=True,
    unscaled_scores=True,
    value_norm=True,
    renormalize=True,
    overridden=("head_dim", "num_key_value_heads"),
    asks=("layer_types", "rope_parameters"),
    derive=own_keys.gemma4,
)
GEMMA3N = replace(
    GEMMA4,
    renormalize=False,
    overridden=(),
    asks=(),
    rows_of_layers=True,
    derive=own_keys.gemma3n,
    renames=(
        (r"altup\.correct_output_scale", "per_layer_input_norm.weight"),
        (r"post_per_layer_input_norm\.weight", "per_layer_added_norm.weight"),
    ),
)
ONE_PLUS = FamilyQuirks(norm=RMSNorm(unit_offset=True), scaled_embedding=True, round_scale=True)
LONGCAT = FamilyQuirks(
    interleaved=True,
    latents_scaled=True,
    delayed_experts=True,
    derive=own_keys.longcat_flash,
    renames=(
        (r"(model\.layers\.)(\d+)\.mlp\.(.*)", own_names.first_half),
        (
            r"(model\.layers\.)(\d+)\.(self_attn|mlps|(?:input|post_attention)_layernorm)\.([01])\.(.*)",
            own_names.half_layer,
        ),
    ),
)
QUIRKS: dict[str, FamilyQuirks] = {
    **dict.fromkeys(("gptj", "cohere", "cohere2", "glm", "glm4", "helium", "ernie4_5"), NEIGHBOURS),
    **dict.fromkeys(("bert", "bert-generation", "big_bird", "electra", "ernie", "megatron-bert", "rembert"), BERT),
    **dict.fromkeys(
        ("roberta", "camembert", "xlm-roberta", "xlm-roberta-xl", "data2vec-text", "roberta-prelayernorm"), ROBERTA
    ),
    "xmod": replace(
        ROBERTA,
        # without these its adapters read other vectors
        only=(
            ("pre_norm", False),
            ("adapter_layer_norm", False),
            ("adapter_reuse_layer_norm", True),
            ("ln_before_adapter", True),
        ),
    ),
    **dict.fromkeys(("gemma", "gemma2", "vaultgemma"), ONE_PLUS),
    "gemma3_text": replace(ONE_PLUS, only=(("attn_logit_softcapping", None),)),  # the class never reads it
    **dict.fromkeys(("gemma4_text", "gemma4_unified_text"), GEMMA4),
    "gemma3n_text": GEMMA3N,
    "ministral3": FamilyQuirks(only=(("layer_types", None),)),
    "gemma3": FamilyQuirks(only=(("final_logit_softcapping", None),)),
    **dict.fromkeys(("aya_vision", "cohere2_vision"), FamilyQuirks(unscaled_logits=True)),
    "gpt_bigcode": FamilyQuirks(only=(("multi_query", True),)),
    **dict.fromkeys(("mixtral", "granitemoe", "granitemoeshared", "granitemoe_swa"), FamilyQuirks(renormalize=True)),
    "aria_text": FamilyQuirks(renormalize=True, only=(("hidden_act", "silu"),)),  # except in the shared expert
    "bloom": FamilyQuirks(alibi=True, activation=GELUTanh()),
    "mpt": FamilyQuirks(alibi=True),
    "olmo3": FamilyQuirks(scaled_full_layers=True),
    "phimoe": FamilyQuirks(sparse_mixer=True, only=(("num_experts_per_tok", 2),)),  # the class always chooses two
    "olmoe": FamilyQuirks(only=(("sliding_window", None),)),
    "whisper": FamilyQuirks(only=(("scale_embedding", False),)),
    "falcon": FamilyQuirks(alibi_before_scale=True),
    "hyperclovax": FamilyQuirks(logits_times_scaling=True),
    "granitemoehybrid": FamilyQuirks(renormalize=True, rope_when_named=True),
    "hunyuan_v1_dense": FamilyQuirks(qk_norm_after_rope=True),
    "hunyuan_v1_moe": FamilyQuirks(qk_norm_after_rope=True, renormalize=True),
    "afmoe": FamilyQuirks(sigmoid=True, renormalize=True, full_layers_without_rope=True),
    "laguna": FamilyQuirks(sigmoid=True, renormalize=True, gate_activation="softplus"),
    "flint": FamilyQuirks(sigmoid=True, full_layers_without_rope=True),
    **dict.fromkeys(
        ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"),
        FamilyQuirks(norm=RMSNorm(unit_offset=True), gate_in_queries=True),
    ),
    "qwen3_5_moe_text": FamilyQuirks(norm=RMSNorm(unit_offset=True), gate_in_queries=True, renormalize=True),
    "qwen4_exp_text": FamilyQuirks(
        norm=RMSNorm(unit_offset=True), gate_in_queries=True, fused_order="qkv", computed=HASHES
    ),
    "kolibri1": FamilyQuirks(sigmoid=True, full_layers_without_rope=True, expert_bias_on="logits"),
    "blenderbot-small": FamilyQuirks(norm_first=True, only=(("scale_embedding", False),)),
    **dict.fromkeys(
        ("xlm", "flaubert"),
        FamilyQuirks(
            derive=own_keys.xlm,
            renames=(
                (r"transformer\.attentions\.(\d+)\.(.*)", r"transformer.layers.\1.attention.\2"),
                (r"transformer\.ffns\.(\d+)\.(.*)", r"transformer.layers.\1.ffn.\2"),
                (r"transformer\.layer_norm([12])\.(\d+)\.(.*)", r"transformer.layers.\2.norm\1.\3"),
                (r"transformer\.layer_norm_emb\.(.*)", r"transformer.embedding_norm.\1"),
                (r"pred_layer\.proj\.(.*)", r"lm_head.\1"),
            ),
        ),
    ),
    "olmo_hybrid": FamilyQuirks(mixer_eps=1e-5, one_rotation=True),
    "falcon_h1": FamilyQuirks(side_by_side=True),
    "falcon_mamba": FamilyQuirks(norm=RMSNorm()),
    **dict.fromkeys(
        ("lfm2", "lfm2_moe", "lfm3"),
        FamilyQuirks(sigmoid=True, renames=((r"(.*\.)embedding_norm\.(.*)", r"\1final_norm.\2"),)),
    ),
    "sarvam_moe": FamilyQuirks(fused_order="qkv"),
    "codegen": FamilyQuirks(interleaved=True, fused_order="qvk_per_quarter"),
    "cohere2": FamilyQuirks(interleaved=True, full_layers_without_rope=True),
    "cohere2_moe": FamilyQuirks(
        interleaved=True,
        full_layers_without_rope=True,
        dense_layers_rotate=True,
        only=(("rope_scaling", None),),
        derive=own_keys.cohere2_moe,
    ),
    "cohere_compass_text": FamilyQuirks(asks=("layer_types",)),
    "dbrx": FamilyQuirks(
        norm=LayerNorm(),
        renames=((r"norm_attn_norm\.(.*)", r"\1"),),
        asks=("attn_config", "ffn_config"),
        derive=own_keys.dbrx,
    ),
    "deepseek_v2": NEIGHBOURS,
    **dict.fromkeys(("mamba", "mamba2"), FamilyQuirks(norm=RMSNorm())),
    "deepseek_v32": FamilyQuirks(interleaved=True, head_dim_replaced=True),
    "axk2": FamilyQuirks(sigmoid=True, interleaved=True, head_dim_replaced=True, doubled_query="query_gate_per_head"),
    "glm_moe_dsa": FamilyQuirks(interleaved=True, index_interleaved=True, head_dim_replaced=True),
    "dots3_note_text": FamilyQuirks(
        sigmoid=True,
        interleaved=True,
        index_interleaved=True,
        head_dim_replaced=True,
        latents_scaled=True,
        latents_eps_is_shared=True,
        yarn_scales_scores=False,
        overridden=own_keys.DOTS3_SIZES,
        reads=tuple(f"swa_{name}" for name in own_keys.DOTS3_SIZES),
        derive=own_keys.dots3,
    ),
    "glm5_next_text": FamilyQuirks(
        sigmoid=True,
        clamps="all",
        head_dim_replaced=True,
        unrotated=True,
        latents_eps_is_shared=True,
        streams_mean=True,
    ),
    **dict.fromkeys(("longcat_flash", "longcat_flash_ngram"), LONGCAT),
    "doge": FamilyQuirks(
        derive=own_keys.doge,
        renames=(
            ("input_residual", "mixer_residual.carried.weight"),
            ("post_attention_residual", "feedforward_residual.carried.weight"),
        ),
    ),
    "zaya": FamilyQuirks(
        derive=own_keys.zaya,
        qk_norm=True,
        qk_norm_eps=1e-12,
        embedding_factors=True,
        idle_output="zero",
        renames=(
            (r"model\.input_hidden_states_scale", "model.embedding_norm.weight"),
            (r"model\.input_hidden_states_bias", "model.embedding_norm.bias"),
            (r"self_attn\.qkv_proj\.conv_qk_(depthwise|grouped)\.(.*)", r"self_attn.joint.\1.\2"),
            (r"self_attn\.qkv_proj\.(.*)", r"self_attn.\1"),
            (r"self_attn\.qk_norm\.temp", "self_attn.key_factors"),
            *(
                (f"post_{theirs}_residual_scale\\.{term}_{kind}", f"{ours}_residual.{name}.{param}")
                for theirs, ours in (("attention", "mixer"), ("mlp", "feedforward"))
                for term, name in (("residual", "carried"), ("hidden_states", "added"))
                for kind, param in (("scale", "weight"), ("bias", "bias"))
            ),
            (r"mlp\.gate\.down_proj\.(.*)", r"mlp.router_network.down.\1"),
            (r"mlp\.gate\.router_mlp\.out_proj\.(.*)", r"mlp.router_network.out.\1"),
            (r"mlp\.gate\.router_mlp\.(.*)", r"mlp.router_network.\1"),
            (r"mlp\.gate\.router_states_scale", "mlp.router_network.carry"),
            (r"mlp\.gate\.balancing_biases", "mlp.gate.e_score_correction_bias"),
        ),
    ),
    "mistral4": FamilyQuirks(interleaved=True, share_is_of_head=True, asks=("rope_parameters",)),
    "kimi_linear": FamilyQuirks(sigmoid=True, unrotated=True),
    "bailing_hybrid": FamilyQuirks(
        sigmoid=True, interleaved=True, head_dim_replaced=True, derive=own_keys.bailing_hybrid
    ),
    "kimi_k2": NEIGHBOURS,  # DeepSeek-V3's class under another name
    "lara_mini": FamilyQuirks(full_layers_without_rope=True),
    "exaone4": FamilyQuirks(full_layers_without_rope=True),
    "exaone_moe": FamilyQuirks(full_layers_without_rope=True, sigmoid=True),
    "ernie4_5_moe": FamilyQuirks(interleaved=True, renormalize=True),
    "mimo_v2_flash": FamilyQuirks(sigmoid=True, derive=own_keys.mimo_v2_flash),
    "step3p5": FamilyQuirks(
        norm=RMSNorm(unit_offset=True),
        sigmoid=True,
        derive=own_keys.step3p5,
        renames=(
            (r"(.*\.)?moe\.gate_proj\.weight", r"\1moe.experts.mlp.w1"),
            (r"(.*\.)?moe\.up_proj\.weight", r"\1moe.experts.mlp.v1"),
            (r"(.*\.)?moe\.down_proj\.weight", r"\1moe.experts.mlp.w2"),
            (r"(.*\.)?moe\.router_bias", r"\1moe.gate.e_score_correction_bias"),
            (r"(.*\.)?share_expert\.(.*)", r"\1shared_expert.\2"),
        ),
    ),
    "naive_n05_flash": FamilyQuirks(norm=RMSNorm(), sigmoid=True, derive=own_keys.naive_n05_flash),
    "solar_open2": FamilyQuirks(sigmoid=True, full_layers_without_rope=True, derive=own_keys.solar_open2),
    "mimo_v2": FamilyQuirks(norm=RMSNorm(), sigmoid=True, fused_order="qkv_per_shard", derive=own_keys.mimo_v2),
    "minimax_m2": FamilyQuirks(sigmoid=True, renormalize=True),
    "minimax_m3_vl_text": FamilyQuirks(norm=RMSNorm(unit_offset=True), sigmoid=True, renormalize=True),
    "hy_v3": FamilyQuirks(sigmoid=True, renormalize=True),
    "hy_v4": FamilyQuirks(
        sigmoid=True,
        clamps="experts",
        head_dim_replaced=True,
        index_rotates="last",
        index_eps_is_shared=True,
        only=(("hidden_act", "silu"),),  # experts have no other
    ),
    "inkling_text": FamilyQuirks(
        sigmoid=True,
        renormalize=True,
        derive=own_keys.inkling,
        renames=((r"(.*\.)?attn_sconv\.(.*)", r"\1self_attn.output_sconv.\2"),),
    ),
    "nanbeige": FamilyQuirks(loops="num_loops", derive=own_keys.nanbeige),
    "ouro": FamilyQuirks(loops="total_ut_steps", only=(("early_exit_step", None), ("use_sliding_window", False))),
    "openai-gpt": FamilyQuirks(activation=GELUTanh(), only=(("afn", "gelu"),)),  # the class calls it gelu
    "ctrl": FamilyQuirks(
        activation=ReLU(),
        scaled_embedding=True,
        added_position=Sinusoidal(interleaved=False),
        only=(("layer_norm_epsilon", 1e-6),),  # except in the last norm
    ),
    "xglm": FamilyQuirks(added_position=Sinusoidal(interleaved=False, offset=2), inclusive_waves=True),
    "biogpt": FamilyQuirks(eps=1e-5),
    "gpt_neo": FamilyQuirks(unscaled_scores=True),
    "roformer": replace(BERT, interleaved=True, rope=True, computed=r".*\.embed_positions\.weight"),
    "llama4_text": FamilyQuirks(
        sigmoid=True, weighs_inputs=True, interleaved=True, qk_norm=True, qk_norm_after_rope=True
    ),
    "recurrent_gemma": FamilyQuirks(norm=RMSNorm(unit_offset=True), derive=own_keys.recurrent_gemma),
    "rwkv": FamilyQuirks(
        norm=LayerNorm(),
        only=(("layer_norm_epsilon", 1e-5),),  # except in the last norm
        renames=((r"rwkv\.blocks\.0\.pre_ln\.(.*)", r"embedding_norm.\1"), (r"head\.(.*)", r"lm_head.\1")),
    ),
    "xlstm": FamilyQuirks(norm=RMSNorm(), derive=own_keys.xlstm),
    "nemotron": FamilyQuirks(norm=LayerNorm(unit_offset=True)),
    "nemotron_h": FamilyQuirks(norm=RMSNorm(), rope_when_named=True, sigmoid=True, steps_from_min=True),
    "olmo": FamilyQuirks(norm=LayerNorm(weight=False, bias=False), eps=1e-5),
    "muse_glimmer_text": FamilyQuirks(
        norm=RMSNorm(unit_offset=True),
        plain_final_norm=True,
        embedding_norm=True,
        qk_norm=True,
        derive=own_keys.muse_glimmer,
    ),
    "nanochat": FamilyQuirks(
        norm=RMSNorm(weight=False), embedding_norm=True, qk_norm=True, qk_norm_after_rope=True, reversed=True
    ),
    "gpt_neox_japanese": FamilyQuirks(only=(("rope_theta", None),), renames=((r"(.*)\.dense_bias", r"\1.dense.bias"),)),
    "modernbert-decoder": FamilyQuirks(
        norm=LayerNorm(),
        renames=(
            (r"attn\.Wo\.(.*)", r"attn.o_proj.\1"),
            (r"mlp\.Wi\.(.*)", r"mlp.gate_up_proj.\1"),
            (r"mlp\.Wo\.(.*)", r"mlp.down_proj.\1"),
        ),
        only=(("classifier_activation", "gelu"),),
        derive=own_keys.modernbert_decoder,
        half_window=True,
    ),
    # `attention_scaling` of its class: (1 + (i + 1) / 2048)^0.1 at position i
    "beam": FamilyQuirks(sigmoid=True, scaled_residual=True, query_power=(0.1, 2048)),
    "deepseek_v4": FamilyQuirks(
        derive=own_keys.deepseek_v4,
        asks=("layer_types",),
        clamps="all",
        renormalize=True,
        interleaved=True,
        renames=(
            (r"head\.(.*)", r"lm_head.\1"),
            (r"embed\.(.*)", r"embed_tokens.\1"),
            (r"(.*\.)?ffn\.gate\.bias", r"\1ffn.gate.e_score_correction_bias"),
        ),
    ),
    "dory": FamilyQuirks(
        norm=L2Norm(),
        eps=1e-6,
        qk_norm=True,
        output_norms=True,
        derive=own_keys.dory,
        renames=(
            (r"(.*layers\.)(\d+)\.(mixer|attn_alpha|mlp_alpha)(.*)", own_names.pair_of_layers),
            (r"lm_head\.logit_scale", "lm_head.gain.weight"),
            (r"self_attn\.sqk", "self_attn.query_gain.weight"),
            (r"self_attn\.s_gate", "self_attn.gate_gain.weight"),
            (r"mlp\.suv_(gate|up)", r"mlp.\1_gain.weight"),
            ("lambda_1", "mixer_rate"),
            ("lambda_2", "feedforward_rate"),
        ),
    ),
    "hrm_text": FamilyQuirks(
        norm=RMSNorm(weight=False),
        derive=own_keys.hrm_text,
        asks=("embedding_scale", "num_layers_per_stack"),
        zeros=r"model\.z_L_init",
        renames=((r"(model\.)([HL])_module\.layers\.(\d+)\.(.*)", own_names.stack_in_turn),),
    ),
    "moshi": FamilyQuirks(
        derive=own_keys.moshi,
        renames=((r"(.*_proj)\.linear\.(.*)", r"\1.\2"), (r"(.*\.mlp)\.fc1\.(.*)", r"\1.gate_up_proj.\2")),
    ),
    "bigbird_pegasus": FamilyQuirks(renames=((r"(.*)\.layernorm_embedding\.(.*)", r"\1.layer_norm.\2"),)),
}
