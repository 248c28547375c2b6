"""DeepSeek-V2 (DeepSeek-AI 2024): latent attention and many small experts. Format: transformers' `deepseek_v2`."""

from operator import itemgetter
from typing import Any

from archetype.families.config import Config
from archetype.families.family import Family, presets, tiny
from archetype.families.format import Format
from archetype.families.keys import ConfigTable, Converted, Expected, Key, Values, expect_kind, ignored, width
from archetype.families.llama import FRAME, GATED_MLP, INV_FREQ, PRE_NORMS
from archetype.families.rope import read_rotary, write_rotary
from archetype.families.rules import weight_rules
from archetype.families.standard_block import decoder
from archetype.models.block.spec import Block, PreNorm
from archetype.models.decoder.spec import Decoder
from archetype.parts.experts.spec import ExpertGroups, MixtureOfExperts
from archetype.parts.feedforward.spec import GatedMLP
from archetype.parts.latent_attention.spec import DirectQuery, LatentAttention, LowRankQuery
from archetype.parts.norm.spec import RMSNorm
from archetype.parts.position.frequencies import yarn_score_scale
from archetype.parts.position.spec import Rotary, YarnScaling
from archetype.parts.router.spec import SoftmaxRouter
from archetype.roles.activation import Activation
from archetype.spec.base import Spec

# context extended from 4,096 tokens by a factor of 40 (section 3.1.4)
LONG = Rotary(
    interleaved=True,
    scaling=YarnScaling(factor=40.0, original_context_length=4096, mscale=0.707, mscale_all_dim=0.707),
)


def deepseek_v2(
    *,
    num_layers: int,
    num_heads: int,
    d_ff: int,
    num_experts: int,
    experts_per_token: int,
    expert_d_ff: int,
    num_shared_experts: int = 2,
    num_dense_layers: int = 1,
    groups: ExpertGroups | None = None,
    router_scale: float = 1.0,
    balance_loss: float = 0.001,
    q_lora_rank: int | None = None,
    kv_lora_rank: int = 512,
    qk_nope_head_dim: int = 128,
    qk_rope_head_dim: int = 64,
    v_head_dim: int = 128,
    position: Rotary = LONG,
    activation: Activation | str = "silu",
    eps: float = 1e-6,
    attention_bias: bool = False,
    mlp_bias: bool = False,
    attention_dropout: float = 0.0,
    **model: Any,
) -> Decoder:
    """Build a DeepSeek-V2 decoder: `num_dense_layers` dense layers of width `d_ff`, then layers with experts.

    Query projections have rank `q_lora_rank`, or full rank if it is None. Shared experts are built as one expert of
    their total width. `model` has further arguments of `standard_block.decoder`, such as `tied`.
    """
    attention = LatentAttention(
        num_heads=num_heads,
        query=DirectQuery() if q_lora_rank is None else LowRankQuery(rank=q_lora_rank),
        kv_lora_rank=kv_lora_rank,
        qk_nope_head_dim=qk_nope_head_dim,
        qk_rope_head_dim=qk_rope_head_dim,
        v_head_dim=v_head_dim,
        position=position,
        bias=attention_bias,
        # YaRN's factor applies to all features of a score, not only to the rotated ones: the square of its mscale
        scale=yarn_score_scale(qk_nope_head_dim + qk_rope_head_dim, position.scaling),
        dropout=attention_dropout,
    )
    experts = MixtureOfExperts(
        num_experts=num_experts,
        experts_per_token=experts_per_token,
        expert=GatedMLP(d_ff=expert_d_ff, activation=activation),
        # side by side, shared experts are one expert with their total width
        shared=GatedMLP(d_ff=num_shared_experts * expert_d_ff, activation=activation, bias=mlp_bias),
        router=SoftmaxRouter(scale=router_scale),
        groups=groups,
        balance_loss=balance_loss,
    )
    norm = RMSNorm(eps=eps)
    sparse = Block(wiring=PreNorm(norm=norm), mixer=attention, feedforward=experts)
    dense = sparse.replace(feedforward=GatedMLP(d_ff=d_ff, activation=activation, bias=mlp_bias))
    blocks = tuple(dense if layer < num_dense_layers else sparse for layer in range(num_layers))
    return decoder(blocks, norm=norm, **({"vocab_size": 102_400, "context_length": 163_840} | model))


def _read_position(config: Config, values: Values) -> Values:
    position = read_rotary(config, values["qk_rope_head_dim"], values["context_length"])
    # neighboring features are rotated as pairs; no key of the file says so
    return {"position": position.replace(interleaved=True)}


def write_position(model: Decoder) -> dict[str, Any]:
    mixer = expect_kind(LatentAttention, model.layers[0].mixer, "layers[0].mixer")
    position = expect_kind(Rotary, mixer.position, "layers[0].mixer.position")
    return {"rope_parameters": write_rotary(position, mixer.qk_rope_head_dim)}


def _read_groups(config: Config, values: Values) -> Values:
    method, names = config.get("topk_method", "greedy"), ("n_group", "topk_group")
    match method:
        case "greedy":
            config.used |= set(names)
            return {}
        case "group_limited_greedy":
            num_groups, groups_per_token = (config.size(name) for name in names)
            return {"groups": ExpertGroups(num_groups=num_groups, groups_per_token=groups_per_token)}
        case _:
            raise config.error("topk_method", f"{method!r} is not supported", "use greedy or group_limited_greedy")


def _write_groups(model: Decoder) -> dict[str, Any]:
    groups = expect_kind(MixtureOfExperts, model.layers[-1].feedforward, "layers[-1].feedforward").groups
    return {
        "topk_method": "greedy" if groups is None else "group_limited_greedy",
        "n_group": groups and groups.num_groups,
        "topk_group": groups and groups.groups_per_token,
    }


def dense_layers(model: Decoder) -> list[GatedMLP]:
    return [block.feedforward for block in model.layers if isinstance(block.feedforward, GatedMLP)]


def dense_width(model: Decoder) -> int:
    """Return the width F of the dense layers; without dense layers, the width of the experts (any width will do)."""
    dense = dense_layers(model)
    return dense[0].width(model.d_model) if dense else expert_width(model)


expert_width, shared_width = width("last.feedforward.expert"), width("last.feedforward.shared")
# Shared by DeepSeek-V2 and DeepSeek-V3.
SHARED_KEYS = (
    # these follow from other sizes or configure computation and training
    ignored("qk_head_dim", "pretraining_tp", "output_router_logits", "seq_aux", "ep_size"),
    ignored("num_key_value_heads", path="block.mixer.num_heads"),
    Key("qk_rope_head_dim", "qk_rope_head_dim", 64),
    Expected("head_dim", itemgetter("qk_rope_head_dim"), "the features that are rotated"),
    Key("max_position_embeddings", "context_length", 2048),
    Key("num_hidden_layers", "num_layers", 32),
    Key("hidden_size", "d_model", 4096),
    Key("num_attention_heads", "num_heads", 32),
    Key("intermediate_size", "d_ff", 11_008, path=dense_width),
    Key("n_routed_experts", "num_experts", 64),
    Key("num_experts_per_tok", "experts_per_token"),
    Key("moe_intermediate_size", "expert_d_ff", 1407),
    Key("n_shared_experts", "num_shared_experts", 2, path=lambda model: shared_width(model) // expert_width(model)),
    Key("first_k_dense_replace", "num_dense_layers", 0, check=Config.count,
        path=lambda model: len(dense_layers(model))),
    Key("routed_scaling_factor", "router_scale", 1.0, check=Config.positive, path="last.feedforward.router.scale"),
    Key("q_lora_rank", "q_lora_rank", 1536, check=Config.optional_size,
        path=lambda model: getattr(model.layers[0].mixer.query, "rank", None)),
    Key("kv_lora_rank", "kv_lora_rank", 512),
    Key("qk_nope_head_dim", "qk_nope_head_dim", 128),
    Key("v_head_dim", "v_head_dim", 128),
    Key("vocab_size", "vocab_size", 102_400),
    Key("hidden_act", "activation", "silu", path="last.feedforward.expert.activation"),
    Key("rms_norm_eps", "eps", 1e-6),
    Key("attention_bias", "attention_bias", False, path="block.mixer.bias"),
    Key("attention_dropout", "attention_dropout", 0.0),
    Key("tie_word_embeddings", "tied", False),
    Key("initializer_range", "std", 0.02),
)
PARTS: dict[str, type[Spec]] = {
    "block.mixer": LatentAttention,
    "final_norm": RMSNorm,
    "last.feedforward": MixtureOfExperts,
    "last.feedforward.expert": GatedMLP,
    "last.feedforward.shared": GatedMLP,
}
KEYS = ConfigTable(deepseek_v2, (
    *SHARED_KEYS,
    Expected("moe_layer_freq", 1, "dense layers between layers with experts"),
    Expected("scoring_func", "softmax", "another score function"),
    Expected("norm_topk_prob", False, "normalized weights", path=lambda model: False),
    Converted(_read_position, write_position),
    Converted(_read_groups, _write_groups),
    Key("mlp_bias", "mlp_bias", False, path="last.feedforward.shared.bias"),
    Key("aux_loss_alpha", "balance_loss", 0.001),
), parts=PARTS)


RULES = (*FRAME, *PRE_NORMS, *GATED_MLP, *weight_rules("""
    model.layers.{i}.self_attn.q_{a,b}_proj                     blocks.{i}.mixer.q_{down,up}
    model.layers.{i}.self_attn.{kv_a_proj_with_mqa,kv_b_proj}   blocks.{i}.mixer.kv_{down,up}
    model.layers.{i}.self_attn.{q,kv}_a_layernorm               blocks.{i}.mixer.{q,kv}_norm
    model.layers.{i}.mlp.shared_experts.{gate,up,down}_proj     blocks.{i}.feedforward.shared.{gate,up,down}
    model.layers.{i}.mlp.gate                                   blocks.{i}.feedforward.router
    model.layers.{i}.mlp.experts.{e}.{gate,up,down}_proj.weight   = blocks.{i}.feedforward.experts.{gate,up,down}
"""))

FAMILY = Family("deepseek_v2", {
    **presets("DeepSeek-AI 2024, section 3.1.2; deepseek-ai/DeepSeek-V2 config.json", deepseek_v2, {
        "deepseek-v2": dict(num_layers=60, d_model=5120, num_heads=128, d_ff=12_288, num_experts=160,
            experts_per_token=6, expert_d_ff=1536, groups=ExpertGroups(num_groups=8, groups_per_token=3),
            router_scale=16.0, q_lora_rank=1536),
    }),
    **presets("DeepSeek-AI 2024, appendix B; deepseek-ai/DeepSeek-V2-Lite config.json", deepseek_v2, {
        "deepseek-v2-lite": dict(num_layers=27, d_model=2048, num_heads=16, d_ff=10_944, num_experts=64,
            experts_per_token=6, expert_d_ff=1408),
    }),
    **tiny(deepseek_v2, {
        "deepseek-v2-tiny": dict(num_layers=2, num_heads=4, d_ff=172, num_experts=8, experts_per_token=2,
            expert_d_ff=32, groups=ExpertGroups(num_groups=4, groups_per_token=2), router_scale=4.0,
            q_lora_rank=32, kv_lora_rank=16, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=16,
            position=Rotary(interleaved=True)),
    }),
}, Format("deepseek_v2", "DeepseekV2ForCausalLM", KEYS, RULES, "model.", INV_FREQ))
