"""Qwen3's mixtures of experts (Qwen Team 2025). Format: transformers' `qwen3_moe`."""

from typing import Any

from archetype.families.config import Config
from archetype.families.decoder_classes import OF_PREFIXED_SPANS
from archetype.families.family import Family, presets, tiny
from archetype.families.format import Format
from archetype.families.keys import ConfigTable, Expected, Key, ignored
from archetype.families.llama import FRAME, INV_FREQ, PARTS, PRE_NORMS, design_keys
from archetype.families.qwen3 import QK_NORMS, qwen3
from archetype.families.rules import weight_rules
from archetype.families.standard_block import with_experts
from archetype.models.decoder.spec import Decoder
from archetype.parts.experts.spec import MixtureOfExperts
from archetype.parts.feedforward.spec import GatedMLP
from archetype.parts.router.spec import SoftmaxRouter


def qwen3_moe(
    *,
    num_experts: int = 128,
    experts_per_token: int = 8,
    expert_d_ff: int,
    renormalize: bool = True,
    balance_loss: float = 0.001,
    **design: Any,
) -> Decoder:
    """Build a Qwen3 decoder with experts of `expert_d_ff` in every layer. `design` takes the arguments of `qwen3`."""
    return with_experts(
        qwen3(d_ff=expert_d_ff, **design), num_experts=num_experts, experts_per_token=experts_per_token,
        router=SoftmaxRouter(renormalize=renormalize), balance_loss=balance_loss,
    )


EXPERT = "block.feedforward.expert"
KEYS = ConfigTable(qwen3_moe, (
    *(row for row in design_keys(num_key_value_heads=4, vocab_size=151_936, hidden_size=2048, num_hidden_layers=24,
        max_position_embeddings=32_768) if not isinstance(row, Key) or row.argument != "d_ff"),
    # keys of dense layers, which do not exist here, and of outputs in training
    ignored("intermediate_size", "output_router_logits", "max_window_layers", "sliding_window", "layer_types"),
    Expected("use_sliding_window", False, "windows"),
    Expected("decoder_sparse_step", 1, "dense layers between layers with experts"),
    Expected("mlp_only_layers", [], "dense layers"),
    Key(("num_local_experts", "num_experts"), "num_experts", 128),
    Key("num_experts_per_tok", "experts_per_token", 8),
    Key("moe_intermediate_size", "expert_d_ff", 768),
    Key("norm_topk_prob", "renormalize", False, check=Config.flag, path="block.feedforward.router.renormalize"),
    Key("router_aux_loss_coef", "balance_loss", 0.001),
    Key("hidden_act", "activation", "silu", path=f"{EXPERT}.activation"),
    Key("attention_bias", "attention_bias", False),
), parts=PARTS | {"block.feedforward": MixtureOfExperts, EXPERT: GatedMLP})

RULES = (*FRAME, *PRE_NORMS, *QK_NORMS, *weight_rules("""
    model.layers.{i}.mlp.gate                                              blocks.{i}.feedforward.router
    model.layers.{i}.mlp.experts.{e}.{gate,up,down}_proj.weight   = blocks.{i}.feedforward.experts.{gate,up,down}
"""))

FAMILY = Family("qwen3_moe", {
    **presets("Qwen Team 2025, table 2; Qwen/Qwen3-*-A* config.json", qwen3_moe, {
        "qwen3-30b-a3b": dict(num_layers=48, d_model=2048, num_heads=32, num_kv_heads=4, expert_d_ff=768),
        "qwen3-235b-a22b": dict(num_layers=94, d_model=4096, num_heads=64, num_kv_heads=4, expert_d_ff=1536),
    }),
    **tiny(qwen3_moe, {
        "qwen3-moe-tiny": dict(num_layers=2, num_heads=4, num_kv_heads=2, head_dim=24, expert_d_ff=48, num_experts=8,
            experts_per_token=2),
    }),
}, Format("qwen3_moe", "Qwen3MoeForCausalLM", KEYS, RULES, "model.", INV_FREQ,
    class_heads=OF_PREFIXED_SPANS))
