"""DeepSeek-V2 (DeepSeek-AI 2024): latent attention, many small experts; as transformers' `deepseek_v2` writes it."""

from math import log, sqrt
from typing import Any

from archetype import spec
from archetype.families.config import Config, activation_name
from archetype.families.family import Family, presets, tiny
from archetype.families.format import Format, expect_kind
from archetype.families.llama import BLOCK, GATED, INV_FREQ, LAYER, PRE_NORMS
from archetype.families.rope import read_rotary, write_rotary
from archetype.families.rules import linear_rules, rule
from archetype.spec.base import MAX_LENGTH, MAX_WIDE
from archetype.spec.layers import MAX_LAYERS

# 4,096 tokens stretched to 40 times as many (section 3.1.4)
LONG = spec.Rotary(
    interleaved=True,
    scaling=spec.YarnScaling(factor=40.0, original_context_length=4096, mscale=0.707, mscale_all_dim=0.707),
)


def deepseek_v2(
    *,
    name: str = "",
    num_layers: int,
    d_model: int,
    num_heads: int,
    d_ff: int,
    num_experts: int,
    experts_per_token: int,
    expert_d_ff: int,
    num_shared_experts: int = 2,
    num_dense_layers: int = 1,
    groups: spec.ExpertGroups | None = None,
    router_scale: float = 1.0,
    q_lora_rank: int | None = None,
    kv_lora_rank: int = 512,
    qk_nope_head_dim: int = 128,
    qk_rope_head_dim: int = 64,
    v_head_dim: int = 128,
    position: spec.Rotary = LONG,
    vocab_size: int = 102_400,
    context_length: int = 163_840,
    activation: spec.Activation = "silu",
    eps: float = 1e-6,
    attention_bias: bool = False,
    mlp_bias: bool = False,
    attention_dropout: float = 0.0,
    balance_loss: float = 0.001,
    tied: bool = False,
    std: float = 0.02,
) -> spec.Decoder:
    """A decoder of DeepSeek-V2's design: `num_dense_layers` with a plain `d_ff`, then layers with experts.

    Queries go through a vector of `q_lora_rank` features, or directly where it is None. The shared experts, which every
    token has, are one that is as wide as all of them.
    """
    norm = spec.RMSNorm(eps=eps)
    dense = spec.Block(
        wiring=spec.PreNorm(norm=norm),
        mixer=spec.LatentAttention(
            num_heads=num_heads,
            query=spec.DirectQuery() if q_lora_rank is None else spec.LowRankQuery(rank=q_lora_rank),
            kv_lora_rank=kv_lora_rank,
            qk_nope_head_dim=qk_nope_head_dim,
            qk_rope_head_dim=qk_rope_head_dim,
            v_head_dim=v_head_dim,
            position=position,
            bias=attention_bias,
            scale=latent_scale(qk_nope_head_dim + qk_rope_head_dim, position.scaling),
            dropout=attention_dropout,
        ),
        feedforward=spec.GatedMLP(d_ff=d_ff, activation=activation, bias=mlp_bias),
    )
    experts = spec.MixtureOfExperts(
        num_experts=num_experts,
        experts_per_token=experts_per_token,
        expert=spec.GatedMLP(d_ff=expert_d_ff, activation=activation),
        shared=spec.GatedMLP(d_ff=num_shared_experts * expert_d_ff, activation=activation, bias=mlp_bias),
        router=spec.SoftmaxRouter(scale=router_scale),
        groups=groups,
        balance_loss=balance_loss,
    )
    sparse = dense.replace(feedforward=experts)
    return spec.Decoder(
        name=name,
        vocab_size=vocab_size,
        context_length=context_length,
        d_model=d_model,
        layers=tuple(dense if layer < num_dense_layers else sparse for layer in range(num_layers)),
        final_norm=norm,
        head=spec.LanguageModelHead(tied=tied),
        initialization=spec.NormalInitialization(std=std),
    )


def latent_scale(head_dim: int, scaling: spec.RotaryScaling) -> float | None:
    """What scores are multiplied by: yarn's factor is applied to query and key, also to what is not turned."""
    if not isinstance(scaling, spec.YarnScaling) or scaling.mscale_all_dim is None:
        return None
    factor = 0.1 * scaling.mscale_all_dim * log(scaling.factor) + 1.0
    return factor * factor / sqrt(head_dim)


def read(config: Config) -> spec.Decoder:
    """config.json to specification."""
    for key in ("head_dim", "qk_head_dim", "num_key_value_heads", "pretraining_tp", "output_router_logits", "seq_aux"):
        config.get(key)  # they follow from other sizes, or say how to compute or to train
    config.get("ep_size")
    config.expect("moe_layer_freq", 1, "layers without experts in between")
    config.expect("scoring_func", "softmax", "another affinity")
    config.expect("norm_topk_prob", False, "weights that sum to one")
    rope_dim = config.size("qk_rope_head_dim", 64)
    context_length = config.size("max_position_embeddings", 2048, MAX_LENGTH)
    position = read_rotary(config, rope_dim, context_length)
    return deepseek_v2(
        num_layers=config.size("num_hidden_layers", 32, MAX_LAYERS),
        d_model=config.size("hidden_size", 4096),
        num_heads=config.size("num_attention_heads", 32),
        d_ff=config.size("intermediate_size", 11_008, MAX_WIDE),
        num_experts=config.size("n_routed_experts", 64),
        experts_per_token=config.size("num_experts_per_tok"),
        expert_d_ff=config.size("moe_intermediate_size", 1407, MAX_WIDE),
        num_shared_experts=config.size("n_shared_experts", 2),
        num_dense_layers=config.count("first_k_dense_replace", 0),
        groups=_read_groups(config),
        router_scale=config.positive("routed_scaling_factor", 1.0),
        q_lora_rank=config.optional_size("q_lora_rank", 1536),
        kv_lora_rank=config.size("kv_lora_rank", 512),
        qk_nope_head_dim=config.size("qk_nope_head_dim", 128),
        qk_rope_head_dim=rope_dim,
        v_head_dim=config.size("v_head_dim", 128),
        position=position.replace(interleaved=True),
        vocab_size=config.size("vocab_size", 102_400, MAX_WIDE),
        context_length=context_length,
        activation=config.activation("hidden_act", "silu"),
        eps=config.positive("rms_norm_eps", 1e-6),
        attention_bias=config.flag("attention_bias", False),
        mlp_bias=config.flag("mlp_bias", False),
        attention_dropout=config.rate("attention_dropout", 0.0),
        balance_loss=config.number("aux_loss_alpha", 0.001),
        tied=config.flag("tie_word_embeddings", False),
        std=config.positive("initializer_range", 0.02),
    )


def _read_groups(config: Config) -> spec.ExpertGroups | None:
    method, names = config.get("topk_method", "greedy"), ("n_group", "topk_group")
    match method:
        case "greedy":
            for name in names:
                config.get(name)
            return None
        case "group_limited_greedy":
            count, chosen = (config.size(name) for name in names)
            return spec.ExpertGroups(num_groups=count, groups_per_token=chosen)
        case _:
            raise config.error("topk_method", f"{method!r} is not known", "use greedy or group_limited_greedy")


def write(model: spec.ModelSpec) -> dict[str, Any]:
    """Specification to config.json."""
    decoder = expect_kind(spec.Decoder, model, "kind")
    mixer = expect_kind(spec.LatentAttention, decoder.layers[0].mixer, "layers[0].mixer")
    norm = expect_kind(spec.RMSNorm, decoder.final_norm, "final_norm")
    experts = expect_kind(spec.MixtureOfExperts, decoder.layers[-1].feedforward, "layers[-1].feedforward")
    expert = expect_kind(spec.GatedMLP, experts.expert, "layers[-1].feedforward.expert")
    shared = expect_kind(spec.GatedMLP, experts.shared or spec.NoFeedForward(), "layers[-1].feedforward.shared")
    networks = [block.feedforward for block in decoder.layers if isinstance(block.feedforward, spec.GatedMLP)]
    expert_width, groups = expert.width(decoder.d_model), experts.groups
    return {
        "vocab_size": decoder.vocab_size,
        "max_position_embeddings": decoder.context_length,
        "hidden_size": decoder.d_model,
        "num_hidden_layers": decoder.num_layers,
        "num_attention_heads": mixer.num_heads,
        "num_key_value_heads": mixer.num_heads,
        "q_lora_rank": mixer.query.rank if isinstance(mixer.query, spec.LowRankQuery) else None,
        "kv_lora_rank": mixer.kv_lora_rank,
        "qk_nope_head_dim": mixer.qk_nope_head_dim,
        "qk_rope_head_dim": mixer.qk_rope_head_dim,
        "v_head_dim": mixer.v_head_dim,
        "rope_parameters": write_rotary(mixer.position, mixer.qk_rope_head_dim),
        "intermediate_size": networks[0].width(decoder.d_model) if networks else expert_width,
        "first_k_dense_replace": len(networks),
        "n_routed_experts": experts.num_experts,
        "num_experts_per_tok": experts.experts_per_token,
        "moe_intermediate_size": expert_width,
        "n_shared_experts": shared.width(decoder.d_model) // expert_width,
        "topk_method": "greedy" if groups is None else "group_limited_greedy",
        "n_group": groups and groups.num_groups,
        "topk_group": groups and groups.groups_per_token,
        "routed_scaling_factor": experts.router.scale,
        "norm_topk_prob": False,
        "aux_loss_alpha": experts.balance_loss,
        "hidden_act": activation_name(expert.activation),
        "rms_norm_eps": norm.eps,
        "attention_bias": mixer.bias,
        "mlp_bias": shared.bias,
        "attention_dropout": mixer.dropout,
        "tie_word_embeddings": decoder.head.tied,
        "initializer_range": getattr(decoder.initialization, "std", 0.02),
    }


RULES = (
    rule("model.embed_tokens.weight", "embedding.token.weight"),
    *PRE_NORMS,
    *linear_rules(
        f"{BLOCK}.self_attn.",
        f"{LAYER}.mixer.",
        (
            ("q_proj", "q"),
            ("q_a_proj", "q_down"),
            ("q_b_proj", "q_up"),
            ("kv_a_proj_with_mqa", "kv_down"),
            ("kv_b_proj", "kv_up"),
            ("o_proj", "o"),
        ),
    ),
    rule(f"{BLOCK}.self_attn.q_a_layernorm.weight", f"{LAYER}.mixer.q_norm.weight"),
    rule(f"{BLOCK}.self_attn.kv_a_layernorm.weight", f"{LAYER}.mixer.kv_norm.weight"),
    *linear_rules(f"{BLOCK}.mlp.", f"{LAYER}.feedforward.", GATED),
    *linear_rules(f"{BLOCK}.mlp.shared_experts.", f"{LAYER}.feedforward.shared.", GATED),
    rule(f"{BLOCK}.mlp.gate.weight", f"{LAYER}.feedforward.router.weight"),
    *(
        rule(f"{BLOCK}.mlp.experts.{{e}}.{theirs}.weight", f"{LAYER}.feedforward.experts.{ours}")
        for theirs, ours in GATED
    ),
    rule("model.norm.weight", "final_norm.weight"),
    rule("lm_head.weight", "lm_head.weight"),
)

FAMILY = Family(
    "deepseek_v2",
    {
        **presets(
            "DeepSeek-AI 2024, section 3.1.2; deepseek-ai/DeepSeek-V2 config.json",
            deepseek_v2,
            {
                "deepseek-v2": dict(
                    num_layers=60,
                    d_model=5120,
                    num_heads=128,
                    d_ff=12_288,
                    num_experts=160,
                    experts_per_token=6,
                    expert_d_ff=1536,
                    groups=spec.ExpertGroups(num_groups=8, groups_per_token=3),
                    router_scale=16.0,
                    q_lora_rank=1536,
                )
            },
        ),
        **presets(
            "DeepSeek-AI 2024, appendix B; deepseek-ai/DeepSeek-V2-Lite config.json",
            deepseek_v2,
            {
                "deepseek-v2-lite": dict(
                    num_layers=27,
                    d_model=2048,
                    num_heads=16,
                    d_ff=10_944,
                    num_experts=64,
                    experts_per_token=6,
                    expert_d_ff=1408,
                )
            },
        ),
        **tiny(
            deepseek_v2,
            {
                "deepseek-v2-tiny": dict(
                    num_layers=2,
                    num_heads=4,
                    d_ff=172,
                    num_experts=8,
                    experts_per_token=2,
                    expert_d_ff=32,
                    groups=spec.ExpertGroups(num_groups=4, groups_per_token=2),
                    router_scale=4.0,
                    q_lora_rank=32,
                    kv_lora_rank=16,
                    qk_nope_head_dim=16,
                    qk_rope_head_dim=8,
                    v_head_dim=16,
                    position=spec.Rotary(interleaved=True),
                )
            },
        ),
    },
    Format("deepseek_v2", "DeepseekV2ForCausalLM", read, write, RULES, "model.", INV_FREQ),
)
