"""Mixtral (Jiang 2024): Llama with experts. Format: transformers' `mixtral`."""

from typing import Any

from archetype.families.config import Config
from archetype.families.decoder_classes import OF_SPANS
from archetype.families.family import Family, presets, tiny
from archetype.families.format import Format
from archetype.families.keys import ConfigTable, Expected, Key, ignored
from archetype.families.llama import FRAME, INV_FREQ, PARTS, PRE_NORMS, design_keys
from archetype.families.mistral import mistral, window_size
from archetype.families.rules import weight_rules
from archetype.families.standard_block import with_experts
from archetype.models.decoder.spec import Decoder
from archetype.parts.experts.spec import MixtureOfExperts
from archetype.parts.feedforward.spec import GatedMLP
from archetype.parts.position.spec import Rotary
from archetype.parts.router.spec import SoftmaxRouter


def mixtral(
    *,
    num_experts: int = 8,
    experts_per_token: int = 2,
    balance_loss: float = 0.02,
    **design: Any,
) -> Decoder:
    """Build a Mixtral decoder. Weights of selected experts sum to one. `design` takes the arguments of `mistral`."""
    defaults: dict[str, Any] = {"window": None, "position": Rotary(theta=1_000_000.0)}
    return with_experts(
        mistral(**defaults | design), num_experts=num_experts, experts_per_token=experts_per_token,
        router=SoftmaxRouter(renormalize=True), balance_loss=balance_loss,
    )


KEYS = ConfigTable(mixtral, (
    *design_keys(theta=1_000_000.0, feedforward="block.feedforward.expert", num_key_value_heads=8,
        intermediate_size=14_336, max_position_embeddings=131_072, rms_norm_eps=1e-5),
    ignored("output_router_logits"),  # only adds an output in training
    Expected("router_jitter_noise", 0.0, "noise on the router's input"),
    Key("num_local_experts", "num_experts", 8),
    Key("num_experts_per_tok", "experts_per_token", 2),
    Key("router_aux_loss_coef", "balance_loss", 0.001),
    Key("hidden_act", "activation", "silu", path="block.feedforward.expert.activation"),
    Key("sliding_window", "window", check=Config.optional_size, path=window_size),
), parts=PARTS | {"block.feedforward": MixtureOfExperts, "block.feedforward.expert": GatedMLP})


RULES = (*FRAME, *PRE_NORMS, *weight_rules("""
    model.layers.{i}.block_sparse_moe.gate                              blocks.{i}.feedforward.router
    model.layers.{i}.block_sparse_moe.experts.{e}.{w1,w3,w2}.weight   = blocks.{i}.feedforward.experts.{gate,up,down}
"""))

FAMILY = Family("mixtral", {
    **presets("Jiang 2024, table 1; mistralai/Mixtral-8x7B-v0.1 config.json", mixtral,
        {"mixtral-8x7b": dict(num_layers=32, d_model=4096, num_heads=32, num_kv_heads=8, d_ff=14_336)}),
    **presets("mistralai/Mixtral-8x22B-v0.1 config.json (its Instruct version has 32,768 tokens)", mixtral, {
        "mixtral-8x22b": dict(num_layers=56, d_model=6144, num_heads=48, num_kv_heads=8, d_ff=16_384,
            context_length=65_536, balance_loss=0.001),
    }),
    **tiny(mixtral, {"mixtral-tiny": dict(num_layers=2, num_heads=4, num_kv_heads=2, d_ff=96, num_experts=4)}),
}, Format("mixtral", "MixtralForCausalLM", KEYS, RULES, "model.", INV_FREQ, class_heads=OF_SPANS))
