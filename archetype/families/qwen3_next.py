"""Qwen3-Next (Qwen Team 2025b): three gated delta-net layers per layer of gated attention, and many narrow experts."""

from typing import Any

from archetype.families.family import Family, presets
from archetype.families.llama import llama
from archetype.families.standard_block import with_experts
from archetype.models.decoder.spec import Decoder
from archetype.parts.attention.spec import OutputGate
from archetype.parts.feedforward.spec import GatedMLP
from archetype.parts.gated_delta_net.spec import GatedDeltaNet
from archetype.parts.norm.spec import RMSNorm
from archetype.parts.position.spec import Rotary
from archetype.parts.router.spec import SoftmaxRouter


def qwen3_next(**design: Any) -> Decoder:
    """Build a Qwen3-Next decoder: rotary positions on a quarter of each head, and norms with 1 + weight."""
    eps = 1e-6
    dense = llama(
        head_dim=256, d_ff=512, eps=eps, unit_offset=True,
        attention={"qk_norm": RMSNorm(eps=eps, unit_offset=True), "gate": OutputGate()},
        # `partial_rotary_factor: 0.25`
        position=Rotary(theta=10_000_000.0, dim=64), vocab_size=151_936, context_length=262_144, **design,
    )
    model = with_experts(
        dense, num_experts=512, experts_per_token=10, shared=GatedMLP(d_ff=512, activation="silu"), shared_gate=True,
        router=SoftmaxRouter(renormalize=True), balance_loss=0.001,
    )
    delta = model.layers[0].replace(mixer=GatedDeltaNet(num_heads=32, num_key_heads=16, eps=eps))
    # `full_attention_interval: 4`
    layers = tuple(block if layer % 4 == 3 else delta for layer, block in enumerate(model.layers))
    return model.replace(layers=layers)


# Without the layer for multi-token prediction.
FAMILY = Family("qwen3_next", presets("Qwen Team 2025b; Qwen/Qwen3-Next-80B-A3B-* config.json", qwen3_next,
    {"qwen3-next-80b-a3b": dict(num_layers=48, d_model=2048, num_heads=16, num_kv_heads=2)}))
