"""DeepSeek-V3 (DeepSeek-AI 2024b): sigmoid routers balanced by a bias. Format: transformers' `deepseek_v3`.

The published weights are in FP8 and are converted to bfloat16 while they are read.
"""

from typing import Any

from archetype.families.config import Config
from archetype.families.decoder_classes import OF_TOKENS
from archetype.families.deepseek_v2 import PARTS, SHARED_KEYS, deepseek_v2, write_position
from archetype.families.deepseek_v2 import RULES as DEEPSEEK_V2
from archetype.families.family import Family, presets, tiny
from archetype.families.format import Format
from archetype.families.keys import ConfigTable, Converted, Key, Values, expect_kind, ignored, with_defaults
from archetype.families.llama import INV_FREQ
from archetype.families.rope import read_rotary
from archetype.families.rules import weight_rules
from archetype.families.standard_block import changed
from archetype.models.decoder.spec import Decoder
from archetype.parts.experts.spec import ExpertGroups, MixtureOfExperts
from archetype.parts.latent_attention.spec import LatentAttention
from archetype.parts.position.spec import Rotary, YarnScaling
from archetype.parts.router.spec import SigmoidRouter
from archetype.roles.feedforward import FeedForward

# context extended from 4,096 tokens by a factor of 40 (section 4.3)
LONG = Rotary(
    interleaved=True,
    scaling=YarnScaling(factor=40.0, original_context_length=4096, mscale=1.0, mscale_all_dim=1.0),
)

# context extended from 4,096 tokens by a factor of 32, with no ramp between scaled and unscaled frequencies
KIMI = Rotary(
    theta=50_000.0,
    interleaved=True,
    scaling=YarnScaling(
        factor=32.0, original_context_length=4096, beta_fast=1.0, beta_slow=1.0, mscale=1.0, mscale_all_dim=1.0
    ),
)


def deepseek_v3(
    *,
    router_scale: float = 2.5,
    renormalize: bool = True,
    **design: Any,
) -> Decoder:
    """Build a DeepSeek-V3 decoder. `design` takes the arguments of `deepseek_v2`."""
    defaults: dict[str, Any] = {
        "num_shared_experts": 1, "num_dense_layers": 3, "q_lora_rank": 1536, "position": LONG, "vocab_size": 129_280,
    }
    model = deepseek_v2(balance_loss=0.0, **defaults | design)
    # `e_score_correction_bias` balances the experts; it affects only their selection (section 2.1.2)
    router = SigmoidRouter(renormalize=renormalize, scale=router_scale, expert_bias=True)

    def network(part: FeedForward) -> FeedForward:
        return part.replace(router=router) if isinstance(part, MixtureOfExperts) else part

    return changed(model, feedforward=network)


def _read_position(config: Config, values: Values) -> Values:
    position = read_rotary(config, values["qk_rope_head_dim"], values["context_length"])
    return {"position": position.replace(interleaved=config.flag("rope_interleave", True))}


def _write_position(model: Decoder) -> dict[str, Any]:
    mixer = expect_kind(LatentAttention, model.layers[0].mixer, "layers[0].mixer")
    position = expect_kind(Rotary, mixer.position, "layers[0].mixer.position")
    return write_position(model) | {"rope_interleave": position.interleaved}


def _read_groups(config: Config, values: Values) -> Values:
    # a group's score is the sum of its two best experts' scores; a single group means no groups
    num_groups, groups_per_token = config.size("n_group", 8), config.size("topk_group", 4)
    # groups of a single expert have no second one
    top_k = min(2, max(1, values["num_experts"] // num_groups))
    groups = ExpertGroups(num_groups=num_groups, groups_per_token=groups_per_token, top_k_in_group=top_k)
    return {"groups": None if num_groups == 1 else groups}


def _write_groups(model: Decoder) -> dict[str, Any]:
    groups = expect_kind(MixtureOfExperts, model.layers[-1].feedforward, "layers[-1].feedforward").groups
    return {"n_group": groups.num_groups if groups else 1, "topk_group": groups.groups_per_token if groups else 1}


KEYS = ConfigTable(deepseek_v3, (
    # layers for multi-token prediction are left out; the format only has one scoring function and method
    ignored("num_nextn_predict_layers", "num_mtp_layers", "scoring_func", "topk_method", "moe_layer_freq",
        "aux_loss_alpha"),
    *with_defaults(SHARED_KEYS, max_position_embeddings=4096, num_hidden_layers=61, hidden_size=7168,
        num_attention_heads=128, intermediate_size=18_432, n_routed_experts=256, num_experts_per_tok=8,
        moe_intermediate_size=2048, n_shared_experts=1, first_k_dense_replace=3, routed_scaling_factor=2.5,
        vocab_size=129_280),
    Converted(_read_position, _write_position),
    Converted(_read_groups, _write_groups),
    Key("norm_topk_prob", "renormalize", True, check=Config.flag, path="last.feedforward.router.renormalize"),
), parts=PARTS)

RULES = (*DEEPSEEK_V2, *weight_rules("""
    model.layers.{i}.mlp.gate.e_score_correction_bias   = blocks.{i}.feedforward.correction
"""))

FAMILY = Family("deepseek_v3", {
    **presets("DeepSeek-AI 2024b, section 4.2; deepseek-ai/DeepSeek-V3 config.json", deepseek_v3, {
        "deepseek-v3": dict(num_layers=61, d_model=7168, num_heads=128, d_ff=18_432, num_experts=256,
            experts_per_token=8, expert_d_ff=2048,
            groups=ExpertGroups(num_groups=8, groups_per_token=4, top_k_in_group=2)),
    }),
    **presets("Kimi Team 2025, table 2; moonshotai/Kimi-K2-Instruct config.json", deepseek_v3, {
        "kimi-k2": dict(num_layers=61, d_model=7168, num_heads=64, d_ff=18_432, num_experts=384, experts_per_token=8,
            expert_d_ff=2048, num_dense_layers=1, router_scale=2.827, vocab_size=163_840, context_length=131_072,
            position=KIMI),
    }),
    **tiny(deepseek_v3, {
        "deepseek-v3-tiny": dict(num_layers=2, num_heads=4, d_ff=172, num_experts=8, experts_per_token=2,
            expert_d_ff=32, groups=ExpertGroups(num_groups=4, groups_per_token=2, top_k_in_group=2),
            num_dense_layers=1, q_lora_rank=32, kv_lora_rank=16, qk_nope_head_dim=16, qk_rope_head_dim=8,
            v_head_dim=16, position=Rotary(interleaved=True)),
    }),
}, Format("deepseek_v3", "DeepseekV3ForCausalLM", KEYS, RULES, "model.",
    INV_FREQ, class_heads=OF_TOKENS))
